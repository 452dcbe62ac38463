"""`dimension_snapshots_arrived` requests due snapshots, says what it waits for, and reports landing's content."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.records import InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Digest, Slice, Verdict
from pipeline_assets.load.deliveries.snapshots import list_snapshots
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.tables.dimension import ITEM
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.dimensions import deliver_items

FIRST, SECOND, THIRD = date(2026, 2, 2), date(2026, 2, 3), date(2026, 2, 4)
SOON, LATE = datetime(2026, 2, 4, 12, tzinfo=UTC), datetime(2026, 2, 20, tzinfo=UTC)
ITEMS = {"1": "ACTIVE"}
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@dataclass
class Deployment:
    landing: Path
    settings: Settings
    instance: dg.DagsterInstance
    cursor: str | None = None
    reported: list[dg.AssetMaterialization] = field(default_factory=list)

    def tick(self, now: datetime, *, is_fresh: bool = True) -> tuple[list[tuple[str, str]], str]:
        """Requested ranges and the reason for no more; `is_fresh`: with an empty memory."""
        repository = build_defs(self.settings).get_repository_def()
        sensor = repository.get_sensor_def("dimension_snapshots_arrived")
        resources = {"landing": LandingStore.from_settings(self.settings), "clock": Clock(now)}
        cursor = None if is_fresh else self.cursor
        known: dict[str, Any] = {"instance": self.instance, "repository_def": repository, "resources": resources}
        with dg.build_sensor_context(**known, cursor=cursor) as context:
            found = sensor.evaluate_tick(context)
        self.cursor = found.cursor
        self.reported = [event for event in found.asset_events if isinstance(event, dg.AssetMaterialization)]
        return [(one.tags[START], one.tags[END]) for one in found.run_requests or []], found.skip_message or ""

    def loaded(self, *days: date, **more: Any) -> None:
        """As if a load had published landing's snapshots of these days."""
        listing = list_snapshots(LandingStore.from_settings(self.settings), "item")
        code = ITEM.snapshot.code_version(self.settings)
        for day in days:
            known = {"verdict": Verdict.PUBLISHED, "digest": Digest(1, 1, 1), "code_version": code}
            state = {"input_state": InputState(delivered=listing.days[day].version)}
            self.record(SliceRecord(ITEM.snapshot.key, Slice(day, ALL_PROJECTS), **{**known, **state, **more}))

    def record(self, record: SliceRecord) -> None:
        with closing(Ledger(self.settings.ledger_database_url)) as ledger:
            ledger.record(Changes(slices=[record]), "run")


@pytest.fixture
def p(settings: Settings, instance: dg.DagsterInstance) -> Deployment:
    return Deployment(Path(settings.landing_url), settings, instance)


def test_a_deployment_without_dimensions_is_asked_for_nothing(p: Deployment) -> None:
    assert p.tick(LATE) == ([], "landing holds no snapshot of a dimension")


def test_a_marker_makes_a_snapshot_due_and_a_load_of_it_ends_that(p: Deployment) -> None:
    """Outcome: each evaluation requests what a load would change, and the source asset shows the news."""
    for day in (FIRST, SECOND):
        deliver_items(p, day, ITEMS)
    deliver_items(p, THIRD, ITEMS, is_marked=False)
    asked, _ = p.tick(SOON)
    assert asked == [(str(FIRST), str(SECOND))]
    reported = [(one.asset_key.path[-1], one.partition) for one in p.reported]
    assert reported == [("item_snapshots", str(day)) for day in (FIRST, SECOND, THIRD)]
    p.loaded(FIRST, SECOND)
    assert p.tick(SOON, is_fresh=False)[0] == []
    assert p.reported == [], "nothing is new to Dagster"
    assert "2026-02-04.csv has no marker yet" in p.tick(SOON)[1]

    deliver_items(p, SECOND, {"1": "INACTIVE"})
    (p.landing / "dimensions" / "item" / f"{FIRST}.csv").unlink()
    assert p.tick(SOON)[0] == [(str(SECOND), str(SECOND))], "what vanished stays as it is"
    p.loaded(SECOND)
    deliver_items(p, FIRST, ITEMS)
    p.loaded(FIRST)
    assert p.tick(LATE)[0] == [(str(THIRD), "2026-02-16")], "unmarked or lacking, as far as deadlines have passed"


def test_a_day_that_lacks_is_told_of_once_and_outside_of_the_calendar_never(p: Deployment) -> None:
    for beyond in (date(2002, 2, 2), date(2026, 1, 31), date(2062, 2, 2)):
        deliver_items(p, beyond, ITEMS)
    deliver_items(p, FIRST, ITEMS)
    p.loaded(FIRST)
    asked, _ = p.tick(datetime(2026, 2, 6, 1, tzinfo=UTC))
    assert asked == [(str(SECOND), str(SECOND))], "lacking by its deadline, and no day before the first of the calendar"
    reason = f"no snapshot of {SECOND} was delivered by its deadline (missing_snapshot = wait)"
    p.record(SliceRecord(ITEM.snapshot.key, Slice(SECOND, ALL_PROJECTS), Verdict.WAITING, reason))
    asked, why = p.tick(datetime(2026, 2, 6, 1, tzinfo=UTC))
    assert asked == []
    beyond = ", ".join(f"dimensions/item/{day}.csv" for day in ("2002-02-02", "2026-01-31", "2062-02-02"))
    assert f"outside of the calendar (2026-02-01 to 2026-02-06) lie {beyond}" in why


def test_a_refused_count_is_due_again_when_the_snapshot_before_it_was_corrected(p: Deployment) -> None:
    """Outcome: no request while the other count stands, and the refused day once it changed."""
    for day in (FIRST, SECOND):
        deliver_items(p, day, ITEMS)
    failure = Evaluation(Check.COUNT_IS_EXPECTED, False, "shrinks", "correct it", {"rows_before": 300, "rows_after": 1})
    version = list_snapshots(LandingStore.from_settings(p.settings), "item").days[SECOND].version
    refusal = Rejection(InputState(delivered=version), judging(ITEM.snapshot, p.settings))
    p.loaded(FIRST, digest=Digest(300, 1, 1))
    why: dict[str, Any] = {"rejection": refusal, "refused_evaluations": (failure,)}
    p.loaded(SECOND, verdict=Verdict.REFUSED, digest=Digest(), input_state=None, **why)
    assert p.tick(SOON)[0] == []
    p.loaded(FIRST, digest=Digest(1, 1, 1))
    assert p.tick(SOON)[0] == [(str(SECOND), str(SECOND))]
