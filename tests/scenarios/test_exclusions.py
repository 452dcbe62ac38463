"""Deliveries that a person rules out: recomputed without them, brought back, on record; nothing else is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.slices import Source
from resources import failpoints
from resources.failpoints import Failpoint
from tests.support.builders import LATER, PROJECT, events_on
from tests.support.reference import require_known

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW, RECOVERED, REFINED = "raw/regular_events", "raw/backfill_events", "refined/events"
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Past the deadline, inside the redelivery horizon."""
TABLES = (REFINED, "aggregates/daily_revenue", "aggregates/event_counts", "aggregates/active_users")


def _accept(*days: date) -> dict[str, str]:
    return {f"{table}:{day}": "a recovery gone wrong" for table in TABLES for day in days}


def _standing(p: Any) -> list[Exclusion]:
    return [one for one in p.ledger.interventions.all_exclusions([PROJECT]) if one.lifted_at is None]


def test_a_wrong_recovery_is_ruled_out_and_counts_again(pipeline: Any) -> None:
    """Scenario: a wrong recovery export was loaded and accepted by mistake; long past the horizon it is excluded, then lifted.
    Outcome: every digest is what it was before the recovery, then what it was with it; both decisions are on record."""
    p = pipeline()
    p.now = LATER
    p.deliver(DAY, events_on(DAY, 200), hour=1)
    p.deliver(NEXT, events_on(NEXT, 200), hour=1)
    assert p.load(DAY, NEXT).success
    right = p.digests()
    wrong = [*events_on(DAY, 150, prefix="wrong"), *events_on(NEXT, 90, prefix="wrong")]
    key = p.deliver(DAY, wrong, source=Source.BACKFILL)
    assert p.load(DAY, source=Source.BACKFILL, accept=_accept(DAY, NEXT)).success
    mistaken = p.digests()
    assert p.count(REFINED) == 640

    run = p.load(DAY, source=Source.BACKFILL, exclude={key: "wrong project"}, accept=_accept(DAY, NEXT))

    assert run.success, run.failure()
    assert p.digests() == right
    assert p.count(RECOVERED) == 0
    (standing,) = _standing(p)
    assert (standing.object_key, standing.reason) == (key, "wrong project")
    (changed, *_) = p.ledger.publications(RECOVERED)[-2:]
    assert changed.cause.kind is CauseKind.EXCLUSION
    assert changed.accepted_reason == "1 excluded: wrong project"

    before = p.history()
    assert p.load(DAY, source=Source.BACKFILL).success
    assert p.history() == before

    run = p.load(DAY, source=Source.BACKFILL, include={key: "it was right after all"}, accept=_accept(DAY, NEXT))

    assert run.success, run.failure()
    assert p.digests() == mistaken
    assert _standing(p) == []
    (lifted,) = p.ledger.interventions.all_exclusions([PROJECT])
    assert lifted.lift_reason == "it was right after all"
    require_known(p)


def test_an_excluded_object_among_others(pipeline: Any) -> None:
    """Scenario: one of two objects of a day is excluded although the change is beyond bounds; nobody accepts that.
    Outcome: raw lacks exactly its rows, the day is green there and says why; refined is refused until accepted."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 200), hour=1)
    key = p.deliver(DAY, events_on(DAY, 200, prefix="other"), hour=2)
    assert p.load(DAY).success

    run = p.load(DAY, exclude={key: "sent by a test device"})

    assert not run.success
    assert "shrinks by 50.0%" in run.failure()
    assert p.count(RAW) == 200
    assert p.count(REFINED) == 400
    assert p.verdict(RAW, DAY) == "published"
    (batch,) = p.ledger.batches([PROJECT], DAY, DAY).values()
    assert batch.reason == "1 excluded: sent by a test device"
    assert batch.evaluations[0].figures["excluded_objects"] == 1
    assert p.load(DAY, accept=_accept(DAY)).success
    assert p.count(REFINED) == 200
    require_known(p)


def test_a_day_whose_only_object_is_excluded_is_empty_and_stands(pipeline: Any) -> None:
    """Scenario: the only object of a day is excluded. Outcome: the day is empty, green, and no load takes it for lost."""
    p = pipeline()
    p.now = SOON
    p.deliver(DAY, events_on(DAY, 12))
    key = p.deliver(NEXT, events_on(NEXT, 12))
    assert p.load(DAY, NEXT).success

    run = p.load(NEXT, exclude={key: "a rehearsal"})

    assert run.success, run.failure()
    assert p.count(REFINED) == 12
    assert p.load(DAY, NEXT).success
    assert p.verdict(REFINED, NEXT) == "unchanged"
    assert p.ledger.batches([PROJECT], NEXT, NEXT).popitem()[1].is_closed


def test_the_same_bytes_stay_excluded_and_another_version_does_not(pipeline: Any) -> None:
    """Scenario: an excluded object comes again, with its bytes under another etag, then corrected, then as it was.
    Outcome: its bytes stay excluded, which is recorded of the new etag; the correction is loaded, and stays."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10), hour=1)
    key = p.deliver(DAY, events_on(DAY, 10, prefix="bad"), hour=2)
    assert p.load(DAY).success
    assert p.load(DAY, exclude={key: "bad"}).success
    before = p.history()
    os.utime(p.landing / key, (1, 1))

    run = p.load(DAY)

    assert run.success, run.failure()
    assert p.history() == before
    assert len({one.etag for one in _standing(p)}) == 2
    p.deliver(DAY, events_on(DAY, 7, prefix="good"), hour=2)
    assert p.load(DAY).success
    assert p.count(RAW) == p.count(REFINED) == 17
    p.deliver(DAY, events_on(DAY, 10, prefix="bad"), hour=2)
    assert p.load(DAY).success
    assert p.count(RAW) == p.count(REFINED) == 17
    assert len({one.sha256 for one in _standing(p)}) == 1


def test_a_broken_object_is_excluded_and_its_day_goes_green(pipeline: Any) -> None:
    """Scenario: a day is refused for an object nobody can read; it is excluded.
    Outcome: the rest of the day is published; the refused version is forgotten."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10), hour=1)
    key = p.deliver(DAY, events_on(DAY, 10, prefix="cut"), hour=2, truncated=True)
    assert not p.load(DAY).success

    run = p.load(DAY, exclude={key: "the vendor cannot send it again"})

    assert run.success, run.failure()
    assert p.count(REFINED) == 10
    assert p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY, is_accepted=False) == {}


@contextmanager
def _before_the_publish(act: Callable[[], None]) -> Iterator[list[str]]:
    """Something happens when a load is about to publish for the first time; gives one text per publish that it tries."""
    tries: list[str] = []

    def watcher(point: Failpoint, _: str) -> None:
        if point is Failpoint.BEFORE_PUBLISH:
            tries.append(point)
            if len(tries) == 1:
                failpoints.watch()
                act()
                failpoints.watch(watcher)

    failpoints.watch(watcher)
    try:
        yield tries
    finally:
        failpoints.watch()


def test_what_a_person_decides_while_a_load_is_under_way_is_what_it_publishes(pipeline: Any) -> None:
    """Scenario: a load has staged another object of an old day, when a person excludes it, and the load that follows finds
    nothing of it in raw; later a load has staged the day without it, excluded once more, when a person includes it again.
    Outcome: the load gives the batch up, plans it with the decision, and says so; the object's rows are not there, then stay."""
    p = pipeline()
    p.now = LATER
    right = p.deliver(DAY, events_on(DAY, 20), hour=1)
    assert p.load(DAY).success
    wrong = p.deliver(DAY, events_on(DAY, 5, prefix="wrong"), hour=2)

    def exclude() -> None:
        done = p.load(DAY, exclude={wrong: "a test account"})
        assert done.success, done.failure()

    with _before_the_publish(exclude) as tries:
        run = p.load(DAY, accept=_accept(DAY))

    assert run.success, run.failure()
    assert len(tries) == 2
    assert p.count(RAW) == p.count(REFINED) == 20
    assert list(p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY)) == [right]
    (batch,) = p.ledger.batches([PROJECT], DAY, DAY).values()
    assert batch.reason == "1 excluded: a test account"
    require_known(p)

    assert p.load(DAY, include={wrong: "it counts"}, accept=_accept(DAY)).success
    assert p.count(REFINED) == 25

    def include() -> None:
        done = p.load(DAY, include={wrong: "it counts, once more"})
        assert done.success, done.failure()

    with _before_the_publish(include) as tries:
        run = p.load(DAY, exclude={wrong: "a mistake"}, accept=_accept(DAY))

    assert run.success, run.failure()
    assert len(tries) == 2
    assert p.count(RAW) == p.count(REFINED) == 25
    (batch,) = p.ledger.batches([PROJECT], DAY, DAY).values()
    assert batch.reason is None
    require_known(p)


def test_what_cannot_be_excluded_is_said(pipeline: Any) -> None:
    """Scenario: exclusions of unknown names, of another day, of the other source, without a reason, of what landing lost.
    Outcome: each is refused with object, reason and cure; nothing is recorded. What is lost may be excluded for good."""
    p = pipeline()
    p.now = SOON
    p.deliver(DAY, events_on(DAY, 5), hour=1)
    key = p.deliver(DAY, events_on(DAY, 5, prefix="b"), hour=2)
    other = key.replace("_2#1", "_3#1")
    recovery = p.deliver(DAY, events_on(DAY, 5, prefix="c"), source=Source.BACKFILL)
    assert p.run(DAY).success

    for named, day, said in (
        ("10001/readme.txt", DAY, "is not the key of a delivery"),
        (other, DAY, "is neither in landing nor on record"),
        (key, NEXT, f"arrived on {DAY}, which this run does not load"),
        (recovery, DAY, "is one of the backfill exports"),
    ):
        run = p.run(day, exclude={named: "why"})
        assert not run.success
        assert said in run.failure()
    assert "needs a reason" in p.run(DAY, exclude={key: " "}).failure()
    assert "was never excluded" in p.run(DAY, include={key: "why"}).failure()
    p.remove(key)
    assert "landing no longer holds it" in p.run(DAY, exclude={key: "why"}).failure()
    assert _standing(p) == []

    run = p.run(DAY, exclude={key: "why"}, even_if_gone=True)

    assert run.success, run.failure()
    assert p.count(RAW) == 5
