"""Whether the hours of a batch are complete: the check that warns and holds nothing back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import RENAME
from pipeline_assets.domain.records import EXCLUDED, HOURS_HELD, HOURS_UNFINISHED, HOURS_UNPLACED, MISSING
from pipeline_assets.load.staleness.coverage import HOURS_A_DAY

if TYPE_CHECKING:
    from pipeline_assets.load.deliveries.plan import BatchPlan


def completeness(plan: BatchPlan, verdict: Evaluation) -> Evaluation:
    """Whether all hours of the batch are marked, by what is listed; `verdict` is of the other check."""
    if plan.told_recovery is not None:
        hint = "A load after the end of the recovery takes them; six hours after it began they are taken as they lie"
        unfinished = {HOURS_UNFINISHED: len(plan.hours_unfinished)}
        return Evaluation(Check.DELIVERY_COMPLETE, False, plan.told_recovery, hint, unfinished)
    held = plan.partial_hours
    rename = f"{RENAME}. " if plan.unplaced else ""
    if plan.unplaced and held is None:
        hint = f"{rename}The day stays provisional until then"
        unplaced = {HOURS_UNPLACED: len({*plan.unplaced.values()})}
        return Evaluation(Check.DELIVERY_COMPLETE, False, plan.told_unplaced, hint, unplaced)
    figures = {"hours_marked": len(plan.hours_marked), "hours_delivered": len({d.hour for d in plan.listed.values()})}
    is_decided = verdict.figures.get(MISSING) or (verdict.figures.get(EXCLUDED) and not plan.known)
    if plan.told_partial is not None and verdict.is_passed and not is_decided:
        return Evaluation(
            Check.DELIVERY_COMPLETE,
            False,
            plan.told_partial,
            f"{rename}Recover the other hours, or accept that they are lost, with a reason (--accept-missing, accept_missing in "
            f"run config); the day stays provisional until then{'' if plan.is_closed else ', and until its deadline'}",
            {**figures, HOURS_HELD: held or 0},
        )
    missing = HOURS_A_DAY - len(plan.hours_marked)
    # Recoveries need no markers, and an empty day of one source is complete.
    is_complete = missing == 0 or plan.is_closed or not plan.listed
    return Evaluation(
        Check.DELIVERY_COMPLETE,
        is_complete,
        None
        if is_complete
        else "; ".join(filter(None, (f"{missing} of 24 hours have no marker yet", plan.told_unplaced))),
        None if is_complete else f"{rename}The day stays provisional until they come or the deadline passes",
        figures if is_complete or held is None else {**figures, HOURS_HELD: held},
    )
