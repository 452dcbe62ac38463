"""The Dagster events of a load: materializations, check evaluations, the failure that names every reason; and bounded text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import groupby, islice
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (  # no public name in Dagster 1.13
    AssetCheckEvaluationTargetMaterializationData as Target,
)
from dagster._core.storage.tags import BACKFILL_ID_TAG

from pipeline_assets.domain.checks import Check, CheckRule, not_evaluated
from pipeline_assets.domain.golden import evaluation as golden_evaluation
from pipeline_assets.domain.notices import Notice, measures_text
from pipeline_assets.domain.plain_text import as_markdown, bounded, fenced, few, shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Verdict
from pipeline_assets.inspection.diff import Difference, lines_of
from pipeline_assets.load.golden import compare_recorded
from pipeline_assets.load.runtime import LoadRequest, Outcome, Runtime, TableReport, standing_outcomes
from pipeline_assets.orchestration.specs import UNCOUNTED, asset_key
from pipeline_assets.tables.registry import GRAPH_TABLES, downstream_of, table_by_key
from pipeline_assets.tables.table import Table
from resources.ledger.store import Ledger

MOST_LINES = 100
"""Dagster keeps each event forever, as one row of its database."""
LONGEST_DESCRIPTION = 10_000
"""In characters; Dagster shows it in full."""
LONGEST_TAG = 500


def markdown_list(items: Iterable[object]) -> dg.MarkdownMetadataValue:
    """Return a list with one item per line."""
    return dg.MetadataValue.md(bounded("\n".join(_items([*items], MOST_LINES)), 4 * LONGEST_DESCRIPTION))


def markdown_table(
    names: Sequence[str], rows: Iterable[Sequence[object]], *, lists: Mapping[str, Collection[object]] | None = None
) -> dg.MarkdownMetadataValue:
    """Return a table, followed by lists, each with its name and length."""
    rows = list(rows)
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(as_markdown(cell) for cell in row)} |" for row in rows[:MOST_LINES]]
    lines += [f"\n{len(rows) - MOST_LINES:,} more rows"] if len(rows) > MOST_LINES else []
    for name, items in (lists or {}).items():
        lines += [f"\n{name}: {len(items):,}", *_items(items, MOST_LINES // 5)] if items else []
    return dg.MetadataValue.md(bounded("\n".join(lines), 4 * LONGEST_DESCRIPTION))


def description(parts: Iterable[object], separator: str = "; ") -> str:
    """Join parts to plain text, each on one line; cuts what is too long and says how much."""
    parts = list(parts)
    more = [f"and {len(parts) - MOST_LINES:,} more"] if len(parts) > MOST_LINES else []
    return bounded(separator.join([*map(shown, parts[:MOST_LINES]), *more]), LONGEST_DESCRIPTION)


def _items(items: Collection[object], most: int) -> list[str]:
    more = [f"- and {len(items) - most:,} more"] if len(items) > most else []
    return [*(f"- {as_markdown(item)}" for item in islice(items, most)), *more]


CHANGED, REFRESH = "changed final day", "to refresh"


def data_version(outcomes: Sequence[Outcome]) -> str:
    """Return a version of the day's content in all projects, independent of the projects that the run loaded."""
    whole = "+".join(str(outcome.digest) for outcome in outcomes if outcome.digest != EMPTY) or str(EMPTY)
    return whole if len(whole) <= LONGEST_TAG else hashlib.sha256(whole.encode()).hexdigest()


def _summed(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums of figures; of times and ages the largest."""
    total: dict[str, float] = {}
    for name, value in (item for of in figures for item in of.items()):
        is_largest = name.endswith(("_seconds", "_days")) and name in total
        total[name] = max(total[name], value) if is_largest else total.get(name, 0) + value
    return total


def verdicts_text(outcomes: Sequence[Outcome]) -> str:
    """`10001: published, provisional; 10002: refused`."""
    finality = {None: "", True: ", final", False: ", provisional"}
    return description(f"{o.key.project_id}: {o.verdict.value}{finality[o.is_final]}" for o in outcomes)


_NEWS = (Verdict.PUBLISHED, Verdict.REFUSED)
Event = dg.AssetMaterialization | dg.AssetCheckEvaluation
Shown = Sequence[Difference]


def events_of(
    context: dg.AssetExecutionContext, runtime: Runtime, request: LoadRequest, report: TableReport, shown: Shown = ()
) -> Iterator[Event]:
    """Yield the events of a load's report on one table; `shown`: differences of refused slices."""
    ledger, settings, table = runtime.ledger, runtime.settings, table_by_key(report.table)
    calendar = context.assets_def.specs_by_key[asset_key(table)].partitions_def
    filed = _by_day(report.outcomes)
    requested = {day: filed[under] for day in request.days if (under := table.kind.slice_day(day)) in filed}
    named = {outcome.key for outcome in report.outcomes}
    known = standing_outcomes(ledger, report.table, settings.projects, filed.keys())
    unnamed = (one for one in known if one.key not in named)
    others = _by_day(replace(one, verdict=Verdict.UNCHANGED) if one.verdict.is_good else one for one in unnamed)
    # A partition covers all projects, also those not loaded here. A day outside the calendar has no partition.
    by_day = {
        day: [*outcomes, *others.get(day, ())]
        for day, outcomes in (requested if table.kind.is_shared else filed | requested).items()
        if calendar is not None and calendar.has_partition_key(day.isoformat())
        if day in request.days
        or any(one.verdict in _NEWS or (one.verdict.is_good and not one.was_good) for one in outcomes)
    }
    changes = ledger.outbox.of_run(request.run_id, report.table)
    yield from _events(context.instance, table, by_day, report, request.days, shown, changes)
    yield from golden_evaluations(context.instance, ledger, settings, table, filed.keys())


def standing_events(
    instance: dg.DagsterInstance, runtime: Runtime, places: Iterable[tuple[str, date]], *, is_materialized: bool = False
) -> Iterator[Event]:
    """Yield the records of these tables and days for operations other than loads; skips days outside the calendar.

    `is_materialized`: good days get materializations as well. Yield these events in a run: Dagster keeps one evaluation per day
    and run, and only one without a run.
    """
    ledger, settings = runtime.ledger, runtime.settings
    days: dict[str, set[date]] = {}
    for name, day in places:
        days.setdefault(name, set()).add(day)
    for name, changed in sorted(days.items()):
        table, head = table_by_key(name), ledger.head(name)
        outcomes = standing_outcomes(ledger, name, table.kind.projects(settings.projects), changed)
        by_day = _by_day(one for one in outcomes if one.key.event_date >= settings.calendar_start)
        report = TableReport(name, (), head.snapshot_id if head is not None else None) if is_materialized else None
        yield from _events(instance, table, by_day, report, changed)


def _by_day(outcomes: Iterable[Outcome]) -> dict[date, list[Outcome]]:
    by_day: dict[date, list[Outcome]] = {}
    for outcome in outcomes:
        by_day.setdefault(outcome.key.event_date, []).append(outcome)
    return by_day


def _events(
    instance: dg.DagsterInstance,
    table: Table,
    by_day: Mapping[date, Sequence[Outcome]],
    report: TableReport | None,
    requested: Collection[date],
    shown: Shown = (),
    changes: Sequence[Notice] = (),
) -> Iterator[Event]:
    """Yield materializations before the evaluations that target them: the UI drops an evaluation older than its target."""
    by_day = {day: sorted(outcomes, key=lambda outcome: outcome.key) for day, outcomes in sorted(by_day.items())}
    for day, outcomes in by_day.items():
        if report is None or not all(outcome.verdict.is_good for outcome in outcomes):
            continue
        rows = sum(outcome.digest.rows for outcome in outcomes)
        metadata: dict[str, Any] = {
            **_summed(outcome.figures for outcome in outcomes),
            "verdict": verdicts_text(outcomes),
            "dagster/partition_row_count": rows,
            "rows": rows,
            "snapshot_id": dg.MetadataValue.text(str(report.snapshot_id)),
        }
        if report.pins and not {outcome.key for outcome in outcomes}.isdisjoint(report.built):
            metadata["built_from"] = description(f"{name} {pin}" for name, pin in sorted(report.pins.items()))
        if changed := [
            f"{one.key.project_id}: {measures_text(one.measures)}" for one in changes if one.key.event_date == day
        ]:
            metadata[CHANGED] = markdown_list(changed)
            below = (one.key for one in downstream_of(table.key))
            metadata[REFRESH] = markdown_list(f"{name} {day}" for name in (table.key, *below))
        tags = {"dagster/data_version": data_version(outcomes)}
        yield dg.AssetMaterialization(asset_key(table), partition=day.isoformat(), metadata=metadata, tags=tags)
    evaluation = _evaluations(instance, table, by_day)
    for day, outcomes in by_day.items():
        here = [one for one in shown if (one.table, one.key.event_date) == (table.key, day)]
        for check in table.checks:
            if day in requested or any(outcome.evaluations for outcome in outcomes):
                reasons, metadata, is_error = _judged(f"{table.key} {day}", check, outcomes, here)
                yield evaluation(check, day, reasons, metadata, is_error=is_error)


def _evaluations(
    instance: dg.DagsterInstance, table: Table, days: Collection[date]
) -> Callable[..., dg.AssetCheckEvaluation]:
    """A function that makes the evaluation of a check and day, which targets the day's latest materialization."""
    key, targets = asset_key(table), dict[str, Target]()
    latest = days and instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, {day.isoformat() for day in days}
    )
    if latest:
        wanted = dg.AssetRecordsFilter(asset_key=key, storage_ids=list(latest.values()))
        for record in instance.fetch_materializations(wanted, limit=len(latest)).records:
            name, of = record.partition_key, record.event_log_entry
            if name is not None:
                targets[name] = Target(storage_id=record.storage_id, run_id=of.run_id, timestamp=of.timestamp)

    def evaluation(
        check: CheckRule, day: date, reasons: Sequence[str], metadata: Mapping[str, Any], *, is_error: bool = False
    ) -> dg.AssetCheckEvaluation:
        return dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=check.name,
            partition=day.isoformat(),
            passed=not reasons,
            blocking=False,
            severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
            target_materialization_data=targets.get(day.isoformat()),
            # Dagster shows descriptions of evaluations as Markdown.
            description=bounded("; ".join(map(as_markdown, reasons[:MOST_LINES])), LONGEST_DESCRIPTION) or None,
            metadata=metadata,
        )

    return evaluation


def _judged(
    place: str, check: CheckRule, outcomes: Sequence[Outcome], shown: Shown
) -> tuple[list[str], dict[str, Any], bool]:
    """Why the check does not pass for a table and day, what is known of it, and whether that is an error."""
    evaluations = [(of.key.project_id, one) for of in outcomes for one in of.evaluations if one.check == check]
    # A waiting day or one with lost files has no evaluation, so it shows the reason of its verdict.
    lost = Check.FILES_ARE_THERE
    waiting = [o for o in outcomes if not o.verdict.is_good and all(one.check == lost for one in o.evaluations)]
    evaluated = {project for project, _ in evaluations} | {outcome.key.project_id for outcome in waiting}
    unsaid = not_evaluated(check)
    bad = [f"{project}: {one.reason}. {one.hint}" for project, one in evaluations if not one.is_passed]
    reasons = [*bad, *(f"{o.key.project_id}: {o.verdict.value}, {o.reason}. {o.hint}" for o in waiting)]
    names = (outcome.key.project_id for outcome in outcomes)
    reasons += [f"{name}: {unsaid.reason}. {unsaid.hint}" for name in names if name not in evaluated]
    metadata: dict[str, Any] = {"verdict": verdicts_text(outcomes), **_summed(one.figures for _, one in evaluations)}
    if notes := [f"{project}: {one.reason}" for project, one in evaluations if one.is_passed and one.reason]:
        metadata["note"] = markdown_list(notes)
    if bad and check == Check.CHANGE_IS_EXPLAINED:
        metadata["look"] = f"tidemark diff {place} --html DIR"
        # Delivered values, event ids and times stay out: neither retention nor exclusions remove them from Dagster's log.
        if blocks := [fenced(lines_of(difference, with_values=False)) for difference in shown]:
            metadata["difference"] = dg.MetadataValue.md("\n\n".join(blocks))
    is_only_early = bool(reasons) and all(outcome.is_early or outcome.verdict.is_good for outcome in outcomes)
    return reasons, metadata, check.is_blocking and not is_only_early


def told_backfill(tags: Mapping[str, str], outcomes: Collection[Outcome]) -> str | None:
    """How Dagster ends the backfill of a run over days that get no materialization; None for other runs."""
    days = sorted({str(one.key.event_date) for one in outcomes if one.is_requested and not one.verdict.is_good})
    if BACKFILL_ID_TAG not in tags or not days:
        return None
    why = "no materialization, for these days wait, are held or are refused; their checks say why"
    return f"{few(days, 10)}: {why}. {UNCOUNTED}"


def failure_of(failed: Sequence[Outcome]) -> dg.Failure:
    """Return the failure that names every slice and its reason, causes before their waiting slices. A retry would fail again."""
    order = [table.key for table in GRAPH_TABLES]
    reasons = []
    for one in sorted(failed, key=lambda one: (one.verdict is Verdict.WAITING, one.key, order.index(one.table))):
        why = ". ".join(filter(None, (one.reason, one.hint)))
        reasons.append(f"{one.key.event_date} {one.table} {one.key.project_id} {one.verdict.value}: {why}")
    metadata: dict[str, Any] = {"reasons": markdown_list(reasons), "slices": len(failed)}
    return dg.Failure(description(reasons, "\n"), metadata=metadata, allow_retries=False)


def golden_evaluations(
    instance: dg.DagsterInstance, ledger: Ledger, settings: Settings, table: Table, days: Collection[date]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield `reconciles_with_golden` per day for all projects together, for days with totals."""
    if not days:
        return
    recorded = compare_recorded(ledger, settings, settings.projects, min(days), max(days), (table.key,))
    by_day = {day: [*of_day] for day, of_day in groupby(recorded, lambda one: one.total.key.event_date) if day in days}
    evaluation = _evaluations(instance, table, by_day)
    for day, comparisons in by_day.items():
        if day >= settings.calendar_start:
            found = golden_evaluation(comparisons)
            reasons = [text for text in (found.reason, found.hint) if text]
            yield evaluation(found.check, day, reasons, found.figures)
