"""Rollbacks and releases report their days to Dagster."""

from __future__ import annotations

from datetime import date

import dagster as dg

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.events import standing_events
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT

DAY, TABLE = date(2026, 2, 2), "refined/events"


def _no_engine() -> None:
    raise AssertionError("telling Dagster starts no Spark")


def test_a_day_may_be_rolled_back_again_and_each_time_dagster_is_told(
    settings: Settings, ledger: Ledger, instance: dg.DagsterInstance
) -> None:
    """Scenario: two runs roll the same day back, with a release between. Outcome: the day's check shows both."""
    key, passed = Slice(DAY, PROJECT), (Evaluation(Check.UNIQUE_EVENT_KEY, True),)
    record = SliceRecord(TABLE, key, Verdict.PUBLISHED, digest=Digest(60, 1, 1), evaluations=passed)
    ledger.record(Changes(slices=[record]), "load")
    lakehouse = Lakehouse(_no_engine, "lake")  # type: ignore[arg-type]
    runtime = Runtime(lakehouse, ledger, LandingStore.from_settings(settings), settings)

    @dg.op
    def tell(context):
        yield from standing_events(context.instance, runtime, [(TABLE, DAY)])
        yield dg.Output(None)

    @dg.job
    def telling() -> None:
        tell()

    for number in (1, 2):
        if number == 1:
            ledger.interventions.hold({TABLE: [key]}, "it was wrong", "run-1")
        assert telling.execute_in_process(instance=instance).success, f"run {number}"
    check = dg.AssetCheckKey(dg.AssetKey(TABLE.split("/")), Check.UNIQUE_EVENT_KEY.name)
    history = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
    assert len({one.run_id for one in history}) == 2
