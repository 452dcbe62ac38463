"""What a raw load reports: one outcome per requested day, and one per other day it changed.

Contains: joining the verdict on a batch with the change of a slice.
Add here: what is told of a raw day.
Does not contain: reaching verdicts (read.py).
"""

from __future__ import annotations

import time
from dataclasses import replace

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.step import RawStep
from pipeline_assets.load.recorded import DAY_VERDICTS, standing_outcomes
from pipeline_assets.load.request import Outcome, TableReport


def report(step: RawStep) -> TableReport:
    """One outcome per requested day and project, from its batch and its slice; and one per other day that changed."""
    request, table = step.request, step.table
    records = step.runtime.ledger.slices(table.key, request.projects, request.days)
    outcomes = []
    for plan in (plan for _, plan in sorted(step.plans.items()) if plan.is_requested):
        key = Slice(plan.key.arrival_date, plan.key.project_id)
        batch, evaluation = step.verdicts[plan.key]
        verdict = DAY_VERDICTS[batch]
        if verdict is Verdict.UNCHANGED and key in step.published:
            verdict = Verdict.PUBLISHED
        is_repeat = _is_standing(step, plan, batch, evaluation)
        record = records.get(key)
        digest = record.digest if record else EMPTY
        full = plan.record(batch, evaluation, step.runtime.settings)
        outcomes.append(
            Outcome(
                table.key,
                key,
                verdict,
                evaluation.reason,
                evaluation.hint,
                is_repeat and not verdict.is_good,
                is_early=batch is BatchVerdict.WAITING,
                digest=digest,
                evaluations=full.evaluations,
                figures={"rows": digest.rows, **evaluation.figures},
            )
        )
    outcomes.extend(_refused_in_reach(step))
    outcomes.extend(_good_in_reach(step))
    return TableReport(
        table.key, tuple(outcomes), step.runtime.lakehouse.head(table), time.monotonic() - step.started_at
    )


def _refused_in_reach(step: RawStep) -> list[Outcome]:
    """A batch outside the requested days that this run refused is new trouble too."""
    outcomes = []
    for key, plan in sorted(step.plans.items()):
        verdict, evaluation = step.verdicts[key]
        is_news = plan.needs_work or plan.missing or _is_of_this_run(step, plan)
        if plan.is_requested or verdict is not BatchVerdict.REFUSED or not is_news:
            continue
        outcomes.append(
            Outcome(
                step.table.key, Slice(key.arrival_date, key.project_id), Verdict.REFUSED, evaluation.reason,
                evaluation.hint, is_repeat=_is_standing(step, plan, verdict, evaluation), is_requested=False,
                evaluations=plan.record(verdict, evaluation, step.runtime.settings).evaluations,
                figures=evaluation.figures,
            )
        )  # fmt: skip
    return outcomes


def _good_in_reach(step: RawStep) -> list[Outcome]:
    """Days outside the requested ones that late facts changed, or whose refused batch was accepted by this run.

    A late fact changes the slice of a day whose own batch may be refused or be unknown: such a day does not go green.
    """
    recovered = {
        Slice(key.arrival_date, key.project_id)
        for key, plan in step.plans.items()
        if step.verdicts[key][0] is BatchVerdict.ACCEPTED
        and plan.prior is not None
        and plan.prior.verdict is not BatchVerdict.ACCEPTED
    }
    concerned = sorted(key for key in recovered | step.published.keys() if key.event_date not in set(step.request.days))
    days = {key.event_date for key in concerned}
    found = standing_outcomes(step.runtime.ledger, step.table.key, step.request.projects, days)
    standing = {outcome.key: outcome for outcome in found}
    return [
        replace(
            standing[key], verdict=Verdict.PUBLISHED if key in step.published else Verdict.UNCHANGED,
            is_repeat=False, is_requested=False, was_good=key not in recovered,
        )
        for key in concerned
        if key in standing and standing[key].verdict.is_good
    ]  # fmt: skip


def _is_standing(step: RawStep, plan: BatchPlan, verdict: BatchVerdict, evaluation: Evaluation) -> bool:
    prior = plan.prior
    is_same = prior is not None and prior.verdict is verdict and prior.reason == evaluation.reason
    return is_same and not _is_of_this_run(step, plan)


def _is_of_this_run(step: RawStep, plan: BatchPlan) -> bool:
    """Whether this run wrote the batch's record before it was tried again, so that nobody was told of it yet."""
    return plan.prior is not None and plan.prior.run_id == step.request.run_id
