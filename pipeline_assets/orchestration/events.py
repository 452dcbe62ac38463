"""The Dagster events of a load: materializations, check evaluations and the failure that names every reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (  # no public name in Dagster 1.13
    AssetCheckEvaluationTargetMaterializationData as Target,
)
from dagster._core.storage.tags import BACKFILL_ID_TAG

from pipeline_assets.domain.checks import Check, CheckRule, Evaluation, not_evaluated
from pipeline_assets.domain.golden import GoldenComparison
from pipeline_assets.domain.golden import evaluation as golden_evaluation
from pipeline_assets.domain.notices import Notice
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.diff.difference import Difference, lines_of
from pipeline_assets.load.golden import compare_recorded
from pipeline_assets.load.request import LoadRequest, Outcome, TableReport, standing_outcomes
from pipeline_assets.orchestration.event_text import (
    changed_day,
    data_version,
    description,
    markdown_blocks,
    markdown_list,
    markdown_text,
    metadata_of,
    verdicts_text,
)
from pipeline_assets.orchestration.specs import UNCOUNTED, asset_key
from pipeline_assets.tables.registry import GRAPH_TABLES
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger

_MOST_DAYS = 10
"""Days that a run's log names."""


def events_of(
    context: dg.AssetExecutionContext,
    request: LoadRequest,
    table: Table,
    report: TableReport,
    others: Mapping[date, Sequence[Outcome]],
    shown: Sequence[Difference] = (),
    changes: Sequence[Notice] = (),
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Yield materializations first, then evaluations that target them: the UI drops an evaluation older than its target."""
    key = asset_key(table)
    calendar = context.assets_def.specs_by_key[key].partitions_def
    by_day = _by_partition(request, table, report)
    reported = []
    for day, outcomes in sorted(by_day.items()):
        partition = day.isoformat()
        # A day outside the calendar has no partition; only the ledger and the log report it.
        if calendar is None or not calendar.has_partition_key(partition):
            continue
        is_requested = day in request.days
        if not is_requested and not any(_is_news(outcome) for outcome in outcomes):
            continue
        # A partition covers all projects, including those that this run did not load.
        everyone = sorted([*outcomes, *others.get(day, ())], key=lambda outcome: outcome.key)
        reported.append((partition, everyone, is_requested))
        if all(outcome.verdict.is_good for outcome in everyone):
            yield dg.AssetMaterialization(
                key,
                partition=partition,
                metadata={**metadata_of(everyone, report), **changed_day(table, day, changes)},
                tags={"dagster/data_version": data_version(everyone)},
            )
    targets = targets_of(context.instance, key, [partition for partition, _, _ in reported])
    for partition, outcomes, is_requested in reported:
        for check in table.checks:
            if is_requested or any(outcome.evaluations for outcome in outcomes):
                yield _evaluation(key, partition, check, outcomes, targets.get(partition), shown)


def _by_partition(request: LoadRequest, table: Table, report: TableReport) -> dict[date, list[Outcome]]:
    """Day -> outcomes to show; for shared tables a requested day shows the slice that covers it."""
    filed: dict[date, list[Outcome]] = {}
    for outcome in report.outcomes:
        filed.setdefault(outcome.key.event_date, []).append(outcome)
    requested = {day: filed[under] for day in request.days if (under := table.kind.slice_day(day)) in filed}
    return requested if table.kind.is_shared else filed | requested


def standing_evaluations(
    instance: dg.DagsterInstance, ledger: Ledger, settings: Settings, table: Table, days: Collection[date]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the recorded check evaluations of these days, for operations other than loads; skips days outside the calendar."""
    first = settings.calendar_start
    by_day: dict[date, list[Outcome]] = {}
    for outcome in standing_outcomes(ledger, table.key, table.kind.projects(settings.projects), days):
        if outcome.key.event_date >= first:
            by_day.setdefault(outcome.key.event_date, []).append(outcome)
    key = asset_key(table)
    targets = targets_of(instance, key, [day.isoformat() for day in by_day])
    for day, outcomes in sorted(by_day.items()):
        for check in table.checks:
            yield _evaluation(key, day.isoformat(), check, outcomes, targets.get(day.isoformat()))


def standing_materializations(
    ledger: Ledger, settings: Settings, table: Table, days: Collection[date]
) -> Iterator[dg.AssetMaterialization]:
    """Yield materializations of recorded days that are good in every project, for operations other than loads."""
    by_day: dict[date, list[Outcome]] = {}
    for outcome in standing_outcomes(ledger, table.key, settings.projects, days):
        if outcome.key.event_date >= settings.calendar_start:
            by_day.setdefault(outcome.key.event_date, []).append(outcome)
    head = ledger.head(table.key)
    report = TableReport(table.key, (), head.snapshot_id if head is not None else None)
    for day, outcomes in sorted(by_day.items()):
        everyone = sorted(outcomes, key=lambda outcome: outcome.key)
        if all(outcome.verdict.is_good for outcome in everyone):
            yield dg.AssetMaterialization(
                asset_key(table),
                partition=day.isoformat(),
                metadata=metadata_of(everyone, report),
                tags={"dagster/data_version": data_version(everyone)},
            )


def _is_news(outcome: Outcome) -> bool:
    has_recovered = outcome.verdict.is_good and not outcome.was_good
    return has_recovered or outcome.verdict in (Verdict.PUBLISHED, Verdict.REFUSED)


def standing_elsewhere(ledger: Ledger, settings: Settings, report: TableReport) -> dict[date, list[Outcome]]:
    """Return day -> recorded outcomes of its slices that are missing in this report, in the configured projects."""
    days = {outcome.key.event_date for outcome in report.outcomes}
    named = {outcome.key for outcome in report.outcomes}
    by_day: dict[date, list[Outcome]] = {}
    for outcome in standing_outcomes(ledger, report.table, settings.projects, days):
        if outcome.key not in named:
            verdict = Verdict.UNCHANGED if outcome.verdict.is_good else outcome.verdict
            by_day.setdefault(outcome.key.event_date, []).append(replace(outcome, verdict=verdict))
    return by_day


def targets_of(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: list[str]) -> dict[str, Target]:
    """Return the latest materialization of each partition, with one query per table."""
    if not partitions:
        return {}
    targets = {}
    latest = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, set(partitions)
    )
    if not latest:
        return {}
    wanted = dg.AssetRecordsFilter(asset_key=key, storage_ids=list(latest.values()))
    records = instance.fetch_materializations(wanted, limit=len(latest)).records
    for record in records:
        partition = record.partition_key
        if partition is not None:
            targets[partition] = Target(
                storage_id=record.storage_id,
                run_id=record.event_log_entry.run_id,
                timestamp=record.event_log_entry.timestamp,
            )
    return targets


def _evaluation(
    key: dg.AssetKey,
    partition: str,
    check: CheckRule,
    outcomes: Sequence[Outcome],
    target: Target | None,
    shown: Sequence[Difference] = (),
) -> dg.AssetCheckEvaluation:
    """One evaluation for all projects of a day; it passes only where every project passed."""
    evaluations: list[tuple[str, Evaluation]] = [
        (outcome.key.project_id, evaluation)
        for outcome in outcomes
        for evaluation in outcome.evaluations
        if evaluation.check == check
    ]
    bad = [(project, evaluation) for project, evaluation in evaluations if not evaluation.is_passed]
    # A waiting day has no evaluation of its own, nor has one with lost files; the reason is what it waits for.
    waiting = [
        o
        for o in outcomes
        if not o.verdict.is_good and all(evaluation.check == Check.FILES_ARE_THERE for evaluation in o.evaluations)
    ]
    figures: dict[str, float] = {}
    for _, evaluation in evaluations:
        for name, value in evaluation.figures.items():
            figures[name] = figures.get(name, 0) + value
    reasons = [f"{project}: {evaluation.reason}. {evaluation.hint}" for project, evaluation in bad]
    reasons += [
        f"{outcome.key.project_id}: {outcome.verdict.value}, {outcome.reason}. {outcome.hint}" for outcome in waiting
    ]
    evaluated_projects = {project for project, _ in evaluations} | {outcome.key.project_id for outcome in waiting}
    unsaid = not_evaluated(check)
    reasons += [
        f"{outcome.key.project_id}: {unsaid.reason}. {unsaid.hint}"
        for outcome in outcomes
        if outcome.key.project_id not in evaluated_projects
    ]
    is_only_early = bool(reasons) and all(outcome.is_early or outcome.verdict.is_good for outcome in outcomes)
    is_error = check.is_blocking and not is_only_early
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check.name,
        partition=partition,
        passed=not reasons,
        blocking=False,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        target_materialization_data=target,
        description=markdown_text(reasons) or None,
        metadata={
            "verdict": verdicts_text(outcomes),
            **_notes(evaluations),
            **(_looks(key, partition, shown) if bad and check == Check.CHANGE_IS_EXPLAINED else {}),
            **figures,
        },
    )


def _notes(evaluations: Sequence[tuple[str, Evaluation]]) -> dict[str, Any]:
    """Reasons of passed checks, such as which day's items were used."""
    told = [
        f"{project}: {evaluation.reason}"
        for project, evaluation in evaluations
        if evaluation.is_passed and evaluation.reason
    ]
    return {"note": markdown_list(told)} if told else {}


def _looks(key: dg.AssetKey, partition: str, shown: Sequence[Difference]) -> dict[str, Any]:
    """The differences between refused and published content, where they were computed, and the command that shows all.

    Leaves out delivered values, event ids and times: neither retention nor exclusions remove them from Dagster's event log.
    """
    table = key.to_user_string()
    blocks = [
        lines_of(difference, with_values=False)
        for difference in shown
        if (difference.table, str(difference.key.event_date)) == (table, partition)
    ]
    difference_shown = {"difference": markdown_blocks(blocks)} if blocks else {}
    return {**difference_shown, "look": f"tidemark diff {table} {partition} --html DIR"}


def told_backfill(tags: Mapping[str, str], outcomes: Collection[Outcome]) -> str | None:
    """How Dagster ends the backfill of a run over days that get no materialization; None for other runs."""
    days = sorted({str(one.key.event_date) for one in outcomes if one.is_requested and not one.verdict.is_good})
    if BACKFILL_ID_TAG not in tags or not days:
        return None
    which = few(days, _MOST_DAYS)
    return (
        f"{which}: no materialization, for these days wait, are held or are refused; their checks say why. {UNCOUNTED}"
    )


def failure_of(failed: Sequence[Outcome]) -> dg.Failure:
    """Return the failure that names every slice and its reason, causes before their waiting slices. A retry would fail again."""
    order = [table.key for table in GRAPH_TABLES]
    reasons = [
        f"{outcome.key.event_date} {outcome.table} {outcome.key.project_id} {outcome.verdict.value}: {outcome.reason}"
        + (f". {outcome.hint}" if outcome.hint else "")
        for outcome in sorted(
            failed, key=lambda outcome: (outcome.verdict is Verdict.WAITING, outcome.key, order.index(outcome.table))
        )
    ]
    metadata: dict[str, Any] = {"reasons": markdown_list(reasons), "slices": len(failed)}
    return dg.Failure(description(reasons, "\n"), metadata=metadata, allow_retries=False)


def golden_evaluations(
    instance: dg.DagsterInstance, ledger: Ledger, settings: Settings, table: Table, days: Collection[date]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield `reconciles_with_golden` per day for all projects together; a day without totals was not compared and has none."""
    if not days:
        return
    by_day: dict[date, list[GoldenComparison]] = {}
    for one in compare_recorded(ledger, settings, settings.projects, min(days), max(days), (table.key,)):
        # A day outside the calendar has no partition.
        if one.total.key.event_date in days and one.total.key.event_date >= settings.calendar_start:
            by_day.setdefault(one.total.key.event_date, []).append(one)
    key = asset_key(table)
    targets = targets_of(instance, key, [day.isoformat() for day in by_day])
    for day, comparisons in sorted(by_day.items()):
        found = golden_evaluation(comparisons)
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=found.check.name,
            partition=day.isoformat(),
            passed=found.is_passed,
            blocking=False,
            severity=dg.AssetCheckSeverity.WARN,
            target_materialization_data=targets.get(day.isoformat()),
            description=markdown_text([text for text in (found.reason, found.hint) if text]) or None,
            metadata=dict(found.figures),
        )
