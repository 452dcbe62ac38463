"""Facts are read once for all tables and days, and changed slices' neighbours when needed: from a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, BatchRecord, InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.load.staleness.decide import Todo
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.load.staleness.scan import decide_with_neighbours, scan_stale_days
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

PROJECT, RAW, BACKFILL = "10001", "raw/regular_events", "raw/backfill_events"
FIRST, NOW = date(2023, 1, 1), datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = Settings(projects=(PROJECT, "10002"), calendar_start=FIRST, dedupe_window_days=1)
ROWS, OTHER_ROWS = Digest(300, 1, 1), Digest(301, 2, 2)


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def record_days(ledger: Ledger, count: int, *, changed: int | None = None, project: str = PROJECT) -> None:
    """So many days, delivered and built from themselves and their neighbours; raw has other rows on `changed`."""
    slices, batches = [], []
    for number in range(count):
        key = Slice(day(number), project)
        near = [other for other in (number - 1, number, number + 1) if 0 <= other < count]
        built_from = InputState({InputDay(RAW, day(other)): ROWS for other in near}, cross_day=str(ROWS))
        code = REFINED_EVENTS.code_version(SETTINGS)
        built = {"digest": ROWS, "input_state": built_from, "code_version": code}
        slices.append(SliceRecord(RAW, key, Verdict.PUBLISHED, digest=OTHER_ROWS if number == changed else ROWS))
        slices.append(SliceRecord(REFINED_EVENTS.key, key, Verdict.PUBLISHED, **built))
        batch = BatchKey(Source.REGULAR, project, day(number))
        batches.append(BatchRecord(batch, BatchVerdict.ACCEPTED, deliveries=24, hours_marked=24))
    ledger.record(Changes(slices=slices, batches=batches), "run")


@contextmanager
def counted_queries(ledger: Ledger) -> Iterator[list[str]]:
    queries: list[str] = []

    def note(*args: object) -> None:
        queries.append(str(args[2]))

    sa.event.listen(ledger.engine, "before_cursor_execute", note)
    yield queries
    sa.event.remove(ledger.engine, "before_cursor_execute", note)


def test_three_years_are_read_in_a_few_queries_per_table(ledger: Ledger) -> None:
    record_days(ledger, 3 * 365)
    record_days(ledger, 30, project="10002")
    days = [day(number) for number in range(3 * 365)]
    with counted_queries(ledger) as queries:
        slices = slices_to_look_at(ledger, SETTINGS, SETTINGS.projects, days)
        facts = Facts.read(ledger, SETTINGS, slices, DERIVED, NOW)
        plans = decide_with_neighbours(ledger, facts, REFINED_EVENTS, slices, {}, NOW)
    assert {plan.todo for plan in plans} == {Todo.KEEP, Todo.WAIT}
    assert len(plans) == len(slices) > 6 * 365
    selects = [query for query in queries if query.lstrip().startswith("SELECT")]
    # Raw's arrivals, first arrivals, batches; then records of each table and of two upstream ones, and holds.
    assert len(selects) <= 5 + 2 * len(DERIVED) + 2, selects


def test_arrivals_in_reach_bring_the_days_they_hold(ledger: Ledger) -> None:
    batch = BatchKey(Source.BACKFILL, PROJECT, day(10))
    ledger.record(Changes(batch_days={batch: {day(2): BatchDay(ROWS)}}), "run")
    near = {Slice(day(number), PROJECT) for number in (1, 2, 3)}
    asked = {Slice(day(number), PROJECT) for number in (9, 10, 11)}
    assert slices_to_look_at(ledger, SETTINGS, [PROJECT], [day(10)]) == near | asked
    assert slices_to_look_at(ledger, SETTINGS, ["10002"], [day(10)]).isdisjoint(near)


def test_neighbours_are_read_until_what_changes_lies_among_what_stays(ledger: Ledger) -> None:
    """Scenario: one of twenty days has other rows. Outcome: it is built, four neighbours are read, no other day."""
    record_days(ledger, 20, changed=10)
    facts = Facts.read(ledger, SETTINGS, {Slice(day(10), PROJECT)}, [REFINED_EVENTS], NOW)
    plans = decide_with_neighbours(ledger, facts, REFINED_EVENTS, (), {}, NOW)
    assert {(plan.key.event_date, plan.todo) for plan in plans} == {
        (day(8), Todo.KEEP), (day(9), Todo.CHECK), (day(10), Todo.REBUILD), (day(11), Todo.CHECK), (day(12), Todo.KEEP),
    }  # fmt: skip


def test_facts_are_as_they_were_read_until_they_are_read_again(ledger: Ledger) -> None:
    record_days(ledger, 3)
    facts = Facts.read(ledger, SETTINGS, {Slice(day(1), PROJECT)}, [REFINED_EVENTS], NOW)
    record_days(ledger, 3, changed=1)
    key = Slice(day(1), PROJECT)
    ledger.interventions.hold({REFINED_EVENTS.key: [key]}, "a look", "run")
    assert (facts.records[RAW][key].digest, facts.hold_of(REFINED_EVENTS.key, key)) == (ROWS, None)
    again = facts.reading(ledger, [REFINED_EVENTS])
    assert (again.hold_of(REFINED_EVENTS.key, key), again.records[REFINED_EVENTS.key].keys()) == ("a look", {key})
    # Its inputs include the days within the window.
    assert again.records[RAW].keys() == {Slice(day(number), PROJECT) for number in (0, 1, 2)}


def test_a_scan_of_everything_names_what_a_load_would_change(ledger: Ledger) -> None:
    assert scan_stale_days(ledger, SETTINGS, NOW) == {}
    record_days(ledger, 20, changed=10)
    stale = scan_stale_days(ledger, SETTINGS, NOW)
    refined = {found: [one for one in slices if one.table == REFINED_EVENTS.key] for found, slices in stale.items()}
    reasons = {found: [one.reason for one in slices] for found, slices in refined.items()}
    assert reasons[day(10)] == [f"changed {RAW}"]
    assert reasons[day(9)] == reasons[day(11)] == ["days near it changed"]
    assert (reasons[day(5)], scan_stale_days(ledger, SETTINGS, NOW)) == (["is final now"], stale)
