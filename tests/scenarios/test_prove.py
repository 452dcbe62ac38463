"""`prove`: a replay shows that the published days are landing's content; tampering is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.scratch import replay_runtime, replay_settings
from pipeline_assets.inspection.verify import Proof, ReplayMatch, prove
from pipeline_assets.load.runtime import Runtime
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog
from tests.support.builders import PROJECT, Pipeline, an_event, events_on
from tests.support.prepared import Again, a_prepared_pipeline

pytestmark = pytest.mark.slow
DAYS = tuple(date(2026, 2, 2) + timedelta(days=shift) for shift in range(4))
REFINED, REVENUE = "refined/events", "aggregates/daily_revenue"


def _prove(p: Pipeline, folder: Path, first: date = DAYS[0], last: date = DAYS[-1]) -> Proof:
    landing = LandingStore.from_settings(p.settings)
    runtime = Runtime(p.lakehouse, p.ledger, landing, p.settings)
    own = replay_settings(p.settings, str(folder), str(folder / "warehouse"))
    folder.mkdir()
    configure_catalog(p.spark, own)
    with closing(Ledger(own.ledger_database_url)) as ledger:
        scratch = Runtime(Lakehouse(p.spark, own.catalog_name), ledger, landing, own)
        return prove(runtime, scratch, first, last, (PROJECT,), p.now)


def _load(p: Pipeline) -> None:
    """Days with late facts, an event that moved over midnight, a recovery, duplicates and an excluded object."""
    for day in DAYS:
        p.deliver(day, events_on(day, 40))
    late = [
        an_event(
            insert_id=f"late{n}",
            uuid=f"late{n}",
            event_time=f"{DAYS[0]} 23:00:00.000000",
            server_upload_time=f"{DAYS[3]} 01:00:00.000000",
        )
        for n in range(3)
    ]
    moved = {
        **events_on(DAYS[1], 40)[3],
        "uuid": "again",
        "event_time": f"{DAYS[2]} 00:10:00.000000",
        "server_upload_time": f"{DAYS[2]} 12:00:00.000000",
    }
    p.deliver(DAYS[3], [*late, *events_on(DAYS[3], 10)], hour=11)
    p.deliver(DAYS[2], [moved], hour=12)
    p.deliver(DAYS[1], [*events_on(DAYS[1], 40), *events_on(DAYS[1], 5, prefix="lost")], source=Source.BACKFILL)
    wrong = p.deliver(DAYS[0], events_on(DAYS[0], 7, prefix="wrong"), hour=13)
    for day in DAYS:
        assert p.load(day).success
    assert p.load(DAYS[1], source=Source.BACKFILL).success
    assert p.load(DAYS[0], exclude={wrong: "test device"}).success


@pytest.fixture(scope="module")
def loaded_again(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Again[None]]:
    with a_prepared_pipeline(spark, tmp_path_factory.mktemp("loaded"), _load) as again:
        yield again


@pytest.fixture
def loaded(loaded_again: Again[None]) -> Iterator[Pipeline]:
    with loaded_again() as (p, _):
        yield p


def _found(proof: Proof) -> list[tuple[str, date, ReplayMatch]]:
    return [(one.table, one.key.event_date, one.match) for one in proof.slices if one.match is not ReplayMatch.EQUAL]


def test_what_is_published_is_proven_and_what_was_tampered_with_is_named(loaded: Any, tmp_path: Path) -> None:
    """Scenario: loaded, recovered and corrected days are proven; then columns, keys, hashes and rows change behind our
    back. Outcome: all is equal and unchanged; then exactly the tampered slices are named, each with its fault."""
    p = loaded
    before = p.history(), p.digests(), len(p.ledger.publications())

    whole = _prove(p, tmp_path / "whole")
    one = _prove(p, tmp_path / "one", DAYS[2], DAYS[2])

    assert whole.is_proven, _found(whole)
    assert one.is_proven, _found(one)
    assert {key.event_date for key in (c.key for c in whole.slices)} == set(DAYS)
    assert {c.table for c in whole.slices} >= {REFINED, REVENUE, "raw/regular_events", "raw/backfill_events"}
    assert {c.published.rows for c in whole.slices if (c.table, c.key.event_date) == (REFINED, DAYS[0])} == {43}
    assert (whole.excluded, whole.objects) == (1, 7)
    assert {c.key.event_date for c in one.slices} == {DAYS[2]}
    assert (p.history(), p.digests(), len(p.ledger.publications())) == before

    raw, refined = (f"{p.settings.catalog_name}.{name}" for name in ("raw.regular_events", "refined.events"))
    revenue = f"{p.settings.catalog_name}.aggregates.daily_revenue"
    extra = DAYS[-1] + timedelta(days=1)
    p.spark.sql(
        f"UPDATE {refined} SET city = 'Elsewhere' WHERE event_date = DATE '{DAYS[0]}' AND insert_id = 'e-{DAYS[0]}-5'"
    )
    p.spark.sql(f"DELETE FROM {refined} WHERE event_date = DATE '{DAYS[2]}'")
    p.spark.sql(
        f"UPDATE {refined} SET _key_b = _key_b + 1 WHERE event_date = DATE '{DAYS[3]}' AND insert_id = 'e-{DAYS[3]}-5'"
    )
    p.spark.sql(
        f"UPDATE {raw} SET _meaning_hash = 1 WHERE event_date = DATE '{DAYS[2]}' AND insert_id = 'e-{DAYS[2]}-7'"
    )
    p.spark.sql(
        f"UPDATE {raw} SET region = 'Elsewhere' WHERE event_date = DATE '{DAYS[1]}' AND insert_id = 'e-{DAYS[1]}-7'"
    )
    p.spark.sql(
        f"INSERT INTO {revenue} SELECT DATE '{extra}', project_id, currency, revenue, purchases, paying_users "
        f"FROM {revenue} WHERE event_date = DATE '{DAYS[0]}'"
    )

    proof = _prove(p, tmp_path / "proof", DAYS[0], extra)

    assert not proof.is_proven
    assert _found(proof) == [
        ("raw/regular_events", DAYS[1], ReplayMatch.DIFFERS),
        ("raw/regular_events", DAYS[2], ReplayMatch.DIFFERS),
        (REFINED, DAYS[0], ReplayMatch.DIFFERS),
        (REFINED, DAYS[2], ReplayMatch.MISSING),
        (REFINED, DAYS[3], ReplayMatch.DIFFERS),
        (REVENUE, extra, ReplayMatch.EXTRA),
    ]
    tampered = next(one for one in proof.slices if (one.table, one.key.event_date) == (REFINED, DAYS[0]))
    assert tampered.published.rows == tampered.replayed.rows == 43
    assert tampered.published != tampered.replayed


def test_days_that_stand_refused_differ_and_those_that_landing_lacks_are_unproven(loaded: Any, tmp_path: Path) -> None:
    """Outcome: days with a lost or unloaded object are unproven, by name; a refused day differs and says why."""
    p = loaded
    p.deliver(DAYS[1], events_on(DAYS[1], 700, prefix="twice"), hour=14)
    assert not p.load(DAYS[1]).success
    (gone,) = [key for key in p.ledger.deliveries(Source.REGULAR, [PROJECT], DAYS[0], DAYS[0]) if "_10#" in key]
    p.remove(gone)
    new = p.deliver(DAYS[3], events_on(DAYS[3], 4, prefix="new"), hour=20)

    proof = _prove(p, tmp_path / "proof")

    assert not proof.is_proven
    found = [one for one in proof.slices if one.match is not ReplayMatch.EQUAL]
    assert {(one.key.event_date, one.match) for one in found} == {
        (DAYS[0], ReplayMatch.UNPROVEN),
        (DAYS[1], ReplayMatch.DIFFERS),
        (DAYS[3], ReplayMatch.UNPROVEN),
    }
    refused = [one for one in found if (one.table, one.key.event_date) == (REFINED, DAYS[1])]
    assert "is refused: change_is_explained" in str([one.reason for one in refused])
    assert all(gone in str(one.reason) for one in found if one.key.event_date == DAYS[0])
    assert all(new in str(one.reason) for one in found if one.key.event_date == DAYS[3])


def test_what_a_person_let_go_is_proven_and_what_came_since_is_named(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: an operator accepted an empty arrival day; later an object of it arrives. Outcome: equal; then unproven."""
    p = pipeline()
    late = [
        an_event(
            insert_id=f"late{n}",
            uuid=f"late{n}",
            event_time=f"{DAYS[1]} 23:00:00.000000",
            server_upload_time=f"{DAYS[2]} 01:00:00.000000",
        )
        for n in range(4)
    ]
    p.deliver(DAYS[0], events_on(DAYS[0], 5))
    p.deliver(DAYS[2], [*late[:3], *events_on(DAYS[2], 10)])
    assert p.load(DAYS[0]).success
    assert p.load(DAYS[1], accept={f"raw/regular_events:{DAYS[1]}": "an outage of theirs"}).success
    assert p.load(DAYS[2]).success
    assert p.count(REFINED, DAYS[1]) == 3

    whole = _prove(p, tmp_path / "whole", DAYS[1], DAYS[1])
    since = p.deliver(DAYS[2] + timedelta(days=3), late[3:])
    proof = _prove(p, tmp_path / "proof", DAYS[1], DAYS[1])

    assert whole.is_proven, _found(whole)
    differing = [one for one in proof.slices if one.match is not ReplayMatch.EQUAL]
    assert {one.match for one in differing} == {ReplayMatch.UNPROVEN}
    assert {one.reason for one in differing} == {f"{since} is in landing and not loaded"}


def test_a_replay_on_a_disk_that_workers_share_leaves_nothing_there(pipeline: Any, tmp_path: Path) -> None:
    """Outcome: the replay's tables lie in the shared warehouse folder, and are gone afterwards."""
    p = pipeline()
    shared = p.settings.model_copy(update={"spark_master": "spark://host:7077", "spark_shared_disk": True})
    runtime = Runtime(p.lakehouse, p.ledger, LandingStore.from_settings(p.settings), shared)
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
