"""The verdict on each batch: accepted, refused, or moved while it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline_assets.domain.checks import MISSING_HINT, BatchFigures, Evaluation, reconcile_batch
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import EXCLUDED, MISSING, VANISHED, DeliveryRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice
from pipeline_assets.load.deliveries.plan import BatchPlan, without_successor
from pipeline_assets.load.deliveries.read import ReadResult
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.transforms.object_text import MOVED


@dataclass(frozen=True)
class Judged:
    """What was read, and the verdict on every batch of it."""

    read: ReadResult
    verdicts: Mapping[BatchKey, tuple[BatchVerdict, Evaluation]]
    brought_back: Mapping[Slice, Sequence[BatchKey]] = field(default_factory=dict)
    """Lost slices whose rows were all read again -> the batches that hold them."""

    def batches(self, verdict: BatchVerdict) -> list[BatchPlan]:
        """Batches that were worked on and ended so."""
        plans = self.read.plan.batches
        return [plan for key, plan in plans.items() if plan.needs_work and self.verdicts[key][0] is verdict]


def judge(read: ReadResult, settings: Settings) -> Judged:
    """Give every batch its verdict."""
    verdicts = {key: _verdict(read, plan, settings) for key, plan in read.plan.batches.items()}
    losses: dict[BatchKey | None, list[tuple[BatchPlan, tuple[str, ...], int, int]]] = {}
    for key, plan in read.plan.batches.items():
        keys, lost = loss_of(plan, read.summaries, settings)
        if verdicts[key][0] is BatchVerdict.ACCEPTED and lost and plan.accepted_reason is None:
            before = int(plan.prior.vanished_rows) if plan.prior is not None else 0
            held = before + sum(record.rows for record in plan.recorded.values())
            # Batches too small to be bounded by themselves are bounded together.
            losses.setdefault(key if held > settings.change_min_rows else None, []).append(
                (plan, keys, before + lost, held)
            )
    for of, plans in losses.items():
        lost, held = sum(lost for _, _, lost, _ in plans), sum(held for _, _, _, held in plans)
        most, _ = settings.change_bound(RAW_TABLES[plans[0][0].key.source].key, "rows")
        is_much = lost > held * most and (of is not None or lost > settings.change_min_rows)
        for plan, keys, own, _ in plans:
            verdict, evaluation = verdicts[plan.key]
            figures = {**evaluation.figures, VANISHED: own}
            if is_much:
                figures = {**evaluation.figures, MISSING: len(keys)}
                among = "" if of is not None else f" in {len(plans)} small batches"
                reason = f"rows vanished from landing: {lost} of {held} ({lost / held:.1%}){among}, first {keys[0]}"
                evaluation = replace(evaluation, is_passed=False, reason=reason, hint=MISSING_HINT)
                verdict, evaluation = BatchVerdict.REFUSED, plan.with_recovery(evaluation)
            verdicts[plan.key] = verdict, replace(evaluation, figures=figures)
    return Judged(read, verdicts)


def _verdict(read: ReadResult, plan: BatchPlan, settings: Settings) -> tuple[BatchVerdict, Evaluation]:
    if plan.verdict is not None:
        return plan.verdict
    if plan.is_repeated_refusal and plan.prior is not None:
        return BatchVerdict.REFUSED, plan.prior.evaluations[0]
    return _judge_parsed(read, plan, settings)


def _judge_parsed(read: ReadResult, plan: BatchPlan, settings: Settings) -> tuple[BatchVerdict, Evaluation]:
    records = [read.summaries.get(key) or plan.recorded[key] for key in sorted(plan.listed)]
    missing = () if plan.accepted_reason is not None else without_successor(plan, read.summaries, settings)
    evaluation = reconcile_batch(
        BatchFigures(
            objects=len(records),
            unreadable=tuple(_named(r, read.details) for r in records if r.error and r.error != MOVED),
            lines=sum(r.lines for r in records),
            rows=sum(r.rows for r in records),
            quarantined=sum(r.quarantined for r in records),
            blank=sum(r.blank for r in records),
            line_reasons=sum((Counter(dict(r.line_reasons)) for r in records), Counter()),
            quarantined_in=tuple(r.object_key for r in records if r.quarantined),
        ),
        settings,
        missing,
    )
    unread = [_named(read.summaries[key], read.details) for key in read.unread if key in plan.listed]
    if unread:
        # Not a matter of bounds: nobody knows what is in it.
        reason = f"unreadable objects: {len(unread)}, first {unread[0]}"
        hint = "Restore the object, or the right to read it, or take it out of landing; every load tries again"
        return BatchVerdict.REFUSED, plan.with_recovery(replace(evaluation, is_passed=False, reason=reason, hint=hint))
    moved = [r.object_key for r in records if r.error == MOVED]
    if moved:
        reason = f"objects changed while they were read: {len(moved)}, first {moved[0]}"
        return BatchVerdict.MOVED, Evaluation(
            evaluation.check, False, reason, "The next load reads them again", evaluation.figures
        )
    if missing or evaluation.figures["unreadable_objects"] > settings.max_unreadable_objects:
        return BatchVerdict.REFUSED, plan.with_recovery(evaluation)
    lost, _ = loss_of(plan, read.summaries, settings)
    if evaluation.is_passed and lost and plan.accepted_reason is not None:
        figures = {**evaluation.figures, MISSING: len(lost), VANISHED: 0}
        how = "withdrawn" if plan.let_go else "without a readable version"
        reason = f"{len(lost)} {how}: {plan.accepted_reason}"
        reason = "; ".join(filter(None, (evaluation.reason, reason)))
        evaluation = replace(evaluation, reason=reason, figures=figures)
    if evaluation.is_passed and plan.exclusion_reason is not None:
        figures = {**evaluation.figures, EXCLUDED: len(plan.excluded.keys() | plan.ruled_out)}
        reason = "; ".join(filter(None, (evaluation.reason, plan.exclusion_reason)))
        evaluation = replace(evaluation, reason=reason, figures=figures)
    loss = plan.loss_reason(evaluation.reason) if evaluation.is_passed else None
    if loss is not None:
        figures = {**evaluation.figures, MISSING: max(1, len(plan.let_go))}
        evaluation = replace(evaluation, reason=loss, figures=figures)
    return (BatchVerdict.ACCEPTED if evaluation.is_passed else BatchVerdict.REFUSED), evaluation


def _named(record: DeliveryRecord, details: Mapping[str, str]) -> str:
    return ", ".join(filter(None, (f"{record.object_key}: {record.error}", details.get(record.object_key))))


def loss_of(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[tuple[str, ...], int]:
    """The objects that landing lost, or holds a version of that cannot be read, and the rows by which their hours shrink.

    Rows that are read in their place are no loss; nor are those of an hour of which landing lists nothing but what was delivered
    after them, with as many rows: an earlier load read the rewritten hour.
    """
    came = plan.listed.keys() & read.keys()
    broken = [key for key in sorted(came & plan.recorded.keys()) if read[key].error and plan.recorded[key].rows]
    rows, keys = 0, (*plan.let_go, *broken)
    for hour in {plan.hour_of(key, settings) for key in keys}:
        gone = [plan.recorded[key] for key in plan.let_go if plan.hour_of(key, settings) == hour]
        names = {key for key, found in plan.listed.items() if found.hour == hour}
        left = [record for key in names if (record := read.get(key) or plan.recorded.get(key)) is not None]
        lost, last = sum(record.rows for record in gone), max((record.recorded_at for record in gone), default="")
        if all(record.recorded_at > last for record in left) and sum(record.rows for record in left) >= lost:
            lost = 0
        former = sum(plan.recorded[key].rows for key in came & names & plan.recorded.keys())
        rows += max(0, lost + former - sum(read[key].rows for key in came & names))
    return keys, rows
