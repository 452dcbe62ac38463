"""The `load` op: one multi-asset over raw, refined and aggregates that walks the tables and reports per day.

Lives here: the graph of our tables and the translation of outcomes into Dagster's events. Put here: what Dagster is told
of a load. Keep out: loading (load_path/), and anything about one table (tables/).
"""

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (  # no public name in Dagster 1.13
    AssetCheckEvaluationTargetMaterializationData as Target,
)
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.errors import PublishConflictError, SettingsError, TidemarkError, TransientError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.landing import landing_key
from pipeline_assets.load_path.request import LoadRequest, Outcome, TableReport, Workbench
from pipeline_assets.load_path.standing import standing_outcomes
from pipeline_assets.load_path.walk import load
from pipeline_assets.tables.registry import ASSET_TABLES, SOURCE_OF_TABLE, table_by_key
from pipeline_assets.tables.table import Table
from resources.crash_points import CrashPoint, crash_point
from resources.lakehouse import Lakehouse
from resources.landing_store import LandingStore
from resources.ledger import Ledger
from resources.spark import configure_catalog

POOL = "tidemark_load"
OP_NAME = "load"
_LIVE = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING)


class LoadConfig(dg.Config):
    """Run config of the `load` op."""

    projects: list[str] = Field(default_factory=list)
    """Only these of the configured projects; all when empty."""
    accept_changes: dict[str, str] = Field(default_factory=dict)
    """`refined/events:2026-02-02` -> why the change is right; kept on record."""


@dataclass(frozen=True)
class Clock:
    """What time it is for deadlines; a resource, so that a test can stand at any moment."""

    fixed: datetime | None = None

    def now(self) -> datetime:
        """Aware UTC time."""
        return self.fixed or datetime.now(UTC)


def asset_key(table: Table) -> dg.AssetKey:
    """The asset of a table."""
    return dg.AssetKey(table.key.split("/"))


def _upstream(table: Table) -> list[dg.AssetKey]:
    if table.key in SOURCE_OF_TABLE:
        return [landing_key(SOURCE_OF_TABLE[table.key])]
    return [dg.AssetKey(name.split("/")) for name in table.upstream]


def _spec(table: Table, days: dg.PartitionsDefinition[str], settings: Settings) -> dg.AssetSpec:
    layer = table.key.split("/")[0]
    schema = dg.TableSchema([dg.TableColumn(column.name, column.type, column.description) for column in table.columns])
    return dg.AssetSpec(
        asset_key(table),
        deps=_upstream(table),
        partitions_def=days,
        skippable=True,
        group_name="events",
        description=f"{table.description}\n\n**When a day is red:** {table.recovery}",
        kinds={"iceberg", "spark", layer},
        tags={"layer": layer},
        metadata={
            "dagster/column_schema": schema,
            "dagster/table_name": f"{settings.catalog_name}.{table.identifier}",
        },
        code_version=table.code_version(settings),
    )


def load_assets(settings: Settings, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """The multi-asset of all tables; a subset of it is one run of the load path."""

    @dg.multi_asset(
        name=OP_NAME,
        specs=[_spec(table, days, settings) for table in ASSET_TABLES],
        check_specs=[
            dg.AssetCheckSpec(
                check.value,
                asset=asset_key(table),
                description=check.description,
                blocking=check.is_blocking,
                partitions_def=days,
            )
            for table in ASSET_TABLES
            for check in table.checks
        ],
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.multi_run(settings.days_per_run),
        pool=POOL,
    )
    def load_op(
        context: dg.AssetExecutionContext,
        config: LoadConfig,
        spark: LazyPySparkResource,
        landing: dg.ResourceParam[LandingStore],
        clock: dg.ResourceParam[Clock],
    ) -> Iterator[Any]:
        yield from _load(context, config, settings, spark, landing, clock)

    return load_op


def _load(
    context: dg.AssetExecutionContext,
    config: LoadConfig,
    settings: Settings,
    spark: LazyPySparkResource,
    landing: LandingStore,
    clock: Clock,
) -> Iterator[Any]:
    keys = sorted({key.to_user_string() for key in context.selected_asset_keys})
    ledger = Ledger(settings.ledger_database_url)
    failed: list[Outcome] = []
    try:
        request = LoadRequest(
            days=tuple(date.fromisoformat(key) for key in context.partition_keys),
            projects=settings.require_projects(tuple(config.projects)),
            tables=frozenset(keys),
            run_id=context.run.run_id,
            now=clock.now(),
            accept_changes=_valid_acceptances(config.accept_changes),
        )
        session = spark.spark_session
        configure_catalog(session, settings)
        bench = Workbench(
            session, Lakehouse(session, settings.catalog_name), ledger, landing, settings, context.log.info
        )
        for report in load(bench, request, _liveness(context)):
            crash_point(CrashPoint.BEFORE_EVENTS, report.table)
            table = table_by_key(report.table)
            yield from _events(context, request, table, report, _others(ledger, settings, report))
            failed.extend(outcome for outcome in report.outcomes if outcome.fails_the_run)
    except PublishConflictError as error:
        raise dg.Failure(str(error), allow_retries=True) from error
    except TransientError as error:
        raise dg.RetryRequested(max_retries=2, seconds_to_wait=10) from error
    except TidemarkError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    finally:
        ledger.close()
    # Every declared output is yielded: a selected check that is not makes Dagster fail the step with a vaguer error.
    for check in sorted(context.selected_asset_check_keys, key=str):
        yield dg.Output(None, context.assets_def.get_output_name_for_asset_check_key(check))
    if failed:
        raise _failure(failed)


def _valid_acceptances(acceptances: Mapping[str, str]) -> dict[str, str]:
    known = {table.key for table in ASSET_TABLES}
    for name, reason in acceptances.items():
        table, _, day = name.partition(":")
        try:
            date.fromisoformat(day)
        except ValueError:
            table = ""
        if table not in known or not reason.strip():
            raise SettingsError(
                f"accept_changes {name!r}",
                "is not `table:day` with a reason",
                'Example: {"refined/events:2026-02-02": "why"}',
            )
    return dict(acceptances)


def _liveness(context: dg.AssetExecutionContext) -> Callable[[str], bool]:
    """Whether the run a branch is named for still runs; this run's own branches are leftovers of a retry."""
    running = {
        run.run_id.replace("-", "")
        for run in context.instance.get_runs(dg.RunsFilter(statuses=list(_LIVE)))
        if run.run_id != context.run.run_id
    }
    return lambda attempt: attempt.split("_")[0] in running


def _events(
    context: dg.AssetExecutionContext,
    request: LoadRequest,
    table: Table,
    report: TableReport,
    others: Mapping[date, Sequence[Outcome]],
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Materializations first, then evaluations aimed at them: the UI drops an evaluation older than its target."""
    key = asset_key(table)
    calendar = context.assets_def.specs_by_key[key].partitions_def
    by_day: dict[date, list[Outcome]] = {}
    for outcome in report.outcomes:
        by_day.setdefault(outcome.key.event_date, []).append(outcome)
    reported = []
    for day, outcomes in sorted(by_day.items()):
        partition = day.isoformat()
        # A day outside the calendar has no partition to report on; the ledger and the log have it.
        if calendar is None or not calendar.has_partition_key(partition):
            continue
        is_requested = day in request.days
        if not is_requested and not any(o.verdict in (Verdict.PUBLISHED, Verdict.REFUSED) for o in outcomes):
            continue
        # A day speaks for all projects, also for those this run did not load.
        everyone = [*outcomes, *others.get(day, ())]
        reported.append((partition, everyone, is_requested))
        if all(outcome.verdict.is_good for outcome in everyone):
            yield dg.AssetMaterialization(
                key, partition=partition, metadata=_metadata(outcomes, report),
                tags={"dagster/data_version": "+".join(str(outcome.digest) for outcome in outcomes)},
            )  # fmt: skip
    targets = _targets(context, key, [partition for partition, _, _ in reported])
    for partition, outcomes, is_requested in reported:
        for check in table.checks:
            if is_requested or any(outcome.evaluations for outcome in outcomes):
                yield _evaluation(key, partition, check, outcomes, targets.get(partition))


def _others(ledger: Ledger, settings: Settings, report: TableReport) -> dict[date, list[Outcome]]:
    """Day -> slices of the reported days that stand badly in projects this report does not name."""
    days = {outcome.key.event_date for outcome in report.outcomes}
    named = {outcome.key for outcome in report.outcomes}
    found: dict[date, list[Outcome]] = {}
    for outcome in standing_outcomes(ledger, report.table, settings.projects, days):
        if outcome.key not in named and not outcome.verdict.is_good:
            found.setdefault(outcome.key.event_date, []).append(outcome)
    return found


def _metadata(outcomes: Sequence[Outcome], report: TableReport) -> dict[str, Any]:
    figures: dict[str, float] = {}
    for outcome in outcomes:
        for name, value in outcome.figures.items():
            figures[name] = (
                max(figures[name], value)
                if name.endswith("_seconds") and name in figures
                else figures.get(name, 0) + value
            )
    rows = sum(outcome.digest.rows for outcome in outcomes)
    return {
        "verdict": ", ".join(f"{outcome.key.project_id}: {outcome.verdict.value}" for outcome in outcomes),
        "dagster/partition_row_count": rows,
        "rows": rows,
        "snapshot_id": dg.MetadataValue.text(str(report.snapshot_id)),
        **{name: value for name, value in figures.items() if name != "rows"},
    }


def _targets(context: dg.AssetExecutionContext, key: dg.AssetKey, partitions: list[str]) -> dict[str, Target]:
    """The latest materialization of each partition, one query per table."""
    if not partitions:
        return {}
    found = {}
    latest = context.instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, set(partitions)
    )
    if not latest:
        return {}
    wanted = dg.AssetRecordsFilter(asset_key=key, storage_ids=list(latest.values()))
    records = context.instance.fetch_materializations(wanted, limit=len(latest)).records
    for record in records:
        partition = record.partition_key
        if partition is not None:
            found[partition] = Target(
                storage_id=record.storage_id, run_id=record.event_log_entry.run_id,
                timestamp=record.event_log_entry.timestamp,
            )  # fmt: skip
    return found


def _evaluation(
    key: dg.AssetKey, partition: str, check: Check, outcomes: Sequence[Outcome], target: Target | None
) -> dg.AssetCheckEvaluation:
    """One evaluation for all projects of a day: passed only where every project passed."""
    found: list[tuple[str, Evaluation]] = [
        (outcome.key.project_id, evaluation)
        for outcome in outcomes
        for evaluation in outcome.evaluations
        if evaluation.check is check
    ]
    bad = [(project, evaluation) for project, evaluation in found if not evaluation.is_passed]
    # A day that waits has no evaluation of its own; what it waits for is the reason.
    waiting = [o for o in outcomes if not o.verdict.is_good and not o.evaluations]
    figures: dict[str, float] = {}
    for _, evaluation in found:
        for name, value in evaluation.figures.items():
            figures[name] = figures.get(name, 0) + value
    reasons = [f"{project}: {evaluation.reason}. {evaluation.cure}" for project, evaluation in bad]
    reasons += [
        f"{outcome.key.project_id}: {outcome.verdict.value}, {outcome.reason}. {outcome.cure}" for outcome in waiting
    ]
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check.value,
        partition=partition,
        passed=not reasons,
        blocking=False,
        severity=dg.AssetCheckSeverity.ERROR if check.is_blocking else dg.AssetCheckSeverity.WARN,
        target_materialization_data=target,
        description="; ".join(reasons) or None,
        metadata=figures,
    )


def _failure(failed: Sequence[Outcome]) -> dg.Failure:
    lines = [
        f"{outcome.key.event_date} {outcome.table} {outcome.key.project_id} {outcome.verdict.value}: {outcome.reason}"
        for outcome in sorted(failed, key=lambda outcome: (outcome.key, outcome.table))
    ]
    reasons = dg.MetadataValue.md("\n".join(f"- {line}. {outcome.cure or ''}" for line, outcome in zip(
        lines, sorted(failed, key=lambda outcome: (outcome.key, outcome.table)), strict=True)))  # fmt: skip
    return dg.Failure("; ".join(lines), metadata={"reasons": reasons, "slices": len(failed)}, allow_retries=False)
