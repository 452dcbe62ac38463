"""Redeliveries (touched, replaced, re-sharded, moved while being read): raw keeps the latest."""

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
from tests.support.builders import LATER, a_body, an_event, events_on
from tests.support.world import Steps, Story, stories_in, tell

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW, REFINED, QUARANTINE = "raw/regular_events", "refined/events", "raw/quarantine"


@pytest.fixture
def pipeline(pipeline: Any) -> Any:
    """Without aggregates, which depend on refined alone."""
    return partial(pipeline, only=(RAW, REFINED))


def a_touched_object_is_hashed_and_not_parsed(p: Story) -> Steps:
    """Scenario: the same bytes come under another etag. Outcome: the etag is on record; nothing is parsed or published."""
    key = p.deliver(DAY, events_on(DAY, 30))
    yield p.must_load(DAY)
    before, etag = p.history(), p.delivery(key, DAY).etag
    os.utime(p.landing / key, (1, 1))
    p.change(max_line_bytes=10)
    yield p.must_load(DAY)
    assert p.history() == before
    assert p.delivery(key, DAY).etag != etag
    assert p.count(RAW) == 30


def only_files_with_replaced_rows_are_rewritten(p: Story) -> Steps:
    """Scenario: one of two objects is replaced, and repeats rows of the next day.
    Outcome: its rows are the new ones; the other object's file and the unchanged event day stay."""
    first = p.deliver(DAY, [*events_on(NEXT, 5, prefix="n"), *events_on(DAY, 20, prefix="a")], hour=1)
    yield p.must_load(DAY)
    files_a, files_next = p.files(RAW, DAY), p.files(RAW, NEXT)
    p.deliver(DAY, events_on(DAY, 20, prefix="b"), hour=2)
    yield p.must_load(DAY)
    files_b = p.files(RAW, DAY) - files_a
    assert files_a
    assert files_b
    known = len(p.publications())
    assert p.deliver(DAY, [*events_on(NEXT, 5, prefix="n"), *events_on(DAY, 23, prefix="a")[3:]], hour=1) == first
    yield p.must_load(DAY)
    assert p.files(RAW, DAY) >= files_b
    assert not p.files(RAW, DAY) & files_a
    assert p.files(RAW, NEXT) == files_next
    assert {one.key.event_date for one in p.publications()[known:]} == {DAY}
    ids = {row["insert_id"] for row in p.rows(RAW) if row["event_date"] == DAY}
    assert ids == {f"a-{DAY}-{n}" for n in range(3, 23)} | {f"b-{DAY}-{n}" for n in range(20)}
    assert p.count(RAW, DAY) == p.count(REFINED, DAY) == 40


def a_resharded_hour_keeps_its_rows_once(p: Story) -> Steps:
    """Scenario: two objects come as three, then a shard is corrected. Outcome: raw alone changes, then the shard's rows."""
    rows = events_on(DAY, 30)
    old = [p.deliver(DAY, rows[:15], shard=1), p.deliver(DAY, rows[15:], shard=2)]
    yield p.must_load(DAY)
    digests, history = p.digests(), p.history()
    p.remove(*old)
    new = [p.deliver(DAY, rows[start : start + 10], shard=7 + start) for start in (0, 10, 20)]
    yield p.must_load(DAY)
    assert p.digests() == digests
    assert {row["_object_key"] for row in p.rows(RAW)} == set(new)
    assert p.history()[REFINED] == history[REFINED]
    p.deliver(DAY, rows[1:10], shard=7)
    yield p.must_load(DAY)
    assert p.count(RAW) == p.count(REFINED) == 29


def rows_that_changed_objects_can_still_be_replaced(p: Story) -> Steps:
    """Scenario: two objects swap their rows, then one of them comes with fewer. Outcome: the right rows leave."""
    a, b = events_on(DAY, 5, prefix="a"), events_on(DAY, 5, prefix="b")
    for one, other in ((a, b), (b, a)):
        p.deliver(DAY, one, shard=1)
        p.deliver(DAY, other, shard=2)
        yield p.must_load(DAY)
    p.deliver(DAY, b[:2], shard=1)
    yield p.must_load(DAY)
    assert {row["insert_id"] for row in p.rows(RAW)} == {e["$insert_id"] for e in (*a, *b[:2])}


def lines_in_another_order_are_numbered_anew(p: Story) -> Steps:
    """Scenario: an object's lines come in another order. Outcome: raw has the new line numbers; refined is unchanged."""
    rows = events_on(DAY, 4)
    p.deliver(DAY, rows)
    yield p.must_load(DAY)
    before = p.files(REFINED, DAY)
    p.deliver(DAY, rows[::-1])
    yield p.must_load(DAY)
    places = {row["uuid"]: row["_line_number"] for row in p.rows(RAW)}
    assert [places[row["uuid"]] for row in rows] == [4, 3, 2, 1]
    assert p.files(REFINED, DAY) == before


def equal_line_numbers_on_two_days_do_not_meet(p: Story) -> Steps:
    """Scenario: an object of two days comes reversed with one line changed, a duplicate.
    Outcome: raw numbers both days' lines anew; only the duplicate is dropped."""
    first, second = an_event(insert_id="one"), an_event(insert_id="two", event_time=f"{NEXT} 10:00:00.000000")
    key = p.deliver(DAY, [first, second], hour=3)
    p.deliver(DAY, [{**second, "server_upload_time": "2026-02-04 00:00:00.000000", "uuid": "u-9"}], hour=4)
    p.deliver(NEXT, events_on(NEXT, 1, prefix="a"))
    yield p.must_load(DAY, NEXT)
    p.deliver(DAY, [{**second, "city": "Bern"}, first], hour=3)
    yield p.must_load(DAY)
    lines = {r["insert_id"]: r["_line_number"] for r in p.rows(RAW) if r["_object_key"] == key}
    assert lines == {"two": 1, "one": 2}
    assert sorted(row["insert_id"] for row in p.rows(REFINED))[-2:] == ["one", "two"]


def a_day_grows_hour_by_hour(p: Story) -> Steps:
    """Scenario: loads every few hours; a file of several hours; a closed hour grows. Outcome: provisional, then final."""
    p.now = datetime(2026, 2, 2, 12, tzinfo=UTC)
    expected = 0
    for hour in (1, 2, 5):
        span = [e for part in range(3) for e in events_on(DAY, 4, prefix=f"h{hour}-{part}")]
        p.deliver(DAY, span, hour=hour)
        p.mark(DAY, hours=[hour])
        expected += len(span)
        yield p.must_load(DAY)
        assert p.count(RAW) == p.count(REFINED) == expected
    assert not p.record(REFINED, DAY).is_final
    p.deliver(DAY, events_on(DAY, 3, prefix="after-close"), hour=2, shard=9)
    yield p.must_load(DAY)
    assert p.count(REFINED) == expected + 3
    p.deliver(DAY, events_on(DAY, 2, prefix="h5-0"), hour=5)
    yield p.must_load(DAY)
    assert p.count(RAW) == p.count(REFINED) == expected + 3 - 10
    history = p.history()
    p.now = LATER
    yield p.must_load(DAY)
    assert not p.record(REFINED, DAY).is_final, "hours that never came are not made fine by a deadline"
    p.mark(DAY)
    yield p.must_load(DAY)
    assert p.record(REFINED, DAY).is_final
    assert p.history() == history


def a_refused_version_hides_nothing(p: Story) -> Steps:
    """Scenario: an unreadable version, then the first bytes again. Outcome: refused, then accepted by hash alone."""
    rows = events_on(DAY, 10)
    key = p.deliver(DAY, [*rows, b"not json"])
    p.deliver(DAY, events_on(DAY, 3, prefix="other"), hour=11)
    yield p.must_load(DAY)
    p.deliver(DAY, rows, truncated=True)
    run = yield p.load(DAY)
    assert not run.success
    assert key in run.failure()
    assert p.count(REFINED) == 13
    found = {(row["reason"], row["is_batch_accepted"]) for row in p.rows(QUARANTINE)}
    assert found == {("bad_json", True), ("truncated_gzip", False)}
    history = p.history()
    p.deliver(DAY, [*rows, b"not json"])
    yield p.must_load(DAY)
    assert [(row["reason"], row["is_batch_accepted"]) for row in p.rows(QUARANTINE)] == [("bad_json", True)]
    assert p.history() == history
    assert not p.ledger.deliveries(Source.REGULAR, [p.project], DAY, DAY, is_accepted=False)


def a_refused_version_that_is_withdrawn_takes_the_accepted_rows_along(p: Story) -> Steps:
    """Scenario: an unreadable version is deleted; its hour has a new object. Outcome: nothing of the old object is left."""
    key = p.deliver(DAY, events_on(DAY, 10), shard=1)
    yield p.must_load(DAY)
    p.deliver(DAY, events_on(DAY, 10), shard=1, truncated=True)
    assert not (yield p.load(DAY)).success
    p.remove(key)
    p.deliver(DAY, events_on(DAY, 3, prefix="other"), shard=2)
    yield p.must_load(DAY)
    assert p.count(RAW) == p.count(REFINED) == 3
    assert p.rows(QUARANTINE) == []


def quarantined_lines_are_read_again_by_another_parser(p: Story) -> Steps:
    """Scenario: the bound on a line's length is raised. Outcome: the next load reads the affected object alone again."""
    p.change(max_line_bytes=4000)
    long = an_event(insert_id="long", event_properties={"text": "x" * 5000})
    p.deliver(DAY, [*events_on(DAY, 5, prefix="a"), long], hour=1)
    clean = p.deliver(DAY, events_on(DAY, 5, prefix="b"), hour=2)
    yield p.must_load(DAY)
    assert p.count(REFINED) == 10
    assert [row["reason"] for row in p.rows(QUARANTINE)] == ["line_too_long"]
    code = p.delivery(clean, DAY).code_version
    p.change(max_line_bytes=8000)
    yield p.must_load(DAY)
    assert p.count(RAW) == p.count(REFINED) == 11
    assert p.rows(QUARANTINE) == []
    assert (p.batch(DAY).verdict.value, p.batch(DAY).reason) == ("accepted", None)
    assert p.delivery(clean, DAY).code_version == code


def test_deliveries_come_again(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()))


class MovingLanding(LandingStore):
    def then(self, times: int, act: Callable[[int], None]) -> MovingLanding:
        """Set what happens; `act` gets the number of the listing."""
        self._left, self._act, self.listings = times, act, 0
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "_act"}

    def list(self, source: Source, *others: Any) -> Listing:
        """The listing, outdated when it is returned."""
        listing = super().list(source, *others)
        self.listings += 1
        if self._left:
            self._left -= 1
            self._act(self.listings)
        return listing


def test_objects_that_move_are_listed_again_until_they_rest(pipeline: Any) -> None:
    """Scenario: objects are overwritten or deleted between listing and reading, once or all the time.
    Outcome: the run lists again and loads the new state; a batch that keeps moving waits, others go on."""
    p = pipeline()
    landing = MovingLanding.from_settings(p.settings)
    p.resources["landing"] = landing
    p.deliver(DAY, events_on(DAY, 4, prefix="kept"), shard=2)
    path: Path = p.landing / p.deliver(DAY, events_on(DAY, 10))
    overwrite = lambda turn: path.write_bytes(a_body(events_on(DAY, 10 + turn)))  # noqa: E731 - one of two acts
    landing.then(1, overwrite)
    p.must_run(DAY, tables=[RAW])
    assert (landing.listings, p.count(RAW)) == (2, 15)
    p.now = datetime(2026, 2, 20, tzinfo=UTC)
    p.deliver(DAY, events_on(DAY, 20))
    landing.then(1, lambda _: path.unlink())
    p.deliver(DAY, events_on(DAY, 1, prefix="instead"), shard=3)
    p.must_run(DAY, tables=[RAW])
    assert landing.listings > 1
    assert p.count(RAW) == 5

    p.deliver(NEXT, events_on(NEXT, 5))
    path.write_bytes(a_body(events_on(DAY, 10)))
    landing.then(9, overwrite)
    run = p.run(DAY, NEXT)
    assert not run.success
    assert "objects changed while they were read: 1" in run.failure()
    assert run.materialized(REFINED) == {str(NEXT)}
    assert (p.count(RAW, DAY), p.count(REFINED, NEXT), p.verdict(REFINED, DAY)) == (5, 5, "waiting")
    landing.then(0, overwrite)
    p.must_run(DAY, NEXT)
    assert p.count(REFINED, DAY) == 17

    bad = p.deliver(NEXT, events_on(NEXT, 5), shard=2, truncated=True)
    path.write_bytes(a_body(events_on(DAY, 3)))
    landing.then(1, overwrite)
    run = p.run(DAY, NEXT, tables=[RAW])
    assert not run.success
    assert bad in run.failure()
    assert p.count(RAW, DAY) == 16
    p.must_run(DAY, NEXT, tables=[RAW])


def test_an_object_that_moves_between_two_readings_is_read_again(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: an object is overwritten before its batch is staged again. Outcome: only the new state is published."""
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
    assert p.count(RAW, DAY) == p.count(REFINED, DAY) == 7
    assert not p.lakehouse.branches.sweep([table_by_key(RAW)], lambda _: False)
    assert p.history()[RAW] == 2
