"""Rebuilds on record: one for the same days, one run at work on it, and slices that round-trip."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from pipeline_assets.domain.changes import Baseline, KeyChange
from pipeline_assets.domain.errors import PublishConflictError, TakenOverError, UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, ReportedSlice, SliceDifference
from pipeline_assets.domain.records import InputDay, InputState, Rejection, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from resources.ledger.rebuilds import SwapOfRebuild
from resources.ledger.store import Ledger

DAY, PROJECT = date(2026, 2, 2), "10001"
REFINED, COUNTS = "refined/events", "aggregates/event_counts"
KEY = Slice(DAY, PROJECT)


@pytest.fixture
def ledger(any_ledger: Ledger) -> Ledger:
    return any_ledger


def asked(first: date = DAY, last: date = DAY, *tables: str, run_id: str = "run-1") -> RebuildRecord:
    tables, state = tables or (REFINED, COUNTS), RebuildState.BUILDING
    return RebuildRecord(0, tables, first, last, (PROJECT,), "why", "ann", state, run_id)


def test_the_same_days_are_rebuilt_once_at_a_time(ledger: Ledger) -> None:
    """Outcome: the same request continues, disjoint ones begin, an overlapping one is refused with the remedy."""
    begun = ledger.rebuilds.begin(asked(DAY, DAY + timedelta(days=3)))
    again = ledger.rebuilds.begin(asked(DAY, DAY + timedelta(days=3), COUNTS, REFINED, run_id="run-2"))
    assert again == begun
    other = ledger.rebuilds.begin(asked(DAY, DAY, "aggregates/daily_revenue"))
    later = ledger.rebuilds.begin(asked(DAY + timedelta(days=4), DAY + timedelta(days=4)))
    assert [one.number for one in ledger.rebuilds.open()] == [begun.number, other.number, later.number]

    with pytest.raises(UsageError) as refusal:
        ledger.rebuilds.begin(asked(DAY, DAY, COUNTS))
    assert str(refusal.value) == (
        "rebuild of aggregates/event_counts 2026-02-02 to 2026-02-02: rebuild 1 is open for these days (why). "
        "Answer it first: tidemark rebuild swap 1, or tidemark rebuild abandon 1"
    )
    answer = {"state": RebuildState.ABANDONED, "answered_by": "bob", "answer": "no"}
    ledger.rebuilds.change(begun, **answer)
    assert ledger.rebuilds.begin(asked(DAY, DAY, COUNTS)).number > later.number
    assert ledger.rebuilds.get(begun.number) == replace(begun, **answer)
    with pytest.raises(UsageError, match="rebuild 99: is not on record"):
        ledger.rebuilds.get(99)


def test_who_was_overtaken_writes_nothing(ledger: Ledger) -> None:
    """Outcome: only the second run writes; the overtaken and the late one are refused, without a record."""
    begun = ledger.rebuilds.begin(asked())
    second = ledger.rebuilds.claim(begun, "run-2")
    with pytest.raises(PublishConflictError, match="another run works on it by now"):
        ledger.rebuilds.claim(begun, "run-3")
    slices = [RebuiltSlice(SliceRecord(REFINED, KEY, Verdict.PUBLISHED))]
    for write in (
        lambda: ledger.rebuilds.record(begun, slices),
        lambda: ledger.rebuilds.change(begun, state=RebuildState.READY),
    ):
        with pytest.raises(PublishConflictError, match="another run works on it by now"):
            write()
    assert ledger.rebuilds.slices(begun) == {REFINED: {}, COUNTS: {}}
    ledger.rebuilds.record(second, slices)
    assert ledger.rebuilds.slices(second)[REFINED].keys() == {KEY}


def test_a_swap_is_written_by_the_run_that_has_the_rebuild_and_by_no_other(ledger: Ledger) -> None:
    """Outcome: the swaps of a rebuild taken over and of an answered one write nothing; the third is swapped once."""

    def swapped(rebuild: RebuildRecord) -> None:
        with ledger.transaction() as connection:
            SwapOfRebuild(rebuild).write(connection)

    paused = ledger.rebuilds.change(ledger.rebuilds.begin(asked()), state=RebuildState.SWAPPING)
    other = ledger.rebuilds.claim(paused, "run-2")
    with pytest.raises(TakenOverError, match="another run works on it by now"):
        swapped(paused)
    ledger.rebuilds.change(other, state=RebuildState.ABANDONED)
    for rebuild in (paused, replace(paused, run_id="run-2")):
        with pytest.raises(TakenOverError), ledger.transaction() as connection:
            SwapOfRebuild(rebuild).require(connection)
        with pytest.raises(TakenOverError):
            swapped(rebuild)
    assert ledger.rebuilds.get(paused.number).state is RebuildState.ABANDONED

    own = ledger.rebuilds.change(ledger.rebuilds.begin(asked()), state=RebuildState.SWAPPING, answered_by="bob")
    swapped(own)
    found = ledger.rebuilds.get(own.number)
    assert (found.state, found.answered_by, found.finished_at is not None) == (RebuildState.SWAPPED, "bob", True)
    with pytest.raises(TakenOverError):
        swapped(own)


def test_a_slice_comes_back_as_it_was_written(ledger: Ledger) -> None:
    begun = ledger.rebuilds.begin(asked())
    state = InputState({InputDay("raw/regular_events", DAY): Digest(3, 1, 2)}, "0:0:0")
    record = SliceRecord(
        REFINED, KEY, Verdict.REFUSED, "unique_event_key: twice", "look", True, "2026-06-01T00:00:00+00:00",
        Baseline({"rows": 3}), Digest(3, 4, 5), "hash", state, "1-ab", Rejection(state, "code"), {"rows": 3},
    )  # fmt: skip
    keys = KeyChange(7, {"code": 1}, {"withdrawn": 2}, {"moved day": 3})
    difference = SliceDifference((3, 5), {"revenue": (None, 4.5), "events": (3, 5)}, keys)
    one = RebuiltSlice(record, Digest(9, 9, 9), difference, (f"{REFINED} {KEY}",))
    ledger.rebuilds.record(begun, [RebuiltSlice(record), one])

    found = ledger.rebuilds.slices(begun)[REFINED][KEY]

    assert (replace(found, record=record), replace(found.record, run_id=None, read_hash=None)) == (one, record)
    assert not found.goes
    assert ledger.slices(REFINED, None) == {}


def test_what_was_reported_stays_while_a_slice_is_made_again(ledger: Ledger) -> None:
    """Outcome: the first report stays until the other, which has both; an overtaken run reports nothing."""
    begun = ledger.rebuilds.begin(asked())

    def rebuilt(rows: int) -> RebuiltSlice:
        record = SliceRecord(REFINED, KEY, Verdict.PUBLISHED, digest=Digest(rows, 1, 1), figures={"rows": rows})
        return RebuiltSlice(record, difference=SliceDifference((0, rows)))

    first, second, next_key = rebuilt(3), rebuilt(4), Slice(DAY + timedelta(days=1), PROJECT)
    later = replace(first, record=replace(first.record, key=next_key, verdict=Verdict.HELD))
    ledger.rebuilds.record(begun, [first])

    ready = ledger.rebuilds.report(begun, RebuildState.READY)
    for _ in range(2):
        ledger.rebuilds.record(ready, [second, later])

    assert ledger.rebuilds.get(1) == ready == replace(begun, state=RebuildState.READY)
    found = ledger.rebuilds.slices(ready)[REFINED]
    assert found[KEY].record.digest == second.record.digest
    assert found[KEY].reported == ReportedSlice(Digest(3, 1, 1), {"rows": 3}, True)
    assert (found[KEY].is_reported, found[later.key].reported, found[later.key].is_reported) == (True, None, False)
    taken = ledger.rebuilds.claim(ready, "run-2")
    with pytest.raises(PublishConflictError, match="another run works on it by now"):
        ledger.rebuilds.report(ready, RebuildState.READY)
    ledger.rebuilds.report(taken, RebuildState.SWAPPING)
    found = ledger.rebuilds.slices(taken)[REFINED]
    assert found[KEY].reported == ReportedSlice(Digest(4, 1, 1), {"rows": 4}, True)
    assert found[later.key].reported == ReportedSlice(Digest(3, 1, 1), {"rows": 3}, False)
    assert ledger.rebuilds.get(1).state is RebuildState.SWAPPING


def test_what_goes_is_built_good_and_alone() -> None:
    record, difference = SliceRecord(REFINED, KEY, Verdict.PUBLISHED, digest=Digest(1, 1, 1)), SliceDifference((0, 1))
    good = RebuiltSlice(record, EMPTY, difference)
    assert (good.goes, good.is_changed, good.why_not) == (True, True, "")
    same = replace(good, published=record.digest)
    assert (same.goes, same.is_changed) == (True, False)
    tied = replace(good, blocked_by=("refined/events 2026-02-03/10001",))
    assert not tied.goes
    assert tied.why_not == "cannot go without refined/events 2026-02-03/10001, left out as well"
    held = RebuiltSlice(replace(record, verdict=Verdict.HELD, reason="held: wrong"))
    assert (held.goes, held.why_not) == (False, "held: wrong")
