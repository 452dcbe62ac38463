"""Verdicts on the slices of a derived table, those that were built and those that were not.

Contains: from audits and decisions to records and outcomes.
Add here: a rule about which built slices are published.
Does not contain: the bounds (domain/change_rule.py), building (refined.py, aggregate.py) and publishing
(rebuild.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from resources.ledger.records import SliceRecord

from pipeline_assets.domain.changes import Baseline, KeyChange
from pipeline_assets.domain.checks import Evaluation, complete, holds_nothing
from pipeline_assets.domain.change_rule import explain_change, next_baseline
from pipeline_assets.domain.slices import EMPTY, Slice, Verdict, neighbourhood
from pipeline_assets.load.build.audit import Audit
from pipeline_assets.load.build.refined import linked_slices
from pipeline_assets.load.build.linked_slices import WAITING_CURE, blocked_by, links_of, waiting_reason, waits_for
from pipeline_assets.load.build.key_changes import explain_keys
from pipeline_assets.load.build.step import DerivedStep
from pipeline_assets.load.staleness.inputs import CODE_KEY, COMPETING_KEY, WAITS_KEY, judging
from pipeline_assets.load.request import Outcome
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.tables.refined_events import REFINED_EVENTS


def judge(step: DerivedStep, todo: Mapping[Slice, SlicePlan], staged_id: int) -> set[Slice]:
    """Evaluate every check of every staged slice; returns the slices to publish."""
    keys = explain_keys(step, todo, staged_id) if step.table.key == REFINED_EVENTS.key else {}
    changes = {key: _change(step, decision, keys.get(key)) for key, decision in todo.items()}
    evaluated = {key: complete(step.table.checks, (*step.audits[key].evaluations, changes[key])) for key in todo}
    failed = {
        key: failure
        for key, evaluations in evaluated.items()
        if (failure := next((one for one in evaluations if one.check.is_blocking and not one.is_passed), None))
    }
    for key, change in sorted(changes.items()):
        if change.is_accepted_change:
            step.runtime.log(f"{step.table.key}: {key} {change.reason}")
    waiting = _held_back(step, todo, staged_id, failed) if step.table.key == REFINED_EVENTS.key else {}
    code, judged_by = step.table.code_version(step.runtime.settings), judging(step.table, step.runtime.settings)
    changed: set[Slice] = set()
    for key, decision in todo.items():
        audit, evaluations = step.audits[key], evaluated[key]
        prior = decision.record or SliceRecord(step.table.key, key, Verdict.PUBLISHED)
        present = _present(decision, audit)
        figures = {**audit.figures, "rows_before": prior.digest.rows, "rows_after": audit.digest.rows}
        if key in waiting:
            days = waits_for(waiting[key])
            step.records[key] = replace(
                prior, verdict=Verdict.WAITING, reason=waiting_reason(days), hint=WAITING_CURE,
                refused_state={**present, CODE_KEY: judged_by, WAITS_KEY: days}, refused_evaluations=evaluations,
            )  # fmt: skip
            evaluations = ()
        elif key in failed:
            failure = failed[key]
            step.records[key] = replace(
                prior, verdict=Verdict.REFUSED, reason=_reason(failure), hint=failure.hint,
                refused_state={**present, CODE_KEY: judged_by}, refused_evaluations=evaluations,
            )  # fmt: skip
        else:
            is_same = audit.digest == prior.digest
            if not is_same:
                changed.add(key)
            step.records[key] = replace(
                prior, verdict=Verdict.UNCHANGED if is_same else Verdict.PUBLISHED, reason=None, hint=None,
                is_final=decision.is_final, final_at=decision.final_at, digest=audit.digest, input_state=present,
                baseline=_next_baseline(step, decision, changes[key], keys.get(key)), code_version=code,
                refused_state=None, figures=audit.figures, evaluations=evaluations, refused_evaluations=(),
            )  # fmt: skip
        outcome = _outcome(step, decision, step.records[key], evaluations, figures)
        is_told = key in waiting and _is_told(step, prior, step.records[key])
        step.outcomes[key] = replace(outcome, is_repeat=is_told)
    return changed


def _change(step: DerivedStep, decision: SlicePlan, keys: KeyChange | None) -> Evaluation:
    measures = step.audits[decision.key].measures
    return explain_change(
        step.table.key,
        baseline_of(decision.record).of(measures),
        measures,
        keys,
        content=str(step.audits[decision.key].digest),
        was_final=decision.was_final,
        accepted_reason=step.request.accepted.change(step.table.key, decision.key),
        cause=decision.cause,
        settings=step.runtime.settings,
    )


def baseline_of(record: SliceRecord | None) -> Baseline:
    """What a change of the slice is measured against; the present figures where no baseline is on record."""
    if record is None or record.digest == EMPTY:
        return Baseline()
    return record.baseline if record.baseline is not None else Baseline(record.figures, content=str(record.digest))


def _next_baseline(
    step: DerivedStep, decision: SlicePlan, change: Evaluation, keys: KeyChange | None
) -> Baseline | None:
    """Of a slice that passes."""
    if not decision.is_final:
        return None
    audit = step.audits[decision.key]
    known, content = baseline_of(decision.record).of(audit.measures), str(audit.digest)
    return next_baseline(
        known, audit.measures, keys, change, content=content, was_final=decision.was_final, settings=step.runtime.settings
    )


def _held_back(
    step: DerivedStep, todo: Mapping[Slice, SlicePlan], staged_id: int, failed: Mapping[Slice, Evaluation]
) -> dict[Slice, tuple[Slice, ...]]:
    """Slice to build -> the blocked slices it shares events with; asked of the tables only where anything is blocked."""
    blocked = {decision.key for decision in step.decisions if decision.is_blocked}
    # A slice that held nothing and shares no key has nothing to exchange.
    able = [key for key in todo if _holds_rows(todo[key].record) or step.audits[key].competing_digests != str(EMPTY)]
    if not failed and not neighbourhood(able, step.runtime.settings.dedupe_window_days) & blocked:
        return {}
    exchanged = linked_slices(step.runtime, step.pins, step.base_id, staged_id, sorted(todo))
    # A key on two days is no fault of this slice where the other day is not built.
    on_two_days = {key for key in failed if step.audits[key].is_on_two_days}
    blocked |= failed.keys() - on_two_days
    waiting = blocked_by(links_of(exchanged, blocked, todo.keys()), blocked)
    if on_two_days - waiting.keys():
        blocked |= on_two_days - waiting.keys()
        waiting = blocked_by(links_of(exchanged, blocked, todo.keys()), blocked)
    return {key: tied for key, tied in waiting.items() if key in todo}


def _holds_rows(record: SliceRecord | None) -> bool:
    return record is not None and record.digest != EMPTY


def _present(decision: SlicePlan, audit: Audit) -> dict[str, str]:
    return {**decision.present, COMPETING_KEY: audit.competing_digests} if audit.competing_digests is not None else dict(decision.present)


def _reason(failure: Evaluation) -> str:
    return f"{failure.check.name}: {failure.reason}"


def stand(step: DerivedStep, decision: SlicePlan) -> None:
    """A slice that is not built: its record keeps the published content and says why."""
    prior = decision.record or SliceRecord(step.table.key, decision.key, Verdict.UNCHANGED)
    if decision.todo is Todo.KEEP:
        record = replace(
            prior, verdict=Verdict.UNCHANGED, reason=None, hint=None, is_final=decision.is_final,
            final_at=decision.final_at, baseline=_kept_baseline(decision, prior), input_state=decision.present,
            refused_state=None, refused_evaluations=(),
            code_version=prior.code_version or step.table.code_version(step.runtime.settings),
        )  # fmt: skip
        step.records[decision.key] = record
        is_nothing = decision.record is None and record.digest == EMPTY
        evaluations = tuple(map(holds_nothing, step.table.checks)) if is_nothing else record.evaluations
        step.outcomes[decision.key] = _outcome(step, decision, record, evaluations, record.figures)
        return
    record = _blocked_record(prior, decision)
    is_refused_before = decision.todo in (Todo.KEEP_REFUSED, Todo.WAIT_TIED) and prior.run_id != step.request.run_id
    is_repeat = is_refused_before or _is_told(step, prior, record)
    evaluations = prior.refused_evaluations if record.verdict is Verdict.REFUSED else ()
    step.records[decision.key] = record
    step.outcomes[decision.key] = replace(
        _outcome(step, decision, record, evaluations, record.figures), is_repeat=is_repeat
    )


def _kept_baseline(decision: SlicePlan, record: SliceRecord) -> Baseline | None:
    """Of a slice that is not built: what it holds now, where it becomes final now or none is on record."""
    if not decision.is_final:
        return None
    if decision.was_final and record.baseline is not None:
        return record.baseline
    return Baseline(record.figures, content=str(record.digest))


def _blocked_record(prior: SliceRecord, decision: SlicePlan) -> SliceRecord:
    state = prior.refused_state or {}
    if decision.todo is Todo.HOLD:
        hint = "Release it when the rollback has served its purpose"
        return replace(prior, verdict=Verdict.HELD, reason=decision.reason, hint=hint)
    if decision.todo is Todo.WAIT:
        hint = "It follows as soon as what it waits for is published; recover that first"
        return replace(prior, verdict=Verdict.WAITING, reason=decision.reason, hint=hint)
    # What other days hold may have changed beside the keys that matter; the next comparison is with what they hold now.
    kept = {name: value for name, value in state.items() if name in (CODE_KEY, WAITS_KEY)}
    prior = replace(prior, refused_state={**decision.present, **kept})
    if decision.todo is Todo.WAIT_TIED:
        reason = waiting_reason(state[WAITS_KEY])
        return replace(prior, verdict=Verdict.WAITING, reason=reason, hint=WAITING_CURE)
    failure = next(one for one in prior.refused_evaluations if one.check.is_blocking and not one.is_passed)
    return replace(prior, verdict=Verdict.REFUSED, reason=_reason(failure), hint=failure.hint)


def _is_told(step: DerivedStep, prior: SliceRecord, record: SliceRecord) -> bool:
    """Whether an earlier run, and not this one before it was tried again, ended with the same verdict and reason."""
    return prior.run_id != step.request.run_id and (prior.verdict, prior.reason) == (record.verdict, record.reason)


def _outcome(
    step: DerivedStep,
    decision: SlicePlan,
    record: SliceRecord,
    evaluations: tuple[Evaluation, ...],
    figures: Mapping[str, float],
) -> Outcome:
    return Outcome(
        step.table.key, decision.key, record.verdict, record.reason, record.hint, is_requested=decision.is_requested,
        is_early=decision.is_early, is_final=decision.is_final, digest=record.digest,
        figures={"rows": record.digest.rows, **figures}, evaluations=evaluations,
        was_good=decision.record is None or decision.record.verdict.is_good,
    )  # fmt: skip
