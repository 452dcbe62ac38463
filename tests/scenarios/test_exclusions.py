"""Excluded deliveries: days are recomputed without them, come back, stay on record; nothing else changes."""

from __future__ import annotations

import os
from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.slices import Source
from resources.failpoints import Failpoint
from tests.support.builders import LATER, PROJECT, RAW_AND_REFINED, events_on
from tests.support.points import once
from tests.support.reference import require_known
from tests.support.world import SOON, Steps, Story, stories_in, tell

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW, RECOVERED, REFINED = "raw/regular_events", "raw/backfill_events", "refined/events"


def _accept(*days: date) -> dict[str, str]:
    return {f"{REFINED}:{day}": "a recovery gone wrong" for day in days}


def _standing(p: Story) -> list[Exclusion]:
    return [one for one in p.ledger.interventions.all_exclusions([p.project]) if one.lifted_at is None]


def a_wrong_recovery_is_ruled_out_and_counts_again(p: Story) -> Steps:
    """Scenario: an accepted recovery is excluded long after, then included. Outcome: the digests of then, each time."""
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 200), hour=1)
    yield p.must_load(DAY, NEXT)
    right = p.digests()
    wrong = [*events_on(DAY, 150, prefix="wrong"), *events_on(NEXT, 90, prefix="wrong")]
    key = p.deliver(DAY, wrong, source=Source.BACKFILL)
    accept = _accept(DAY, NEXT)
    yield p.must_load(DAY, source=Source.BACKFILL, accept=accept)
    mistaken = p.digests()
    assert p.count(REFINED) == 640
    yield p.must_load(DAY, source=Source.BACKFILL, exclude={key: "wrong project"}, accept=accept)
    assert {table: of for table, of in p.digests().items() if of} == right
    assert p.count(RECOVERED) == 0
    (standing,) = _standing(p)
    assert (standing.object_key, standing.reason) == (key, "wrong project")
    changed = p.publications(RECOVERED)[-1]
    assert (changed.cause.kind, changed.accepted_reason) == (CauseKind.EXCLUSION, "1 excluded: wrong project")
    before = p.history()
    yield p.must_load(DAY, source=Source.BACKFILL)
    assert p.history() == before
    yield p.must_load(DAY, source=Source.BACKFILL, include={key: "it was right after all"}, accept=accept)
    assert p.digests() == mistaken
    assert _standing(p) == []
    (lifted,) = p.ledger.interventions.all_exclusions([p.project])
    assert lifted.lift_reason == "it was right after all"


def an_excluded_object_among_others(p: Story) -> Steps:
    """Scenario: one of two objects is excluded, beyond bounds. Outcome: raw drops its rows; refined is refused."""
    p.deliver(DAY, events_on(DAY, 200), hour=1)
    key = p.deliver(DAY, events_on(DAY, 200, prefix="other"), hour=2)
    yield p.must_load(DAY)
    run = yield p.load(DAY, exclude={key: "sent by a test device"})
    assert "shrinks by 50.0%" in run.failure()
    assert (p.count(RAW), p.count(REFINED), p.verdict(RAW, DAY)) == (200, 400, "published")
    assert p.batch(DAY).reason == "1 excluded: sent by a test device"
    assert p.batch(DAY).evaluations[0].figures["excluded_objects"] == 1
    yield p.must_load(DAY, accept=_accept(DAY))
    assert p.count(REFINED) == 200


def a_day_whose_only_object_is_excluded_is_empty_and_stands(p: Story) -> Steps:
    p.now = SOON
    p.deliver(DAY, events_on(DAY, 12))
    key = p.deliver(NEXT, events_on(NEXT, 12))
    yield p.must_load(DAY, NEXT)
    yield p.must_load(NEXT, exclude={key: "a rehearsal"})
    assert p.count(REFINED) == 12
    yield p.must_load(DAY, NEXT)
    assert p.verdict(REFINED, NEXT) == "unchanged"
    assert p.batch(NEXT).is_closed


def the_same_bytes_stay_excluded_and_another_version_does_not(p: Story) -> Steps:
    """Scenario: an excluded object comes under another etag, then corrected. Outcome: only the correction is loaded."""
    p.deliver(DAY, events_on(DAY, 10), hour=1)
    key = p.deliver(DAY, events_on(DAY, 10, prefix="bad"), hour=2)
    yield p.must_load(DAY)
    yield p.must_load(DAY, exclude={key: "bad"})
    before = p.history()
    os.utime(p.landing / key, (1, 1))
    yield p.must_load(DAY)
    assert p.history() == before
    assert len({one.etag for one in _standing(p)}) == 2
    for count, prefix in ((7, "good"), (10, "bad")):
        p.deliver(DAY, events_on(DAY, count, prefix=prefix), hour=2)
        yield p.must_load(DAY)
        assert p.count(RAW) == p.count(REFINED) == 17
    assert len({one.sha256 for one in _standing(p)}) == 1


def a_broken_object_is_excluded_and_its_day_goes_green(p: Story) -> Steps:
    p.deliver(DAY, events_on(DAY, 10), hour=1)
    key = p.deliver(DAY, events_on(DAY, 10, prefix="cut"), hour=2, truncated=True)
    assert not (yield p.load(DAY)).success
    yield p.must_load(DAY, exclude={key: "the vendor cannot send it again"})
    assert p.count(REFINED) == 10
    assert p.ledger.deliveries(Source.REGULAR, [p.project], DAY, DAY, is_accepted=False) == {}


def what_cannot_be_excluded_is_said(p: Story) -> Steps:
    """Outcome: each wrong exclusion is refused with object, reason and hint. A lost object may be excluded for good."""
    p.now = SOON
    p.deliver(DAY, events_on(DAY, 5), hour=1)
    key = p.deliver(DAY, events_on(DAY, 5, prefix="b"), hour=2)
    other = key.replace("_2#1", "_3#1")
    recovery = p.deliver(DAY, events_on(DAY, 5, prefix="c"), source=Source.BACKFILL)
    yield p.must_load(DAY)
    for named, day, reason, said in (
        (f"{p.project}/readme.txt", DAY, "why", "is not the key of a delivery"),
        (other, DAY, "why", "is neither in landing nor on record"),
        (key, NEXT, "why", f"arrived on {DAY}, which this run does not load"),
        (recovery, DAY, "why", "is one of the backfill exports"),
        (key, DAY, " ", "needs a reason"),
    ):
        run = yield p.load(day, exclude={named: reason})
        assert not run.success
        assert said in run.failure()
    assert "was never excluded" in (yield p.load(DAY, include={key: "why"})).failure()
    p.remove(key)
    assert "landing no longer holds it" in (yield p.load(DAY, exclude={key: "why"})).failure()
    assert _standing(p) == []
    yield p.must_load(DAY, exclude={key: "why"}, even_if_gone=True)
    assert p.count(RAW) == 5


def test_deliveries_are_ruled_out(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()), now=LATER, only=RAW_AND_REFINED)


def test_what_a_person_decides_while_a_load_is_under_way_is_what_it_publishes(pipeline: Any) -> None:
    """Scenario: an operator excludes, later includes a staged object of an old day.
    Outcome: the load plans the batch again by the decision and says so."""
    p = pipeline(only=RAW_AND_REFINED)
    p.now = LATER
    right = p.deliver(DAY, events_on(DAY, 20), hour=1)
    p.must_load(DAY)
    wrong = p.deliver(DAY, events_on(DAY, 5, prefix="wrong"), hour=2)

    with once(Failpoint.BEFORE_PUBLISH, lambda: p.must_load(DAY, exclude={wrong: "a test account"})) as tries:
        p.must_load(DAY, accept=_accept(DAY))
    assert len(tries) == 2
    assert p.count(RAW) == p.count(REFINED) == 20
    assert list(p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY)) == [right]
    assert p.batch(DAY).reason == "1 excluded: a test account"
    require_known(p)

    p.must_load(DAY, include={wrong: "it counts"}, accept=_accept(DAY))
    assert p.count(REFINED) == 25
    with once(Failpoint.BEFORE_PUBLISH, lambda: p.must_load(DAY, include={wrong: "it counts, once more"})) as tries:
        p.must_load(DAY, exclude={wrong: "a mistake"}, accept=_accept(DAY))
    assert len(tries) == 2
    assert p.count(RAW) == p.count(REFINED) == 25
    assert p.batch(DAY).reason is None
    require_known(p)
