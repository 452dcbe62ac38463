"""The `load` op: one multi-asset of raw, refined and aggregates that loads the tables in order and reports per day."""

# Dagster reads the op's annotations as types, so they are not postponed here.
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pipeline_assets.domain.checks import AcceptanceKind, read_acceptances
from pipeline_assets.domain.errors import TidemarkError, TransientError
from pipeline_assets.domain.masking import tellable
from pipeline_assets.domain.requests import Load
from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.diff import refused_changes
from pipeline_assets.inspection.health import read_health
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Outcome, Runtime, TableReport
from pipeline_assets.operations.decisions import exclude, lift
from pipeline_assets.orchestration.events import events_of, failure_of, markdown_table, told_backfill
from pipeline_assets.orchestration.live_runs import liveness
from pipeline_assets.orchestration.runtime import op_runtime
from pipeline_assets.orchestration.specs import check_specs, table_spec
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import GRAPH_TABLES
from resources.failpoints import Failpoint, failpoint
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger

POOL = "tidemark_load"
OP_NAME = "load"
_MOST_SHOWN = 5
"""Each needs another build of its slice. `tidemark diff` shows the others."""


class LoadConfig(Load, dg.Config):
    """Run config of the `load` op."""


@dataclass(frozen=True)
class Clock:
    """The time that deadlines are compared with; a resource, so that a test can set it."""

    fixed: datetime | None = None

    def now(self) -> datetime:
        """Return the current or fixed time, timezone-aware in UTC."""
        return self.fixed or datetime.now(UTC)


def load_assets(settings: Settings, days: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """Return the multi-asset of all tables; a run loads any subset of it."""

    @dg.multi_asset(
        name=OP_NAME,
        specs=[table_spec(table, days, settings) for table in GRAPH_TABLES],
        check_specs=check_specs(GRAPH_TABLES, days),
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
        with op_runtime(context.op_execution_context, settings, spark, landing) as runtime:
            failed = yield from _load(context, config, runtime, clock.now())
        # For a missing output Dagster would fail the step with a vaguer error.
        for check in sorted(context.selected_asset_check_keys, key=str):
            yield dg.Output(None, context.assets_def.get_output_name_for_asset_check_key(check))
        if failed:
            raise failure_of(failed)

    return load_op


def request_of(
    config: LoadConfig, settings: Settings, days: Iterable[date], tables: Iterable[str], run_id: str, now: datetime
) -> LoadRequest:
    """The request of a run with this config; raises SettingsError and UsageError."""
    projects = settings.require_projects(tuple(config.projects))
    reasons = {AcceptanceKind.CHANGE: config.accept_changes, AcceptanceKind.MISSING: config.accept_missing}
    accepted = read_acceptances(reasons, KINDS, projects, SHARED)
    return LoadRequest(tuple(days), projects, frozenset(tables), run_id, now, accepted, config.read_again)


def decide_and_load(
    runtime: Runtime, config: LoadConfig, request: LoadRequest, is_live: Callable[[str], bool | None]
) -> Iterator[TableReport]:
    """Record the decisions of the config, then load as `run_load` does."""
    read_back(runtime.ledger, runtime.log)
    if config.exclude:
        exclude(runtime, config.exclude, request, even_if_gone=config.exclude_even_if_gone)
    if config.include:
        lift(runtime, config.include, request)
    yield from run_load(runtime, request, is_live)


def _load(
    context: dg.AssetExecutionContext, config: LoadConfig, runtime: Runtime, now: datetime
) -> Generator[Any, None, list[Outcome]]:
    days = map(date.fromisoformat, context.partition_keys)
    tables = (key.to_user_string() for key in context.selected_asset_keys)
    request = request_of(config, runtime.settings, days, tables, context.run.run_id, now)
    is_live = liveness(context.instance, runtime.ledger, request.run_id)
    not_good: list[Outcome] = []
    room = _MOST_SHOWN
    for report in decide_and_load(runtime, config, request, is_live):
        failpoint(Failpoint.BEFORE_EVENTS, report.table)
        shown = list(refused_changes(runtime, report, now, room))
        room -= len(shown)
        yield from events_of(context, runtime, request, report, shown)
        not_good += [outcome for outcome in report.outcomes if not outcome.verdict.is_good]
    told = told_backfill(context.run.tags, not_good)
    if told is not None:
        context.log.warning(told)
    return [outcome for outcome in not_good if outcome.fails_the_run]


KINDS = {
    table.key: AcceptanceKind.MISSING if table in RAW_TABLES.values() else AcceptanceKind.CHANGE
    for table in GRAPH_TABLES
}
SHARED = frozenset(table.key for table in GRAPH_TABLES if table.kind.is_shared)


REPORT_KEY = dg.AssetKey(["ops", "health_report"])
_DESCRIPTION = """One page that shows how everything stands: days x tables, figures, revisions of published numbers, and
what waits for an operator with the command that answers it.

**It has no partitions**, and no table depends on it: the page is drawn from the ledger, without Spark, whenever the asset is
materialized. `tidemark report --out FILE` draws the same page."""


def health_asset(settings: Settings) -> dg.AssetsDefinition:
    """Return the asset; it is part of no load, pool, sensor or backfill."""

    @dg.asset(
        key=REPORT_KEY,
        config_schema={},
        description=_DESCRIPTION,
        owners=settings.owners,
        group_name="ops",
        kinds={"html"},
        tags={"layer": "ops"},
        metadata={"dagster/uri": settings.health_report.absolute().as_uri()},
    )
    def health_report(clock: dg.ResourceParam[Clock]) -> dg.MaterializeResult[None]:
        from pipeline_assets.orchestration.health_page import tiles, write_page  # noqa: PLC0415 - charts' library makes folders

        try:
            with own_ledger(settings) as ledger:
                report = read_health(ledger, settings, clock.now())
            path = write_page(report, settings.health_report)
        except TransientError as error:
            raise dg.RetryRequested(max_retries=2, seconds_to_wait=10) from tellable(error)
        except TidemarkError as error:
            raise dg.Failure(str(error), allow_retries=False) from tellable(error)
        waiting = [
            (f"{one.first} to {one.last}", ", ".join(one.tables), one.reason, one.commands[-1])
            for one in report.for_a_person
        ]
        waiting += [("", f"notices to {one.place}", one.reason, one.command or one.hint) for one in report.troubles]
        waiting += [("", one.origin, one.reason, one.hint) for one in report.golden_faults]
        metadata: dict[str, Any] = {
            "page": dg.MetadataValue.url(path.as_uri()),
            "file": dg.MetadataValue.path(path),
            "waits_for_a_person": report.waiting,
            "red_days": len({one.day for one in report.calendar.red}) if report.calendar is not None else 0,
            "revisions": len(report.revisions),
            "figures": markdown_table(("", "", ""), [(tile.name, tile.value, tile.note) for tile in tiles(report)]),
        }
        if waiting:
            metadata["what waits"] = markdown_table(("days", "tables", "reason", "answer"), waiting)
        return dg.MaterializeResult(metadata=metadata)

    return health_report


def health_job() -> "dg.UnresolvedAssetJobDefinition":
    """Return the job that writes the page."""
    selection = dg.AssetSelection.assets(REPORT_KEY)
    return dg.define_asset_job("health_report", selection, description="Draw the page of health from the ledger.")
