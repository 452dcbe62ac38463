"""What a raw load reports: one outcome per requested day, and one per other day it changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Slice, Verdict
from pipeline_assets.domain.window import lateness, out_of_reach
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.publish import Published
from pipeline_assets.load.deliveries.read import Attempt
from pipeline_assets.load.deliveries.verdicts import Judged
from pipeline_assets.load.request import DAY_VERDICTS, Outcome, TableReport, standing_outcomes


def report(attempt: Attempt, judged: Judged, published: Published) -> TableReport:
    """One outcome per requested day and project, from its batch and its slice; and one per other day that changed."""
    request, table, settings = attempt.request, attempt.table, attempt.runtime.settings
    ledger = attempt.runtime.ledger
    records = ledger.slices(table.key, request.projects, request.days)
    arrived = ledger.batch_days(attempt.source, request.projects, request.first_day, request.last_day)
    outcomes = []
    for plan in (plan for plan in judged.read.plan.batches.values() if plan.is_requested):
        key = Slice(plan.key.arrival_date, plan.key.project_id)
        batch, evaluation = judged.verdicts[plan.key]
        verdict = DAY_VERDICTS[batch]
        if verdict is Verdict.UNCHANGED and key in published.slices:
            verdict = Verdict.PUBLISHED
        is_repeat = _is_repeat(attempt, plan, batch, evaluation)
        record = records.get(key)
        digest = record.digest if record else EMPTY
        full = plan.record(batch, evaluation, settings)
        outcomes.append(
            Outcome(
                table.key,
                key,
                verdict,
                evaluation.reason,
                evaluation.hint,
                is_repeat and not verdict.is_good,
                is_early=batch is BatchVerdict.WAITING and not plan.listed,
                digest=digest,
                evaluations=full.evaluations,
                figures={
                    "rows": digest.rows,
                    **evaluation.figures,
                    **_late(plan.key, arrived.get(plan.key, {}), settings),
                },
            )
        )
    outcomes = [_lost(attempt, one.key, published, one) or one for one in outcomes]
    told = {outcome.key for outcome in outcomes}
    beside = (_lost(attempt, key, published) for key in sorted(attempt.losses.found.keys() - told))
    outcomes.extend(one for one in beside if one is not None)
    outcomes.extend(_refused_in_reach(attempt, judged))
    outcomes.extend(_good_in_reach(attempt, judged, published))
    return TableReport(table.key, tuple(outcomes), seconds=time.monotonic() - attempt.started_at)


def _lost(attempt: Attempt, key: Slice, published: Published, told: Outcome | None = None) -> Outcome | None:
    """The outcome of a slice of which a data file is gone, in place of what its batch says; None for every other slice."""
    loss = attempt.losses.found.get(key)
    if loss is None or key in published.slices:
        return None
    told = told or Outcome(attempt.table.key, key, Verdict.REFUSED, is_requested=False)
    is_repeat = key in attempt.losses.before
    refused = replace(told, verdict=Verdict.REFUSED, reason=loss.reason, hint=loss.hint, evaluations=())
    return replace(refused, is_repeat=is_repeat, is_early=False)


def _late(batch: BatchKey, days: Mapping[date, BatchDay], settings: Settings) -> dict[str, float]:
    """Of the rows that arrived on a day: those after the window of their own day, and those no window is for."""
    arrivals = [(batch.project_id, batch.arrival_date, day, part.digest.rows) for day, part in days.items()]
    late = lateness(arrivals)[""].without(settings.max_lateness_days)
    missed = {"rows_beyond_window": late.missed_beyond(settings.reprocessing_window_days)}
    return {**missed, **out_of_reach(arrivals, settings).figures}


def _refused_in_reach(attempt: Attempt, judged: Judged) -> list[Outcome]:
    """A batch outside the requested days that this run refused is new trouble too."""
    outcomes = []
    for key, plan in judged.read.plan.batches.items():
        verdict, evaluation = judged.verdicts[key]
        is_news = plan.needs_work or plan.missing or _is_of_this_run(attempt, plan)
        if plan.is_requested or verdict is not BatchVerdict.REFUSED or not is_news:
            continue
        outcomes.append(
            Outcome(
                attempt.table.key,
                Slice(key.arrival_date, key.project_id),
                Verdict.REFUSED,
                evaluation.reason,
                evaluation.hint,
                is_repeat=_is_repeat(attempt, plan, verdict, evaluation),
                is_requested=False,
                evaluations=plan.record(verdict, evaluation, attempt.runtime.settings).evaluations,
                figures=evaluation.figures,
            )
        )
    return outcomes


def _good_in_reach(attempt: Attempt, judged: Judged, published: Published) -> list[Outcome]:
    """Days outside the requested ones that late facts changed, or whose refused batch was accepted by this run.

    A late fact changes the slice of a day whose own batch may be refused or be unknown: such a day does not go green.
    """
    recovered = {
        Slice(key.arrival_date, key.project_id)
        for key, plan in judged.read.plan.batches.items()
        if judged.verdicts[key][0] is BatchVerdict.ACCEPTED
        and plan.prior is not None
        and plan.prior.verdict is not BatchVerdict.ACCEPTED
    }
    concerned = sorted(
        key for key in recovered | published.slices.keys() if key.event_date not in set(attempt.request.days)
    )
    days = {key.event_date for key in concerned}
    recorded = standing_outcomes(attempt.runtime.ledger, attempt.table.key, attempt.request.projects, days)
    standing = {outcome.key: outcome for outcome in recorded}
    return [
        replace(
            standing[key],
            verdict=Verdict.PUBLISHED if key in published.slices else Verdict.UNCHANGED,
            is_repeat=False,
            is_requested=False,
            was_good=key not in recovered,
        )
        for key in concerned
        if key in standing and standing[key].verdict.is_good
    ]


def _is_repeat(attempt: Attempt, plan: BatchPlan, verdict: BatchVerdict, evaluation: Evaluation) -> bool:
    prior = plan.prior
    is_same = prior is not None and prior.verdict is verdict and prior.reason == evaluation.reason
    return is_same and not _is_of_this_run(attempt, plan)


def _is_of_this_run(attempt: Attempt, plan: BatchPlan) -> bool:
    """Whether this run wrote the batch's record before it was tried again, so that nobody was told of it yet."""
    return plan.prior is not None and plan.prior.run_id == attempt.request.run_id
