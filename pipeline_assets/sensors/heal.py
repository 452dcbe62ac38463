"""`heal`: what is published and what its inputs are now, compared; what differs is built, whatever the cause.

Lives here: one look at the ledger. Put here: when that look is worth taking. Keep out: what is stale
(load_path/survey.py) and runs (requests.py).
"""

from __future__ import annotations

from datetime import datetime

import dagster as dg

from pipeline_assets.domain.settings import Settings
from pipeline_assets.jobs import HEAL_JOB, JOB_OF_SOURCE
from pipeline_assets.load import Clock
from pipeline_assets.load_path.request import OpenBooks
from pipeline_assets.load_path.survey import survey
from pipeline_assets.sensors.cursor import Cursor
from pipeline_assets.sensors.requests import LIVE, ask, default_status, digest, guarded, result
from resources.ledger import Ledger


def heal_sensor(settings: Settings) -> dg.SensorDefinition:
    """The sensor."""

    @dg.sensor(
        name="heal",
        job_name=HEAL_JOB,
        minimum_interval_seconds=300,
        default_status=default_status(settings),
        description=(
            "Compares what is published with what its inputs are now, in the ledger alone, and rebuilds the days that are "
            "stale, missing or newly final. Waits while a load is under way."
        ),
    )
    def heal(context: dg.SensorEvaluationContext, clock: dg.ResourceParam[Clock]) -> dg.SensorResult:
        def evaluate(ledger: Ledger, cursor: Cursor) -> dg.SensorResult:
            return _stale_days(context, settings, ledger, cursor, clock.now())

        return guarded(context, settings, evaluate)

    return heal


def _stale_days(
    context: dg.SensorEvaluationContext, settings: Settings, ledger: Ledger, cursor: Cursor, now: datetime
) -> dg.SensorResult:
    runs = context.instance.get_runs(dg.RunsFilter(statuses=LIVE))
    under_way = [run for run in runs if run.job_name in (*JOB_OF_SOURCE.values(), HEAL_JOB, "__ASSET_JOB")]
    if under_way:
        reason = f"{len(under_way)} loads are under way; looked at again when they are through"
        return dg.SensorResult(skip_reason=reason, cursor=cursor.as_text())
    found = survey(OpenBooks(ledger, settings), now)
    states = {day: digest(one.state for one in ones) for day, ones in found.items()}
    asked = ask(context, settings, HEAL_JOB, states, cursor, now, reach=0)
    reasons = {
        day: "; ".join(dict.fromkeys(f"{one.table} {one.reason}" for one in ones)) for day, ones in found.items()
    }
    return result(asked, HEAL_JOB, reasons, [], cursor, [], priority=5)
