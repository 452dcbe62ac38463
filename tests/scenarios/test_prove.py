"""`prove`: a replay shows that the published days are landing's content; tampering is named."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.inspection.scratch import replay_runtime, replay_settings
from pipeline_assets.inspection.verify import Compared, Proof, ReplayMatch, prove
from pipeline_assets.load.runtime import Runtime
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog
from tests.support.builders import Pipeline, an_event, events_on, sent_again
from tests.support.world import Story, Tables

pytestmark = pytest.mark.slow
DAYS = tuple(date(2026, 2, 2) + timedelta(days=shift) for shift in range(4))
RAW, REFINED, REVENUE = "raw/regular_events", "refined/events", "aggregates/daily_revenue"


def _prove(p: Pipeline, folder: Path, first: date = DAYS[0], last: date = DAYS[-1]) -> Proof:
    runtime = p.runtime
    own = replay_settings(p.settings, str(folder), str(folder / "warehouse"))
    folder.mkdir()
    configure_catalog(p.spark, own)
    with closing(Ledger(own.ledger_database_url)) as ledger:
        scratch = Runtime(Lakehouse(p.spark, own.catalog_name), ledger, runtime.landing, own)
        return prove(runtime, scratch, first, last, p.settings.projects, p.now)


def _late(count: int, day: date, uploaded: date) -> list[dict[str, Any]]:
    at = {"event_time": f"{day} 23:00:00.000000", "server_upload_time": f"{uploaded} 01:00:00.000000"}
    return [an_event(insert_id=f"late{n}", uuid=f"late{n}", **at) for n in range(count)]


def _found(proof: Proof, p: Story) -> list[tuple[str, date, ReplayMatch]]:
    return [(one.table, one.key.event_date, one.match) for one in _differing(proof, p)]


def _differing(proof: Proof, p: Story) -> list[Compared]:
    return [one for one in proof.slices if one.key.project_id == p.project and one.match is not ReplayMatch.EQUAL]


def test_what_is_published_is_proven_and_every_difference_is_named(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: days with late facts, an event that moved over midnight, a recovery, duplicates, an excluded object and an
    accepted loss are proven. Then rows of one project change behind our back; another one has a refused day, a lost and an
    unloaded object; to the third an object of the accepted loss arrives.
    Outcome: all is equal and unchanged; then exactly these slices are named, each with its fault."""
    world = pipeline(projects=("10001", "10002", "10003"))
    tampered, refused, lossy = (Story(world, project, Tables(world)) for project in world.settings.projects)
    for day in DAYS:
        tampered.deliver(day, events_on(day, 40))
        refused.deliver(day, events_on(day, 40, prefix="r"))
    tampered.deliver(DAYS[3], [*_late(3, DAYS[0], DAYS[3]), *events_on(DAYS[3], 10)], hour=11)
    moved = sent_again(events_on(DAYS[1], 40)[3], DAYS[2], to=DAYS[2], at="00:10", uuid="again")
    tampered.deliver(DAYS[2], [moved], hour=12)
    again = [*events_on(DAYS[1], 40), *events_on(DAYS[1], 5, prefix="lost")]
    tampered.deliver(DAYS[1], again, source=Source.BACKFILL)
    wrong = tampered.deliver(DAYS[0], events_on(DAYS[0], 7, prefix="wrong"), hour=13)
    late = _late(4, DAYS[1], DAYS[2])
    for day, events in ((DAYS[0], events_on(DAYS[0], 5)), (DAYS[2], late[:3]), (DAYS[3], events_on(DAYS[3], 1))):
        lossy.deliver(day, events)
    world.must_load(DAYS[0])
    world.must_load(*DAYS[1:3], accept={f"{RAW}:{DAYS[1]}/{lossy.project}": "an outage of theirs"})
    world.must_load(DAYS[3])
    world.must_load(DAYS[1], source=Source.BACKFILL, projects=[tampered.project])
    world.must_load(DAYS[0], exclude={wrong: "test device"})
    before = world.history(), world.digests(), len(world.ledger.publications())

    whole = _prove(world, tmp_path / "whole")

    assert whole.is_proven, [_found(whole, one) for one in (tampered, refused, lossy)]
    assert {one.key.event_date for one in whole.slices} == set(DAYS)
    assert {one.table for one in whole.slices} >= {REFINED, REVENUE, RAW, "raw/backfill_events"}
    rows = {(one.table, one.key): one.published.rows for one in whole.slices}
    assert rows[REFINED, Slice(DAYS[0], tampered.project)] == 43
    assert rows[REFINED, Slice(DAYS[1], lossy.project)] == 3
    assert (whole.excluded, whole.objects) == (1, 7 + 4 + 3)
    assert (world.history(), world.digests(), len(world.ledger.publications())) == before
    one_day = _prove(world, tmp_path / "one", DAYS[2], DAYS[2])
    assert one_day.is_proven
    assert {one.key.event_date for one in one_day.slices} == {DAYS[2]}

    (gone,) = world.ledger.deliveries(Source.REGULAR, [refused.project], DAYS[0], DAYS[0])
    refused.deliver(DAYS[1], events_on(DAYS[1], 700, prefix="twice"), hour=14)
    assert not world.load(DAYS[1], projects=[refused.project]).success
    refused.remove(gone)
    new = refused.deliver(DAYS[3], events_on(DAYS[3], 4, prefix="new"), hour=20)
    since = lossy.deliver(DAYS[2] + timedelta(days=3), late[3:])

    names = {name: f"{world.settings.catalog_name}.{name.replace('/', '.')}" for name in (RAW, REFINED, REVENUE)}
    for table, change, day, device in (
        (REFINED, "city = 'Elsewhere'", DAYS[0], 5),
        (REFINED, "_key_b = _key_b + 1", DAYS[3], 5),
        (RAW, "_meaning_hash = 1", DAYS[2], 7),
        (RAW, "region = 'Elsewhere'", DAYS[1], 7),
    ):
        where = f"event_date = DATE '{day}' AND insert_id = 'e-{day}-{device}' AND project_id = '{tampered.project}'"
        world.spark.sql(f"UPDATE {names[table]} SET {change} WHERE {where}")
    own, extra = f"project_id = '{tampered.project}' AND event_date = DATE", DAYS[-1] + timedelta(days=1)
    world.spark.sql(f"DELETE FROM {names[REFINED]} WHERE {own} '{DAYS[2]}'")
    world.spark.sql(
        f"INSERT INTO {names[REVENUE]} SELECT DATE '{extra}', project_id, currency, revenue, purchases, paying_users "
        f"FROM {names[REVENUE]} WHERE {own} '{DAYS[0]}'"
    )
    proof = _prove(world, tmp_path / "proof", DAYS[0], extra)

    assert not proof.is_proven
    assert _found(proof, tampered) == [
        (RAW, DAYS[1], ReplayMatch.DIFFERS), (RAW, DAYS[2], ReplayMatch.DIFFERS),
        (REFINED, DAYS[0], ReplayMatch.DIFFERS), (REFINED, DAYS[2], ReplayMatch.MISSING),
        (REFINED, DAYS[3], ReplayMatch.DIFFERS), (REVENUE, extra, ReplayMatch.EXTRA),
    ]  # fmt: skip
    (other,) = [one for one in _differing(proof, tampered) if (one.table, one.key.event_date) == (REFINED, DAYS[0])]
    assert other.published.rows == other.replayed.rows == 43
    assert other.published != other.replayed
    of_refused = _differing(proof, refused)
    assert {(one.key.event_date, one.match) for one in of_refused} == {
        (DAYS[0], ReplayMatch.UNPROVEN),
        (DAYS[1], ReplayMatch.DIFFERS),
        (DAYS[3], ReplayMatch.UNPROVEN),
    }
    said = {(one.table, one.key.event_date): str(one.reason) for one in of_refused}
    assert "is refused: change_is_explained" in said[REFINED, DAYS[1]]
    assert all(gone in text for (_, day), text in said.items() if day == DAYS[0])
    assert all(new in text for (_, day), text in said.items() if day == DAYS[3])
    of_lossy = [one for one in _differing(proof, lossy) if one.key.event_date == DAYS[1]]
    assert {one.match for one in of_lossy} == {ReplayMatch.UNPROVEN}
    assert {one.reason for one in of_lossy} == {f"{since} is in landing and not loaded"}


def test_a_replay_on_a_disk_that_workers_share_leaves_nothing_there(pipeline: Any, tmp_path: Path) -> None:
    """Outcome: the replay's tables lie in the shared warehouse folder, and are gone afterwards."""
    p = pipeline()
    shared = p.settings.model_copy(update={"spark_master": "spark://host:7077", "spark_shared_disk": True})
    runtime = replace(p.runtime, settings=shared)
    warehouse = local_path(shared.warehouse_url)
    assert warehouse is not None
    before = sorted(warehouse.rglob("*")) if warehouse.exists() else []
    with replay_runtime(runtime) as scratch:
        place = local_path(scratch.settings.warehouse_url)
        assert place is not None
        scratch.spark.sql(f"CREATE TABLE {scratch.settings.catalog_name}.raw.regular_events (n INT) USING iceberg")
        assert warehouse in place.parents
        assert list(place.glob("raw/regular_events/metadata/*.metadata.json"))
    assert sorted(warehouse.rglob("*")) == before
