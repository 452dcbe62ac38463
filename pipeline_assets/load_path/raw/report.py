"""What a raw load reports: one outcome per requested day, and one per other day it changed.

Lives here: joining the verdict on a batch with the change of a slice. Put here: what is told of a raw day. Keep
out: reaching verdicts (read.py).
"""

from __future__ import annotations

import time

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict
from pipeline_assets.load_path.raw.batches import BatchPlan
from pipeline_assets.load_path.raw.step import RawStep
from pipeline_assets.load_path.request import Outcome, TableReport
from pipeline_assets.load_path.standing import DAY_VERDICTS, standing_outcomes


def report(step: RawStep) -> TableReport:
    """One outcome per requested day and project, from its batch and its slice; and one per other day that changed."""
    request, table = step.request, step.table
    records = step.bench.ledger.slices(table.key, request.projects, request.days)
    outcomes = []
    for plan in (plan for _, plan in sorted(step.plans.items()) if plan.is_requested):
        key = Slice(plan.key.arrival_date, plan.key.project_id)
        batch, evaluation = step.verdicts[plan.key]
        verdict = DAY_VERDICTS[batch]
        if verdict is Verdict.UNCHANGED and key in step.published:
            verdict = Verdict.PUBLISHED
        is_standing = _is_standing(plan, batch, evaluation)
        record = records.get(key)
        digest = record.digest if record else EMPTY
        full = plan.record(batch, evaluation, step.bench.settings)
        outcomes.append(
            Outcome(
                table.key,
                key,
                verdict,
                evaluation.reason,
                evaluation.cure,
                is_standing and not verdict.is_good,
                digest=digest,
                evaluations=full.evaluations,
                figures={"rows": digest.rows, **evaluation.figures},
            )
        )
    # A refused batch outside the requested days is new trouble too.
    for batch_key, plan in sorted(step.plans.items()):
        batch, evaluation = step.verdicts[batch_key]
        if not plan.is_requested and batch is BatchVerdict.REFUSED and (plan.needs_work or plan.missing):
            day = Slice(batch_key.arrival_date, batch_key.project_id)
            full = plan.record(batch, evaluation, step.bench.settings)
            outcomes.append(
                Outcome(
                    table.key,
                    day,
                    Verdict.REFUSED,
                    evaluation.reason,
                    evaluation.cure,
                    is_standing=_is_standing(plan, batch, evaluation),
                    is_requested=False,
                    evaluations=full.evaluations,
                    figures=evaluation.figures,
                )
            )
    others = {key: digest for key, digest in step.published.items() if key.event_date not in set(request.days)}
    standing = {
        outcome.key: outcome
        for outcome in standing_outcomes(
            step.bench.ledger, table.key, request.projects, {key.event_date for key in others}
        )
    }
    # A late fact changes the slice of a day whose own batch may stand refused or be unknown: such a day does not go green.
    outcomes.extend(
        Outcome(
            table.key, key, Verdict.PUBLISHED, is_requested=False, digest=digest, figures={"rows": digest.rows},
            evaluations=standing[key].evaluations,
        )
        for key, digest in sorted(others.items())
        if key in standing and standing[key].verdict.is_good
    )  # fmt: skip
    return TableReport(table.key, tuple(outcomes), step.bench.lakehouse.head(table), time.monotonic() - step.started_at)


def _is_standing(plan: BatchPlan, verdict: BatchVerdict, evaluation: Evaluation) -> bool:
    prior = plan.prior
    return prior is not None and prior.verdict is verdict and prior.reason == evaluation.reason
