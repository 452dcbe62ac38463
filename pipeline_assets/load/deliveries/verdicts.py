"""The verdict on each batch: accepted, refused, or moved while it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from pipeline_assets.domain.checks import MISSING_HINT, BatchFigures, Evaluation, reconcile_batch
from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey
from pipeline_assets.domain.records import EXCLUDED, MISSING, VANISHED, DeliveryRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict
from pipeline_assets.load.deliveries.plan import BatchPlan, together, without_successor
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.transforms.object_text import MOVED

_UNREADABLE = "Restore the object, or the right to read it, or take it out of landing; every load tries again"


def judge(
    plans: Mapping[BatchKey, BatchPlan],
    read: Mapping[str, DeliveryRecord],
    details: Mapping[str, str],
    settings: Settings,
) -> dict[BatchKey, tuple[BatchVerdict, Evaluation]]:
    """The verdict on every batch; `read`, `details`: as `Attempt` keeps them."""
    verdicts = {key: _verdict(plan, read, details, settings) for key, plan in plans.items()}
    losses: dict[BatchKey | None, list[tuple[BatchPlan, tuple[str, ...], int, int]]] = {}
    for key, plan in plans.items():
        keys, lost = loss_of(plan, read, settings)
        if verdicts[key][0] is BatchVerdict.ACCEPTED and lost and plan.accepted_reason is None:
            before = int(plan.prior.vanished_rows) if plan.prior is not None else 0
            held = before + sum(record.rows for record in plan.recorded.values())
            # Batches too small to be bounded by themselves are bounded together.
            of = key if held > settings.change_min_rows else None
            losses.setdefault(of, []).append((plan, keys, before + lost, held))
    for of, together_bounded in losses.items():
        lost, held = sum(one[2] for one in together_bounded), sum(one[3] for one in together_bounded)
        most, _ = settings.change_bound(RAW_TABLES[together_bounded[0][0].key.source].key, "rows")
        is_much = lost > held * most and (of is not None or lost > settings.change_min_rows)
        for plan, keys, own, _ in together_bounded:
            verdict, evaluation = verdicts[plan.key]
            figures = {**evaluation.figures, VANISHED: own}
            if is_much:
                figures = {**evaluation.figures, MISSING: len(keys)}
                among = "" if of is not None else f" in {len(together_bounded)} small batches"
                reason = f"rows vanished from landing: {lost} of {held} ({lost / held:.1%}){among}, first {keys[0]}"
                evaluation = replace(evaluation, is_passed=False, reason=reason, hint=MISSING_HINT)
                verdict, evaluation = BatchVerdict.REFUSED, plan.with_recovery(evaluation)
            verdicts[plan.key] = verdict, replace(evaluation, figures=figures)
    return verdicts


def _verdict(
    plan: BatchPlan, read: Mapping[str, DeliveryRecord], details: Mapping[str, str], settings: Settings
) -> tuple[BatchVerdict, Evaluation]:
    if plan.verdict is not None:
        return plan.verdict
    if plan.is_repeated_refusal and plan.prior is not None:
        return BatchVerdict.REFUSED, plan.prior.evaluations[0]
    records = [read.get(key) or plan.recorded[key] for key in sorted(plan.listed)]
    told = {key: f", {detail}" for key, detail in details.items() if detail}
    names = {one.object_key: f"{one.object_key}: {one.error}{told.get(one.object_key, '')}" for one in records}
    missing = () if plan.accepted_reason is not None else without_successor(plan, read, settings)
    evaluation = reconcile_batch(
        BatchFigures(
            objects=len(records),
            unreadable=tuple(names[one.object_key] for one in records if one.error and one.error != MOVED),
            lines=sum(one.lines for one in records),
            rows=sum(one.rows for one in records),
            quarantined=sum(one.quarantined for one in records),
            blank=sum(one.blank for one in records),
            line_reasons=sum((Counter(dict(one.line_reasons)) for one in records), Counter()),
            quarantined_in=tuple(one.object_key for one in records if one.quarantined),
        ),
        settings,
        missing,
    )
    unread = [key for key in names if key in read and read[key].error == NOT_READABLE]
    if unread:
        # Not a matter of bounds: nobody knows what is in it.
        reason = f"unreadable objects: {len(unread)}, first {names[unread[0]]}"
        refused = replace(evaluation, is_passed=False, reason=reason, hint=_UNREADABLE)
        return BatchVerdict.REFUSED, plan.with_recovery(refused)
    moved = [one.object_key for one in records if one.error == MOVED]
    if moved:
        reason = f"objects changed while they were read: {len(moved)}, first {moved[0]}"
        hint = "The next load reads them again"
        return BatchVerdict.MOVED, Evaluation(evaluation.check, False, reason, hint, evaluation.figures)
    if missing or evaluation.figures["unreadable_objects"] > settings.max_unreadable_objects:
        return BatchVerdict.REFUSED, plan.with_recovery(evaluation)
    if not evaluation.is_passed:
        return BatchVerdict.REFUSED, evaluation
    why, figures = evaluation.reason, dict(evaluation.figures)
    lost, _ = loss_of(plan, read, settings)
    if lost and plan.accepted_reason is not None:
        figures |= {MISSING: len(lost), VANISHED: 0}
        how = "withdrawn" if plan.let_go else "without a readable version"
        why = together(why, f"{len(lost)} {how}: {plan.accepted_reason}")
    if plan.exclusion_reason is not None:
        figures[EXCLUDED] = len(plan.excluded.keys() | plan.ruled_out)
        why = together(why, plan.exclusion_reason)
    if (loss := plan.loss_reason(why)) is not None:
        figures[MISSING] = max(1, len(plan.let_go))
        why = loss
    return BatchVerdict.ACCEPTED, replace(evaluation, reason=why, figures=figures)


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
