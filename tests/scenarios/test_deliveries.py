"""Every way a delivery can come again: touched, replaced, re-sharded, moved while being read; raw keeps what was delivered."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import Listing
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.deliveries import accept
from pipeline_assets.tables.registry import table_by_key
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, a_body, an_event, events_on

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW = "raw/regular_events"
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Past the deadline, inside the redelivery horizon."""


@pytest.fixture
def pipeline(pipeline: Any) -> Any:
    """One that builds no aggregates: they follow from refined, however a delivery came."""
    return partial(pipeline, only=(RAW, "refined/events"))


def _etag(p: Any, key: str) -> str:
    return str(p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, NEXT)[key].etag)


def test_a_touched_object_is_hashed_and_not_parsed(pipeline: Any) -> None:
    """Scenario: the same bytes come again under another etag, while the parser could not read them any more.
    Outcome: the new etag is on record, nothing is parsed, refused or published."""
    p = pipeline()
    key = p.deliver(DAY, events_on(DAY, 30))
    assert p.load(DAY).success
    before, etag = p.history(), _etag(p, key)
    os.utime(p.landing / key, (1, 1))
    p.change(max_line_bytes=10)

    run = p.load(DAY)

    assert run.success, run.failure()
    assert p.history() == before
    assert _etag(p, key) != etag
    assert p.count(RAW) == 30


def test_only_files_with_replaced_rows_are_rewritten(pipeline: Any) -> None:
    """Scenario: two objects of a day were loaded by two runs; one is replaced, and brings the next day's rows again.
    Outcome: the other object's file stays; the event day whose rows did not change is left alone."""
    p = pipeline()
    first = p.deliver(DAY, [*events_on(NEXT, 5, prefix="n"), *events_on(DAY, 20, prefix="a")], hour=1)
    assert p.load(DAY).success
    files_a, files_next = p.files(RAW, DAY), p.files(RAW, NEXT)
    p.deliver(DAY, events_on(DAY, 20, prefix="b"), hour=2)
    assert p.load(DAY).success
    files_b = p.files(RAW, DAY) - files_a
    assert files_a
    assert files_b

    known = len(p.ledger.publications())
    assert p.deliver(DAY, [*events_on(NEXT, 5, prefix="n"), *events_on(DAY, 22, prefix="a")], hour=1) == first
    run = p.load(DAY)

    assert run.success, run.failure()
    assert p.files(RAW, DAY) >= files_b
    assert not p.files(RAW, DAY) & files_a
    assert p.files(RAW, NEXT) == files_next
    changed = {(r.table, r.key.event_date) for r in p.ledger.publications()[known:]}
    assert {day for _, day in changed} == {DAY}
    assert p.count(RAW, DAY) == p.count("refined/events", DAY) == 42


def test_a_resharded_hour_keeps_its_rows_once(pipeline: Any) -> None:
    """Scenario: an hour of two objects is written again as three, with the same rows; later one shard is corrected.
    Outcome: raw names the new objects, refined is not touched; the correction replaces exactly its shard's rows."""
    p = pipeline()
    p.now = SOON
    rows = events_on(DAY, 30)
    old = [p.deliver(DAY, rows[:15], shard=1), p.deliver(DAY, rows[15:], shard=2)]
    assert p.load(DAY).success
    digests, history = p.digests(), p.history()
    p.remove(*old)
    new = [p.deliver(DAY, rows[start : start + 10], shard=7 + start) for start in (0, 10, 20)]

    run = p.load(DAY)

    assert run.success, run.failure()
    assert p.digests() == digests
    assert {row["_object_key"] for row in p.rows(RAW)} == set(new)
    assert p.history() == {**history, RAW: history[RAW] + 1}

    p.deliver(DAY, rows[1:10], shard=7)
    assert p.load(DAY).success
    assert p.count(RAW) == p.count("refined/events") == 29


def test_rows_that_changed_objects_can_still_be_replaced(pipeline: Any) -> None:
    """Scenario: two objects swap their rows, then one of them comes with fewer. Outcome: the right rows leave."""
    p = pipeline()
    a, b = events_on(DAY, 5, prefix="a"), events_on(DAY, 5, prefix="b")
    p.deliver(DAY, a, shard=1)
    p.deliver(DAY, b, shard=2)
    assert p.load(DAY).success
    p.deliver(DAY, b, shard=1)
    p.deliver(DAY, a, shard=2)
    assert p.load(DAY).success
    p.deliver(DAY, b[:2], shard=1)
    run = p.load(DAY)
    assert run.success, run.failure()
    assert {row["insert_id"] for row in p.rows(RAW)} == {e["$insert_id"] for e in (*a, *b[:2])}


def test_lines_in_another_order_are_numbered_anew(pipeline: Any) -> None:
    """Scenario: an object comes again with the same lines in another order. Outcome: raw tells where each line lies now; refined,
    whose content is the same, is not touched."""
    p = pipeline()
    rows = events_on(DAY, 4)
    p.deliver(DAY, rows)
    assert p.load(DAY).success
    before = p.files("refined/events", DAY)
    p.deliver(DAY, rows[::-1])
    run = p.load(DAY)
    assert run.success, run.failure()
    places = {row["uuid"]: row["_line_number"] for row in p.rows("raw/regular_events")}
    assert [places[row["uuid"]] for row in rows] == [4, 3, 2, 1]
    assert p.files("refined/events", DAY) == before


def test_equal_line_numbers_on_two_days_do_not_meet(pipeline: Any) -> None:
    """Scenario: an object of two days comes again with its lines turned round and one of them changed; that one is a duplicate.
    Outcome: raw numbers both lines as they lie now, also on the day whose rows are the same; only the duplicate is dropped."""
    p = pipeline()
    first, second = an_event(insert_id="one"), an_event(insert_id="two", event_time=f"{NEXT} 10:00:00.000000")
    key = p.deliver(DAY, [first, second], hour=3)
    p.deliver(DAY, [{**second, "server_upload_time": "2026-02-04 00:00:00.000000", "uuid": "u-9"}], hour=4)
    p.deliver(NEXT, events_on(NEXT, 1, prefix="a"))
    assert p.load(DAY, NEXT).success
    p.deliver(DAY, [{**second, "city": "Bern"}, first], hour=3)
    run = p.load(DAY)
    assert run.success, run.failure()
    lines = {r["insert_id"]: r["_line_number"] for r in p.rows(RAW) if r["_object_key"] == key}
    assert lines == {"two": 1, "one": 2}
    assert sorted(row["insert_id"] for row in p.rows("refined/events"))[-2:] == ["one", "two"]


def test_a_day_grows_hour_by_hour(pipeline: Any) -> None:
    """Scenario: the day is loaded after every few hours, one file holds several hours, and an hour that was closed
    by its marker gets another file. Outcome: each load adds exactly what came; the day is provisional, then final."""
    p = pipeline()
    p.now = datetime(2026, 2, 2, 12, tzinfo=UTC)
    expected = 0
    for hour in (1, 2, 5):
        span = [e for part in range(3) for e in events_on(DAY, 4, prefix=f"h{hour}-{part}")]
        p.deliver(DAY, span, hour=hour)
        p.mark(DAY, hours=[hour])
        expected += len(span)
        assert p.load(DAY).success
        assert p.count(RAW) == p.count("refined/events") == expected
    assert not _is_final(p)

    p.deliver(DAY, events_on(DAY, 3, prefix="after-close"), hour=2, shard=9)
    assert p.load(DAY).success
    assert p.count("refined/events") == expected + 3

    p.deliver(DAY, events_on(DAY, 2, prefix="h5-0"), hour=5)
    assert p.load(DAY).success
    assert p.count(RAW) == p.count("refined/events") == expected + 3 - 10

    history = p.history()
    p.now = datetime(2026, 6, 1, tzinfo=UTC)
    run = p.load(DAY)
    assert run.success, run.failure()
    assert not _is_final(p), "hours that never came are not made fine by a deadline"
    p.mark(DAY)
    assert p.load(DAY).success
    assert _is_final(p)
    assert p.history() == history


def _is_final(p: Any) -> bool:
    return all(record.is_final for record in p.ledger.slices("refined/events", [PROJECT], [DAY]).values())


class MovingLanding(LandingStore):
    """Landing in which something happens between the listing and the reading, a number of times."""

    def then(self, times: int, act: Callable[[int], None]) -> MovingLanding:
        """Set what happens; `act` gets the number of the listing."""
        self._left, self._act, self.listings = times, act, 0
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_act"}

    def list(self, source: Source, *others: Any) -> Listing:
        """The listing, outdated by the time it is returned."""
        listing = super().list(source, *others)
        self.listings += 1
        if self._left:
            self._left -= 1
            self._act(self.listings)
        return listing


@pytest.mark.parametrize("is_deleted", [False, True], ids=["overwritten", "deleted"])
def test_an_object_that_moves_once_is_listed_again(pipeline: Any, is_deleted: bool) -> None:
    """Scenario: between listing and reading an object is overwritten, or deleted. Outcome: the run lists once more
    and loads what is there then."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 4, prefix="kept"), shard=2)
    key = p.deliver(DAY, events_on(DAY, 10))
    path: Path = p.landing / key
    landing = MovingLanding.from_settings(p.settings)
    body = a_body(events_on(DAY, 7))
    p.resources["landing"] = landing.then(1, lambda _: path.unlink() if is_deleted else path.write_bytes(body))

    run = p.run(DAY)

    assert run.success, run.failure()
    assert landing.listings == 2
    assert p.count(RAW) == p.count("refined/events") == (4 if is_deleted else 11)


def test_an_object_that_moves_between_two_readings_is_read_again(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a batch is refused after its rows were staged with another's, which is staged once more; an object of it
    was overwritten meanwhile. Outcome: nothing of the mixed reading is published, the run reads what is there then."""
    p = pipeline()
    path: Path = p.landing / p.deliver(DAY, events_on(DAY, 10))
    p.deliver(NEXT, events_on(NEXT, 5), truncated=True)
    again, turns = accept.stage_accepted, []

    def overwritten_first(*arguments: Any) -> Any:
        turns.append(len(turns))
        if turns == [0]:
            path.write_bytes(a_body(events_on(DAY, 7)))
        return again(*arguments)

    monkeypatch.setattr(accept, "stage_accepted", overwritten_first)

    run = p.load(DAY, NEXT)

    assert not run.success
    assert str(NEXT) in run.failure()
    assert turns == [0, 1]
    assert p.count(RAW, DAY) == p.count("refined/events", DAY) == 7
    table = table_by_key(RAW)
    assert not p.lakehouse.branches.sweep([table], lambda _: False)
    assert p.history()[RAW] == 2


def test_an_object_that_keeps_moving_waits(pipeline: Any) -> None:
    """Scenario: an object is overwritten whenever it was listed; another day is quiet. Outcome: that batch waits and
    says so, the other day is published; when it rests, the next load takes it."""
    p = pipeline()
    p.deliver(NEXT, events_on(NEXT, 5))
    path: Path = p.landing / p.deliver(DAY, events_on(DAY, 10))
    landing = MovingLanding.from_settings(p.settings)
    p.resources["landing"] = landing.then(9, lambda turn: path.write_bytes(a_body(events_on(DAY, 10 + turn))))

    run = p.run(DAY, NEXT)

    assert not run.success
    assert "objects changed while they were read: 1" in run.failure()
    assert run.materialized("refined/events") == {str(NEXT)}
    assert (p.count(RAW, DAY), p.count("refined/events", NEXT)) == (0, 5)
    assert p.verdict("refined/events", DAY) == "waiting"

    landing.then(0, lambda _: None)
    assert p.run(DAY, NEXT).success
    assert p.count("refined/events", DAY) == 12


def test_a_refusal_is_told_though_another_batch_was_listed_again(pipeline: Any) -> None:
    """Scenario: an object moves while it is read, another day's cannot be read; raw alone is loaded. Outcome: the run
    publishes the first, and fails for the second, which it refused before it listed again."""
    p = pipeline()
    path: Path = p.landing / p.deliver(DAY, events_on(DAY, 10))
    bad = p.deliver(NEXT, events_on(NEXT, 5), truncated=True)
    p.resources["landing"] = MovingLanding.from_settings(p.settings).then(
        1, lambda _: path.write_bytes(a_body(events_on(DAY, 7)))
    )

    run = p.run(DAY, NEXT, tables=[RAW])

    assert not run.success
    assert bad in run.failure()
    assert p.count(RAW, DAY) == 7
    assert p.run(DAY, NEXT, tables=[RAW]).success


def test_a_refused_version_hides_nothing(pipeline: Any) -> None:
    """Scenario: an accepted object is overwritten by one that cannot be read; then the first bytes come back.
    Outcome: refused, the old rows stay; then accepted by their hash alone, and quarantine holds nothing of it."""
    p = pipeline()
    rows = events_on(DAY, 10)
    key = p.deliver(DAY, [*rows, b"not json"])
    p.deliver(DAY, events_on(DAY, 3, prefix="other"), hour=11)
    assert p.load(DAY).success
    p.deliver(DAY, rows, truncated=True)
    run = p.load(DAY)
    assert not run.success
    assert key in run.failure()
    assert p.count("refined/events") == 13
    found = {(row["reason"], row["is_batch_accepted"]) for row in p.rows("raw/quarantine")}
    assert found == {("bad_json", True), ("truncated_gzip", False)}

    history = p.history()
    p.deliver(DAY, [*rows, b"not json"])
    healed = p.load(DAY)
    assert healed.success, healed.failure()
    assert [(row["reason"], row["is_batch_accepted"]) for row in p.rows("raw/quarantine")] == [("bad_json", True)]
    assert {**p.history(), "raw/quarantine": 0} == {**history, "raw/quarantine": 0}
    assert not p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY, is_accepted=False)


def test_a_refused_version_that_is_withdrawn_takes_the_accepted_rows_along(pipeline: Any) -> None:
    """Scenario: an accepted object is overwritten by one that cannot be read, which is then deleted; its hour holds
    another, new object. Outcome: withdrawn like any accepted object; nothing of it is left anywhere."""
    p = pipeline()
    p.now = SOON
    key = p.deliver(DAY, events_on(DAY, 10), shard=1)
    assert p.load(DAY).success
    p.deliver(DAY, events_on(DAY, 10), shard=1, truncated=True)
    assert not p.load(DAY).success
    p.remove(key)
    p.deliver(DAY, events_on(DAY, 3, prefix="other"), shard=2)
    run = p.load(DAY)
    assert run.success, run.failure()
    assert p.count(RAW) == p.count("refined/events") == 3
    assert p.rows("raw/quarantine") == []


def test_quarantined_lines_are_read_again_by_another_parser(pipeline: Any) -> None:
    """Scenario: a line was too long for the parser's bound; the bound is raised. Outcome: the next load reads that
    object again although nothing was delivered, and only that one."""
    p = pipeline(max_line_bytes=4000)
    long = an_event(insert_id="long", event_properties={"text": "x" * 5000})
    p.deliver(DAY, [*events_on(DAY, 5, prefix="a"), long], hour=1)
    clean = p.deliver(DAY, events_on(DAY, 5, prefix="b"), hour=2)
    assert p.load(DAY).success
    assert p.count("refined/events") == 10
    assert [row["reason"] for row in p.rows("raw/quarantine")] == ["line_too_long"]
    run_of_clean = _code(p, clean)

    p.change(max_line_bytes=8000)
    run = p.load(DAY)

    assert run.success, run.failure()
    assert p.count(RAW) == p.count("refined/events") == 11
    assert p.rows("raw/quarantine") == []
    assert _code(p, clean) == run_of_clean


def _code(p: Any, key: str) -> str:
    return str(p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, NEXT)[key].code_version)
