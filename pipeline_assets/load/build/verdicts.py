"""Verdicts on the slices of a derived table, built or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pyspark.sql.functions as F

from pipeline_assets.domain.changes import Baseline, CauseKind, KeyChange, explain_change, next_baseline
from pipeline_assets.domain.checks import Check, Evaluation, complete
from pipeline_assets.domain.records import Rejection, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Slice, Source, Verdict, neighbourhood
from pipeline_assets.load.build.builder import Builder, Inputs, JudgedSlice, StagedSlices, TablePlan
from pipeline_assets.load.runtime import Outcome, outcome_of
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.table import AGGREGATE
from resources.iceberg.metadata import slices_condition


def blocked_by(links: Iterable[tuple[Slice, Slice]], blocked: Collection[Slice]) -> dict[Slice, tuple[Slice, ...]]:
    """Slice that is not blocked -> blocked slices that it is linked to, also through others. `links`: in either order."""
    neighbours: dict[Slice, set[Slice]] = {}
    for left, right in links:
        neighbours.setdefault(left, set()).add(right)
        neighbours.setdefault(right, set()).add(left)
    tied_to: dict[Slice, set[Slice]] = {}
    for start in sorted(neighbours.keys() & set(blocked)):
        reached, to_visit = {start}, [start]
        while to_visit:
            for neighbour in neighbours[to_visit.pop()] - reached:
                reached.add(neighbour)
                to_visit.append(neighbour)
        for key in reached - set(blocked):
            tied_to.setdefault(key, set()).add(start)
    return {key: tuple(sorted(tied)) for key, tied in sorted(tied_to.items())}


def links_of(
    exchanged: Collection[tuple[Slice, Slice]], blocked: Collection[Slice], built: Collection[Slice]
) -> set[tuple[Slice, Slice]]:
    """The pairs of slices that are both built or blocked."""
    relevant = {*blocked, *built}
    return {(left, right) for left, right in exchanged if left in relevant and right in relevant}


def waiting_reason(days: Iterable[date]) -> str:
    """Why a slice waits for these days; the same text for the same days."""
    named = ", ".join(day.isoformat() for day in days)
    return f"shares events with {named}, which cannot be published now; alone it would lose or double them"


WAITING_HINT = "It is published together with them: load or recover those days, or accept their change with a reason"


def brought_by_recoveries(
    plan: TablePlan, builder: Builder[Any], staged: StagedSlices, decision: SlicePlan
) -> Mapping[str, float]:
    """Measure -> rise by these objects' rows, if new to the baseline and arrived within the reprocessing window of the day."""
    record, key, runtime = decision.record, decision.key, plan.runtime
    if record is None or not decision.was_final or plan.table.kind.is_shared:
        return {}
    window = timedelta(days=runtime.settings.reprocessing_window_days)
    first, last = key.event_date, key.event_date + window
    since = (record.baseline.since if record.baseline is not None else None) or record.final_at or ""
    written = runtime.ledger.recoveries.brought(key.project_id, first, last, since)
    if not written:
        return {}
    held = runtime.ledger.deliveries(Source.BACKFILL, [key.project_id], first, last)
    names = [name for name, size in written.items() if name in held and held[name].size_bytes == size]

    snapshot = staged.snapshot_id if plan.table is REFINED_EVENTS else plan.pins[REFINED_EVENTS.key]
    events = runtime.lakehouse.read(REFINED_EVENTS, snapshot).where(slices_condition(REFINED_EVENTS, [key]))
    is_theirs = F.col("_object_key").isin(names)
    if plan.table.kind is not AGGREGATE:
        # An event adds at most one to a count.
        return dict.fromkeys(plan.table.measures, events.where(is_theirs).count())
    inputs = Inputs(runtime, lambda _: events.where(~is_theirs), lambda _: ())
    rows = builder.rows_from(runtime.settings, key, inputs)
    totals = rows.agg(*[measure.total().alias(name) for name, measure in plan.table.measures.items()]).collect()[0]
    after = staged.audits[key].measures
    # Counts stay integers, which distinguishes them from money.
    return {name: value - type(value)(totals[name] or 0) for name, value in after.items()}


def judge(plan: TablePlan, builder: Builder[Any], staged: StagedSlices) -> dict[Slice, JudgedSlice]:
    """Evaluate every check of every staged slice; return slice -> its record and outcome."""
    todo, table, settings = plan.to_build, plan.table, plan.runtime.settings
    keys = builder.key_changes(plan, staged)
    measured: dict[Slice, tuple[Baseline, Mapping[str, float], KeyChange | None]] = {}
    how: dict[Slice, dict[str, Any]] = {}
    changes: dict[Slice, Evaluation] = {}
    for key, decision in todo.items():
        audit = staged.audits[key]
        measured[key] = baseline_of(decision.record).of(audit.measures), audit.measures, keys.get(key)
        brought = brought_by_recoveries(plan, builder, staged, decision)
        how[key] = {
            "content": str(audit.digest),
            "was_final": decision.was_final,
            "settings": settings,
            "brought": brought,
        }
        reason, cause = plan.request.accepted.get((table.key, key)), decision.cause.text
        changes[key] = explain_change(table.key, *measured[key], accepted_reason=reason, cause=cause, **how[key])
        if changes[key].is_accepted_change:
            plan.runtime.log(f"{table.key}: {key} {changes[key].reason}")
    evaluated = {key: complete(table.checks, (*staged.audits[key].evaluations, changes[key])) for key in todo}
    failed = {key: failure for key, evaluations in evaluated.items() if (failure := _blocking_failure(evaluations))}
    waiting = _held_back(plan, builder, staged, failed)
    judged_by = judging(table, settings)
    judged: dict[Slice, JudgedSlice] = {}
    for key, decision in todo.items():
        audit, evaluations = staged.audits[key], evaluated[key]
        prior = decision.record or SliceRecord(table.key, key, Verdict.PUBLISHED)
        present = decision.present
        if audit.competing_digests is not None:
            present = replace(present, cross_day=audit.competing_digests)
        is_changed = False
        if key in waiting or key in failed:
            days = tuple(other.event_date for other in waiting.get(key, ()))
            verdict = Verdict.WAITING if days else Verdict.REFUSED
            why = (waiting_reason(days), WAITING_HINT) if days else (_reason(failed[key]), failed[key].hint)
            rejection = Rejection(present, judged_by, days)
            record = _blocked(prior, verdict, why, rejection=rejection, refused_evaluations=evaluations)
        else:
            # Readers see no change if the same rows return in other files.
            is_changed = audit.digest != prior.digest or decision.cause.kind is CauseKind.FILES_GONE
            baseline = None
            if decision.is_settled:
                baseline = next_baseline(*measured[key], changes[key], now=plan.request.now.isoformat(), **how[key])
            record = _passed(
                decision,
                prior,
                verdict=Verdict.PUBLISHED if is_changed else Verdict.UNCHANGED,
                digest=audit.digest,
                input_state=present,
                baseline=baseline,
                code_version=table.code_version(settings),
                figures=audit.figures,
                evaluations=evaluations,
            )
        may_repeat = key in waiting or (key in failed and decision.is_judged_again)
        figures = {**audit.figures, "rows_before": prior.digest.rows, "rows_after": audit.digest.rows}
        outcome = _outcome(
            decision,
            record,
            figures={"rows": record.digest.rows, **figures},
            evaluations=() if key in waiting else evaluations,
            is_repeat=may_repeat and _is_already_reported(plan, prior, record),
        )
        judged[key] = JudgedSlice(record, outcome, is_changed)
    return judged


def _passed(decision: SlicePlan, prior: SliceRecord, **changes: Any) -> SliceRecord:
    finality: dict[str, Any] = {"is_final": decision.is_final, "final_at": decision.final_at}
    return replace(prior, reason=None, hint=None, rejection=None, refused_evaluations=(), **finality, **changes)


def _blocked(prior: SliceRecord, verdict: Verdict, why: tuple[str | None, str | None], **changes: Any) -> SliceRecord:
    return replace(prior, verdict=verdict, reason=why[0], hint=why[1], **changes)


def baseline_of(record: SliceRecord | None) -> Baseline:
    """The baseline to measure a change against; the recorded figures without one on record."""
    if record is None or record.digest == EMPTY:
        return Baseline()
    return record.baseline if record.baseline is not None else Baseline(record.figures, content=str(record.digest))


def _held_back(
    plan: TablePlan, builder: Builder[Any], staged: StagedSlices, failed: Mapping[Slice, Evaluation]
) -> dict[Slice, tuple[Slice, ...]]:
    """Slice to build -> the blocked slices that it shares events with; reads tables only if a nearby slice is blocked."""
    todo = plan.to_build
    blocked = {decision.key for decision in plan.slices if decision.is_blocked}
    able = [
        key
        for key, decision in todo.items()
        if (decision.record is not None and decision.record.digest != EMPTY)
        or staged.audits[key].competing_digests != str(EMPTY)
    ]
    if not failed and not neighbourhood(able, plan.table.kind.exchange_days(plan.runtime.settings)) & blocked:
        return {}
    exchanged = builder.links(plan, staged)
    # If the other day is not built, a key on two days is not this slice's fault: it waits.
    on_two_days = {key for key in failed if staged.audits[key].is_on_two_days}
    blocked |= failed.keys() - on_two_days
    while True:
        waiting = blocked_by(links_of(exchanged, blocked, todo.keys()), blocked)
        if not on_two_days - waiting.keys() - blocked:
            return {key: tied for key, tied in waiting.items() if key in todo}
        blocked |= on_two_days - waiting.keys()


def _blocking_failure(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    failures = (evaluation for evaluation in evaluations if evaluation.check.is_blocking and not evaluation.is_passed)
    return next(failures, None)


def _reason(failure: Evaluation) -> str | None:
    return failure.reason if failure.check == Check.FILES_ARE_THERE else f"{failure.check.name}: {failure.reason}"


def stand(plan: TablePlan, decision: SlicePlan) -> JudgedSlice:
    """The verdict on a slice that is not built: its record keeps the published content and says why."""
    prior = decision.record or SliceRecord(plan.table.key, decision.key, Verdict.UNCHANGED)
    if decision.todo is Todo.KEEP:
        baseline = prior.baseline if decision.is_settled and decision.was_final else None
        if decision.is_settled and baseline is None:
            baseline = Baseline(prior.figures, content=str(prior.digest))
        code = prior.code_version or plan.table.code_version(plan.runtime.settings)
        changes: dict[str, Any] = {"baseline": baseline, "input_state": decision.present, "code_version": code}
        record = _passed(decision, prior, verdict=Verdict.UNCHANGED, **changes)
        is_nothing = decision.record is None and record.digest == EMPTY
        evaluations = (
            tuple(Evaluation(rule, True, figures={"rows": 0}) for rule in plan.table.checks)
            if is_nothing
            else record.evaluations
        )
        return JudgedSlice(record, _outcome(decision, record, evaluations=evaluations))
    record = _standing(prior, decision, judging(plan.table, plan.runtime.settings))
    is_refused_before = decision.todo in (Todo.KEEP_REFUSED, Todo.WAIT_TIED) and prior.run_id != plan.request.run_id
    is_repeat = is_refused_before or _is_already_reported(plan, prior, record)
    evaluations = record.refused_evaluations if record.verdict is Verdict.REFUSED else ()
    return JudgedSlice(record, _outcome(decision, record, evaluations=evaluations, is_repeat=is_repeat))


def _standing(prior: SliceRecord, decision: SlicePlan, judged_by: str) -> SliceRecord:
    if decision.todo is Todo.HOLD:
        return _blocked(prior, Verdict.HELD, (decision.reason, "Release it when the rollback has served its purpose"))
    if decision.todo is Todo.WAIT:
        hint = "It follows as soon as what it waits for is published; recover that first"
        return _blocked(prior, Verdict.WAITING, (decision.reason, hint))
    if (failure := decision.failure) is not None:
        # So that the load does not read the same delivery again.
        rejection = prior.rejection if decision.present.delivered is None else Rejection(decision.present, judged_by)
        why = _reason(failure), failure.hint
        return _blocked(prior, Verdict.REFUSED, why, rejection=rejection, refused_evaluations=(failure,))
    # Keys of other days may have changed without effect; the next comparison starts from here.
    rejection = replace(prior.rejection or Rejection(decision.present), inputs=decision.present)
    if decision.todo is Todo.WAIT_TIED:
        why = waiting_reason(rejection.waits_for), WAITING_HINT
        return _blocked(prior, Verdict.WAITING, why, rejection=rejection)
    failure = _blocking_failure(prior.refused_evaluations)
    assert failure is not None, "a refusal names what failed"
    return _blocked(prior, Verdict.REFUSED, (_reason(failure), failure.hint), rejection=rejection)


def _is_already_reported(plan: TablePlan, prior: SliceRecord, record: SliceRecord) -> bool:
    return prior.run_id != plan.request.run_id and (prior.verdict, prior.reason) == (record.verdict, record.reason)


def _outcome(decision: SlicePlan, record: SliceRecord, **changes: Any) -> Outcome:
    return outcome_of(
        record,
        is_requested=decision.is_requested,
        is_early=decision.is_early,
        is_final=decision.is_final,
        was_good=decision.record is None or decision.record.verdict.is_good,
        **changes,
    )
