"""A day's state lasts in the ledger, fails no second load, and every state has its way out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.domain.slices import Source
from pipeline_assets.tables.registry import DERIVED
from tests.support.builders import LATER, PROJECT, events_on
from tests.support.world import SOON, Steps, Story, stories_in, tell
from tests.unit.inspection.test_metrics import figures_in

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
BEFORE, NEXT = DAY - timedelta(days=1), DAY + timedelta(days=1)
LATE_DAY = DAY + timedelta(days=3)
RAW, REFINED, COUNTS = "raw/regular_events", "refined/events", "aggregates/event_counts"
ALL = (RAW, *(table.key for table in DERIVED))


def _a_first_day(p: Story) -> Steps:
    """An earlier day, so that a silent day is awaited."""
    first = DAY - timedelta(days=5)
    p.deliver(first, events_on(first, 1))
    yield p.must_load(first)


def a_provisional_day_becomes_final(p: Story) -> Steps:
    p.now = datetime(2026, 2, 3, 6, tzinfo=UTC)
    p.deliver(DAY, events_on(DAY, 10))
    p.mark(DAY)
    first = yield p.must_load(DAY)
    assert (first.outcome(REFINED, DAY).verdict.value, first.outcome(REFINED, DAY).is_final) == ("published", False)
    history = p.history()
    # The days in which its late events may arrive.
    for shift in range(1, 4):
        p.deliver(DAY + timedelta(days=shift), events_on(DAY + timedelta(days=shift), 1))
    p.now = LATER
    again = yield p.load(DAY, LATE_DAY)
    for table in (REFINED, COUNTS):
        assert (again.outcome(table, DAY).verdict.value, again.outcome(table, DAY).is_final) == ("unchanged", True)
    assert again.outcome(RAW, DAY).is_final is None
    assert p.record(REFINED, DAY).is_final
    assert p.history()[REFINED] == history[REFINED] + 1


def a_finality_judged_by_a_clock_that_was_ahead_does_not_refuse_a_days_own_hours(p: Story) -> Steps:
    """Scenario: the clock is ahead, then right; more hours arrive. Outcome: final, provisional, final and bounded."""
    p.now = LATER
    p.deliver(DAY, events_on(DAY, 150), hour=1)
    yield p.must_load(DAY)
    assert p.record(REFINED, DAY).is_final
    p.now = datetime(2026, 2, 2, 12, tzinfo=UTC)
    p.deliver(DAY, events_on(DAY, 150, prefix="f"), hour=2)
    yield p.must_load(DAY)
    assert (p.count(REFINED), p.record(REFINED, DAY).is_final, p.record(COUNTS, DAY).is_final) == (300, False, False)
    assert p.record(REFINED, DAY).baseline is None
    p.now = SOON
    yield p.must_load(DAY)
    record = p.record(REFINED, DAY)
    assert record.baseline is not None
    assert (record.final_at, record.baseline.figures["rows"]) == (p.now.isoformat(), 300)


def one_recovered_hour_does_not_make_a_missing_day_whole(p: Story) -> Steps:
    """Scenario: one hour is recovered; an operator accepts the loss of the rest. Outcome: provisional; then final."""
    p.now = LATER
    p.deliver(BEFORE, events_on(BEFORE, 1))
    p.deliver(DAY, events_on(DAY, 5), source=Source.BACKFILL)
    yield p.must_load(DAY, source=Source.BACKFILL)
    assert not p.record(REFINED, DAY).is_final
    run = yield p.must_load(DAY)
    assert run.failed_checks() == {(RAW, "delivery_complete", DAY)}
    (_, warning) = p.batch(DAY).evaluations
    assert warning.reason == "no regular delivery came, and any source holds 1 of 24 hours"
    assert (p.count(REFINED, DAY), p.record(REFINED, DAY).is_final) == (5, False)
    accepted = yield p.must_load(DAY, accept={f"{RAW}:{DAY}": "the vendor lost it"})
    assert not accepted.failed_checks()
    assert p.batch(DAY).reason == "accepted without deliveries: the vendor lost it"
    assert (p.count(REFINED, DAY), p.record(REFINED, DAY).is_final) == (5, True)


def nothing_is_built_on_a_refused_day_whatever_is_selected(p: Story) -> Steps:
    """Scenario: aggregates, refined and all are requested on a refused day. Outcome: nothing is built; one report each."""
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 120))
    yield p.must_load(DAY, NEXT)
    history = p.history()
    p.deliver(DAY, events_on(DAY, 60))
    p.deliver(NEXT, events_on(NEXT, 1, prefix="bad"), hour=20, truncated=True)
    assert not (yield p.load(NEXT, tables=[RAW])).success
    below = yield p.load(NEXT, tables=[REFINED, COUNTS])
    assert below.good(REFINED) == below.good(COUNTS) == set()
    assert f"{RAW} {NEXT}/{p.project} is refused" in below.failure()
    told = yield p.load(DAY)
    (change,) = [one for one in told.outcome(REFINED, DAY).evaluations if one.check.name == "change_is_explained"]
    assert not change.is_passed
    assert "accept the change with a reason" in str(change.hint)
    for tables in ([COUNTS], [REFINED], ()):
        again = yield p.load(DAY, NEXT, tables=tables)
        assert again.success, (tables, again.failure())
        assert again.good(COUNTS) == again.good(REFINED) == set()
    assert p.history() == history | {RAW: history[RAW] + 1}
    refused, waiting = p.record(REFINED, DAY), p.record(COUNTS, DAY)
    assert (refused.verdict.value, waiting.verdict.value) == ("refused", "waiting")
    assert str(refused.reason).startswith("change_is_explained: final slice shrinks by 50.0%")
    assert waiting.reason == f"{REFINED} {DAY}/{p.project} is refused"
    assert "recover that first" in str(waiting.hint)
    # The way out of both: a better delivery.
    p.deliver(DAY, events_on(DAY, 121))
    p.deliver(NEXT, events_on(NEXT, 1, prefix="good"), hour=20)
    yield p.must_load(DAY, NEXT)
    assert (p.count(REFINED, DAY), p.count(REFINED, NEXT)) == (121, 121)
    assert {p.verdict(table, day) for table in (REFINED, COUNTS) for day in (DAY, NEXT)} == {"published"}


def a_day_whose_only_delivery_is_bad_never_looks_empty_and_good(p: Story) -> Steps:
    """Scenario: the only object is unreadable, deleted, accepted. Outcome: waits, refused as missing, good and empty."""
    p.now = LATER
    yield from _a_first_day(p)
    key = p.deliver(DAY, events_on(DAY, 5), truncated=True)
    for said in ("unreadable objects: 1", "no delivery of either source"):
        for _ in range(2):
            yield p.load(DAY)
            assert (p.verdict(REFINED, DAY), p.verdict(COUNTS, DAY)) == ("waiting", "waiting")
            assert p.record(REFINED, DAY).reason == f"{RAW} {DAY}/{p.project} is refused"
            assert said in str(p.batch(DAY).reason)
        (p.landing / key).unlink(missing_ok=True)
    assert p.rows("raw/quarantine") == []
    yield p.must_load(DAY, accept={f"{RAW}:{DAY}": "the app was down"})
    assert p.batch(DAY).reason == "accepted without deliveries: the app was down"
    yield p.must_load(DAY)
    assert p.count(REFINED, DAY) == 0


def other_bounds_try_a_refused_day_again(p: Story) -> Steps:
    """Scenario: a final day shrinks and is refused; the bound is raised. Outcome: the next load publishes it."""
    for count, is_published in ((200, True), (150, False)):
        p.deliver(DAY, events_on(DAY, count))
        assert (yield p.load(DAY)).success == is_published
    p.change(change_max_shrink=0.5)
    yield p.must_load(DAY)
    assert p.count(REFINED, DAY) == 150


def an_aggregate_of_a_day_that_was_never_built_is_not_good(p: Story) -> Steps:
    """Outcome: the unloaded day waits and is red, the one before the project's first stands; a load mends it."""
    p.deliver(DAY, events_on(DAY, 5))
    alone = yield p.load(BEFORE, DAY, tables=[COUNTS])
    assert f"{REFINED} {DAY}/{p.project} is not built yet" in alone.failure()
    assert p.verdict(COUNTS, DAY) == "waiting"
    assert alone.good(COUNTS) <= {BEFORE}
    yield p.must_load(DAY)
    assert p.verdict(COUNTS, DAY) == "published"


def a_recovery_that_never_came_keeps_no_day_open(p: Story) -> Steps:
    """Outcome: the backfill's wait keeps no day provisional, and a day that is empty on purpose holds nothing back."""
    p.deliver(BEFORE, events_on(BEFORE, 1))
    p.now = datetime(DAY.year, DAY.month, DAY.day, 1, tzinfo=UTC)
    asked = yield p.must_load(DAY, source=Source.BACKFILL)
    assert not asked.good("raw/backfill_events")
    assert p.batch(DAY, Source.BACKFILL).verdict.value == "waiting"
    p.now = LATER
    p.mark(DAY)
    for shift in (1, 2, 3):
        p.deliver(DAY + timedelta(days=shift), events_on(DAY + timedelta(days=shift), 3))
    late = [{**event, "event_time": f"{DAY} 23:00:00.000000"} for event in events_on(NEXT, 2, prefix="late")]
    p.deliver(NEXT, late, hour=11)
    yield p.must_load(DAY, LATE_DAY)
    assert p.count(REFINED, DAY) == 2
    assert p.record(REFINED, DAY).is_final


def a_late_fact_finds_a_day_whose_markers_say_that_it_is_empty(p: Story) -> Steps:
    """Scenario: a day with 24 markers and no object; a fact of it arrives three days later.
    Outcome: empty and good on both sides; the fact is published; a second load changes nothing."""
    p.now = LATER
    yield from _a_first_day(p)
    p.mark(DAY)
    asked = yield p.must_load(DAY, source=Source.BACKFILL)
    assert asked.good("raw/backfill_events") == {DAY}
    p.deliver(LATE_DAY, [*events_on(LATE_DAY, 2), *events_on(DAY, 1, prefix="late")])
    yield p.must_load(LATE_DAY)
    assert (p.count(REFINED, DAY), p.verdict(REFINED, DAY)) == (1, "published")
    batch = p.batch(DAY)
    assert (batch.verdict.value, batch.deliveries, batch.hours_marked) == ("accepted", 0, 24)
    history = p.history()
    yield p.must_load(LATE_DAY)
    assert p.history() == history


def a_silent_day_without_all_markers_still_waits(p: Story) -> Steps:
    """Scenario: the same with 23 markers. Outcome: the fact is in raw, the day waits and says for what."""
    p.now = LATER
    yield from _a_first_day(p)
    p.mark(DAY, hours=range(23))
    p.deliver(LATE_DAY, [*events_on(LATE_DAY, 2), *events_on(DAY, 1, prefix="late")])
    yield p.load(LATE_DAY)
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (1, 0)
    assert p.verdict(REFINED, DAY) == "waiting"
    assert "are not loaded yet" in str(p.record(REFINED, DAY).reason)


def a_silent_day_of_a_sparse_project_is_empty(p: Story) -> Steps:
    """Scenario: a silent day, its project sparse or not; a late fact. Outcome: refused; empty and green; final."""
    p.now = LATER
    yield from _a_first_day(p)
    told = (yield p.load(DAY)).failure()
    assert "no delivery of either source" in told
    assert "TIDEMARK_SPARSE_PROJECTS" in told
    p.deliver(LATE_DAY, [*events_on(LATE_DAY, 2), *events_on(DAY, 1, prefix="late")])
    yield p.load(LATE_DAY)
    assert p.count(REFINED, DAY) == 0
    p.change(sparse_projects=(p.project,))
    yield p.must_load(DAY, LATE_DAY)
    assert (p.batch(DAY).verdict.value, p.batch(DAY).deliveries) == ("accepted", 0)
    assert "declared sparse" in str(p.batch(DAY).reason)
    assert (p.count(REFINED, DAY), p.record(REFINED, DAY).is_final) == (1, True)


def a_provisional_day_is_emptied_in_every_table(p: Story) -> Steps:
    """Scenario: a day still open is delivered again, empty. Outcome: every table is empty for the day."""
    p.now = datetime(2026, 2, 3, 6, tzinfo=UTC)
    for count in (150, 0):
        p.deliver(DAY, events_on(DAY, count))
        yield p.must_load(DAY)
        assert p.count(REFINED, DAY) == count
    assert [p.count(table, DAY) for table in ALL] == [0] * len(ALL)


def a_final_day_is_emptied_only_when_accepted(p: Story) -> Steps:
    """Scenario: a closed day is delivered again, empty. Outcome: refused as a shrink; with a reason, emptied."""
    p.deliver(DAY, events_on(DAY, 150))
    yield p.must_load(DAY)
    p.deliver(DAY, [])
    assert "shrinks" in (yield p.load(DAY)).failure()
    assert (p.count(REFINED, DAY), p.count(COUNTS, DAY)) == (150, 1)
    yield p.must_load(DAY, accept={f"{table.key}:{DAY}": "the vendor withdrew the day" for table in DERIVED})
    assert [p.count(table, DAY) for table in ALL] == [0] * len(ALL)
    reasons = {one.accepted_reason for one in p.publications(REFINED) if one.digest_after.rows == 0}
    assert reasons == {"the vendor withdrew the day"}


def a_fact_two_days_late_republishes_its_day_only(p: Story) -> Steps:
    """Outcome: one more publication per table, of day 1 alone, which goes green beside the requested day."""
    last = NEXT + timedelta(days=1)
    for day in (DAY, NEXT, last):
        p.deliver(day, events_on(day, 20))
    yield p.must_load(DAY, last)
    known = len(p.publications())
    late = {**events_on(DAY, 1, prefix="late")[0], "server_upload_time": f"{last} 15:00:00.000000", "amplitude_id": 999}
    p.deliver(last, [late], hour=15)
    run = yield p.must_load(last)
    changed = {(one.table, one.key.event_date) for one in p.publications()[known:]}
    assert changed >= {(table, DAY) for table in (RAW, REFINED, COUNTS, "aggregates/active_users")}
    assert {day for _, day in changed} == {DAY}
    assert run.good(REFINED) >= {last}
    assert p.count(REFINED, DAY) == 21


def late_facts_that_are_withdrawn_leave_their_far_day_again(p: Story) -> Steps:
    """Outcome: the far day is published with the late facts, and again without them, in every table."""
    p.now = LATER
    arrival = DAY + timedelta(days=36)
    p.deliver(DAY, events_on(DAY, 5))
    yield p.must_load(DAY)
    p.deliver(arrival, [*events_on(arrival, 3), *events_on(DAY, 2, prefix="late")])
    yield p.must_load(arrival)
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (7, 7)
    p.deliver(arrival, events_on(arrival, 3))
    yield p.must_load(arrival)
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (5, 5)
    assert sum(row["events"] for row in p.rows(COUNTS) if row["event_date"] == DAY) == 5
    history = p.history()
    yield p.must_load(arrival)
    assert p.history() == history


def aggregates_follow_every_day_that_refined_built(p: Story) -> Steps:
    """Outcome: where neighbours made refined build more days than arrivals touch, aggregates have them too."""
    p.change(reprocessing_window_days=0)
    days = [DAY + timedelta(days=shift) for shift in range(5)]
    for count, tables in ((3, ()), (4, (RAW,))):
        for day in days:
            p.deliver(day, events_on(day, count))
        yield p.must_load(days[0], days[-1], tables=tables)
    yield p.must_load(days[0])
    assert [p.count(REFINED, day) for day in days] == [4] * 5
    assert {row["event_date"]: row["events"] for row in p.rows(COUNTS)} == dict.fromkeys(days, 4)


def a_day_before_the_calendar_is_not_waited_for(p: Story) -> Steps:
    """Outcome: a late event of that day is refined and counted with its arrival day's load."""
    p.change(calendar_start=DAY)
    p.deliver(DAY - timedelta(days=2), events_on(DAY - timedelta(days=2), 1))
    late = {**events_on(DAY, 1, prefix="late")[0], "event_time": f"{BEFORE} 23:00:00.000000"}
    p.deliver(DAY, [*events_on(DAY, 3), late])
    yield p.must_load(DAY)
    assert (p.count(RAW, BEFORE), p.count(REFINED, BEFORE)) == (1, 1)


def test_where_days_stand(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()))


def test_good_and_bad_days_in_dagster(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: a backfill asks for a day too early; five days get deliveries, two of them bad; again; then healed.
    Outcome: no materialization; three days green, two red with reasons; unchanged; all green."""
    days = [DAY + timedelta(days=shift) for shift in range(5)]
    figures_file = tmp_path / "tidemark.prom"
    p = pipeline(metrics_file=figures_file)
    p.deliver(BEFORE, events_on(BEFORE, 1))
    p.now = datetime(DAY.year, DAY.month, DAY.day, 1, tzinfo=UTC)
    asked = p.must_run(DAY, source=Source.BACKFILL, tags={"dagster/backfill": "of a range"})
    assert not asked.materialized("raw/backfill_events")
    log = [entry.user_message for entry in p.instance.all_logs(asked.run_id)]
    assert [line for line in log if f"{DAY}: no materialization" in line and "shows the backfill as failed" in line]
    assert p.batch(DAY, Source.BACKFILL).verdict.value == "waiting"

    p.now = LATER
    for day in days:
        p.deliver(day, events_on(day, 120))
    first = p.must_run(days[0], days[-1])
    assert first.metadata(REFINED, DAY)["verdict"] == f"{PROJECT}: published, final"
    before = p.digests()
    for day in (days[0], days[2], days[4]):
        p.deliver(day, events_on(day, 6, prefix="new"), shard=2)
    broken = p.deliver(days[1], events_on(days[1], 6, prefix="new"), shard=2, truncated=True)
    p.deliver(days[3], events_on(days[3], 60))
    run = p.run(days[0], days[-1])
    assert not run.success
    good = {str(day) for day in (days[0], days[2], days[4])}
    assert {table: run.materialized(table) for table in ALL} == dict.fromkeys(ALL, good) | {RAW: good | {str(days[3])}}
    failed = run.failed_checks()
    assert {(RAW, "delivery_reconciles", str(days[1])), (REFINED, "change_is_explained", str(days[3]))} <= failed
    assert not {partition for _, _, partition in failed} & good
    for said in (broken, "truncated_gzip", "rows 120 -> 60"):
        assert said in run.failure()
    figures = figures_in(figures_file.read_text())
    assert figures["tidemark_refused_days", (RAW, PROJECT)] == 1
    assert figures["tidemark_rows", (PROJECT,)] == p.count(REFINED)
    assert figures["tidemark_runs_total", ("regular", "incomplete")] == 1
    assert figures["tidemark_dagster_runs", ("working",)] == 1
    assert {labels[0] for name, labels in figures if name == "tidemark_table_seconds"} >= set(ALL)
    shown = run.check_metadata(REFINED, "change_is_explained", days[3])
    assert shown["verdict"].value == f"{PROJECT}: refused, final"
    for table in ALL[1:]:
        kept = {key.event_date for key, digest in before[table].items() if digest == p.digests()[table].get(key)}
        assert kept >= {days[1], days[3]}, table
    assert [p.verdict(REFINED, days[1]), p.verdict(REFINED, days[3]), p.verdict(COUNTS, days[3])] == [
        "waiting", "refused", "waiting",
    ]  # fmt: skip
    assert [row["reason"] for row in p.rows("raw/quarantine")] == ["truncated_gzip"]
    snapshots = p.snapshots()
    again = p.must_run(days[0], days[-1])
    assert {table: again.materialized(table) for table in ALL[1:]} == dict.fromkeys(ALL[1:], good)
    assert again.failed_checks() == failed
    assert not again.failed_checks(dg.AssetCheckSeverity.WARN) & failed
    assert p.snapshots() == snapshots
    p.deliver(days[1], events_on(days[1], 6, prefix="new"), shard=2)
    p.deliver(days[3], events_on(days[3], 120))
    p.change(metrics_file=tmp_path / "none" / "a.prom")
    healed = p.must_run(days[0], days[-1])
    assert not healed.failed_checks()
    assert p.count(REFINED, days[1]) == 126
    said = [entry.user_message for entry in p.instance.all_logs(healed.run_id)]
    assert any(message.startswith("metrics: ") for message in said)
