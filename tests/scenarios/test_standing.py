"""Where a day stands lasts: it is shown in Dagster and in the ledger, fails no second run, and every state has its way out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.tables.registry import table_by_key
from tests.support.builders import LATER, PROJECT, events_on

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
RAW, REFINED, COUNTS = "raw/regular_events", "refined/events", "aggregates/event_counts"


def _record(p: Any, table: str, day: date = DAY) -> Any:
    return p.ledger.slices(table, [PROJECT], [day])[Slice(day, PROJECT)]


def test_a_provisional_day_becomes_final(pipeline: Any) -> None:
    """Scenario: a day is loaded while its late events may still come, and again when they cannot. Outcome: metadata and
    ledger say provisional, then final; the numbers are not published twice."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10))
    p.mark(DAY)
    p.now = datetime(2026, 2, 3, 6, tzinfo=UTC)
    first = p.run(DAY)
    assert first.success, first.failure()
    assert first.metadata(REFINED, DAY)["verdict"] == f"{PROJECT}: published, provisional"
    assert not _record(p, REFINED).is_final
    history = p.history()
    # The days in which its late events may still arrive must be there too.
    for shift in range(1, 4):
        p.deliver(DAY + timedelta(days=shift), events_on(DAY + timedelta(days=shift), 1))
    p.now = LATER
    again = p.run(DAY, DAY + timedelta(days=3))
    assert again.success, again.failure()
    assert again.metadata(REFINED, DAY)["verdict"] == f"{PROJECT}: unchanged, final"
    assert again.metadata(COUNTS, DAY)["verdict"] == f"{PROJECT}: unchanged, final"
    assert "final" not in again.metadata(RAW, DAY)["verdict"]
    assert _record(p, REFINED).is_final
    assert history[REFINED] + 1 == p.history()[REFINED]


def test_a_finality_judged_by_a_clock_that_was_ahead_does_not_refuse_a_days_own_hours(pipeline: Any) -> None:
    """Scenario: an open day is loaded while the clock is months ahead; it comes right, and the day's other hours arrive.
    Outcome: final by that clock; then provisional, with all its hours; final again when its time has come, and bounded."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 150), hour=1)
    assert p.load(DAY).success
    assert _record(p, REFINED).is_final
    p.now = datetime(2026, 2, 2, 12, tzinfo=UTC)
    p.deliver(DAY, events_on(DAY, 150, prefix="f"), hour=2)
    right = p.load(DAY)
    assert right.success, right.failure()
    assert (p.count(REFINED), _record(p, REFINED).is_final, _record(p, COUNTS).is_final) == (300, False, False)
    assert _record(p, REFINED).baseline is None
    p.now = datetime(2026, 2, 20, tzinfo=UTC)
    assert p.load(DAY).success
    assert (_record(p, REFINED).final_at, _record(p, REFINED).baseline.figures["rows"]) == (p.now.isoformat(), 300)


def test_one_recovered_hour_does_not_make_a_missing_day_whole(pipeline: Any) -> None:
    """Scenario: of a day that was never delivered one hour is recovered; then a person accepts that the others are lost.
    Outcome: its events are there, but it warns with 1 of 24 hours and is provisional; then it is final, on record."""
    p = pipeline()
    p.deliver(DAY - timedelta(days=1), events_on(DAY - timedelta(days=1), 1))
    p.deliver(DAY, events_on(DAY, 5), source=Source.BACKFILL)
    assert p.run(DAY, source=Source.BACKFILL).success
    assert not _record(p, REFINED).is_final
    run = p.run(DAY)
    assert run.success, run.failure()
    assert run.failed_checks(dg.AssetCheckSeverity.WARN) == {(RAW, "delivery_complete", str(DAY))}
    (_, warning) = _batch(p).evaluations
    assert warning.reason == "no regular delivery came, and any source holds 1 of 24 hours"
    assert (p.count(REFINED, DAY), _record(p, REFINED).is_final) == (5, False)

    accepted = p.run(DAY, accept={f"{RAW}:{DAY}": "the vendor lost it"})

    assert accepted.success, accepted.failure()
    assert not accepted.failed_checks(dg.AssetCheckSeverity.WARN)
    assert _batch(p).reason == "accepted without deliveries: the vendor lost it"
    assert (p.count(REFINED, DAY), _record(p, REFINED).is_final) == (5, True)


def test_nothing_is_built_on_a_refused_day_whatever_is_selected(pipeline: Any) -> None:
    """Scenario: a final day's correction is refused in refined; then aggregates alone, refined alone and all are asked for,
    and the next day's own delivery cannot be read. Outcome: nothing is built on either; each is told once, with its cure."""
    p = pipeline()
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 120))
    assert p.run(DAY, NEXT).success
    history = p.history()
    p.deliver(DAY, events_on(DAY, 60))
    p.deliver(NEXT, events_on(NEXT, 1, prefix="bad"), hour=20, truncated=True)

    alone = p.run(NEXT, tables=[RAW])
    assert not alone.success
    below = p.run(NEXT, tables=[REFINED, COUNTS])
    assert not below.success
    assert below.materialized(REFINED) == below.materialized(COUNTS) == set()
    assert "raw/regular_events 2026-02-03/10001 is refused" in below.failure()
    assert not p.run(DAY).success

    for tables in ([COUNTS], [REFINED], [REFINED, COUNTS], ()):
        again = p.run(DAY, NEXT, tables=tables)
        assert again.success, (tables, again.failure())
        assert not again.materialized(COUNTS)
        assert not again.materialized(REFINED)
    assert p.history() == history | {RAW: history[RAW] + 1, "raw/quarantine": history["raw/quarantine"] + 1}
    refused, waiting = _record(p, REFINED), _record(p, COUNTS)
    assert (refused.verdict.value, waiting.verdict.value) == ("refused", "waiting")
    assert refused.reason.startswith("change_is_explained: final slice shrinks by 50.0%")
    assert "accept the change with a reason" in refused.hint
    assert waiting.reason == f"refined/events {DAY}/{PROJECT} is refused"
    assert "recover that first" in waiting.hint
    last = p.run(DAY, tables=[REFINED])
    shown = [
        event.asset_check_evaluation_data
        for event in last.result.all_events
        if event.event_type.value == "ASSET_CHECK_EVALUATION"
    ]
    (change,) = [found for found in shown if found.check_name == "change_is_explained"]
    assert not change.passed
    assert change.metadata["verdict"].value == f"{PROJECT}: refused, final"
    assert "accept the change with a reason" in change.description

    # The way out of both: a better delivery.
    p.deliver(DAY, events_on(DAY, 121))
    p.deliver(NEXT, events_on(NEXT, 1, prefix="good"), hour=20)
    healed = p.run(DAY, NEXT)
    assert healed.success, healed.failure()
    assert (p.count(REFINED, DAY), p.count(REFINED, NEXT)) == (121, 121)
    assert {p.verdict(table, day) for table in (REFINED, COUNTS) for day in (DAY, NEXT)} == {"published"}


def test_a_day_whose_only_delivery_is_bad_never_looks_empty_and_good(pipeline: Any) -> None:
    """Scenario: a day's only object cannot be read, and both sources are loaded; then it is deleted; then a person accepts
    that the day has no events. Outcome: the day waits, is refused as never delivered, and is good and empty at last."""
    p = pipeline()
    p.deliver(NEXT - timedelta(days=5), events_on(NEXT - timedelta(days=5), 1))
    key = p.deliver(DAY, events_on(DAY, 5), truncated=True)

    def stands(table: str) -> tuple[str, str]:
        (outcome,) = [one for one in reports[table].outcomes if one.is_requested]
        return outcome.verdict.value, outcome.reason or ""

    for _ in range(2):
        reports = p.reports(DAY)
        assert stands(RAW)[0] == "refused"
        assert stands(REFINED) == ("waiting", f"{RAW} {DAY}/{PROJECT} is refused")
        assert stands(COUNTS)[0] == "waiting"
    p.remove(key)
    for _ in range(2):
        reports = p.reports(DAY)
        assert stands(RAW)[0] == "refused"
        assert "no delivery of either source" in stands(RAW)[1]
        assert stands(REFINED)[0] == "waiting"
    assert p.rows("raw/quarantine") == []
    accepted = p.run(DAY, accept={f"{RAW}:{DAY}": "the app was down"})
    assert accepted.success, accepted.failure()
    assert _batch(p).reason == "accepted without deliveries: the app was down"
    again = p.run(DAY)
    assert again.success, again.failure()
    assert again.metadata(REFINED, DAY)["rows"] == 0


def _batch(p: Any) -> Any:
    return p.ledger.batches([PROJECT], DAY, DAY)[BatchKey(Source.REGULAR, PROJECT, DAY)]


def test_other_bounds_try_a_refused_day_again(pipeline: Any) -> None:
    """Scenario: a final day shrinks and is refused; the bound is raised. Outcome: the next load publishes it."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 200))
    assert p.load(DAY).success
    p.deliver(DAY, events_on(DAY, 150))
    assert not p.load(DAY).success
    p.change(change_max_shrink=0.5)
    run = p.load(DAY)
    assert run.success, run.failure()
    assert p.count(REFINED, DAY) == 150


def test_an_aggregate_of_a_day_that_was_never_built_is_not_good(pipeline: Any) -> None:
    """Scenario: an aggregate alone is asked for, over a day of which nothing was loaded and one before the project's first.
    Outcome: the first waits and is red, the second stands; loading the day mends it."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 5))

    alone = p.run(DAY - timedelta(days=1), DAY, tables=[COUNTS])

    assert not alone.success
    assert f"refined/events {DAY}/{PROJECT} is not built yet" in alone.failure()
    assert p.verdict(COUNTS, DAY) == "waiting"
    assert alone.materialized(COUNTS) <= {str(DAY - timedelta(days=1))}
    assert p.run(DAY).success
    assert p.verdict(COUNTS, DAY) == "published"


def test_a_recovery_that_never_came_keeps_no_day_open(pipeline: Any) -> None:
    """Scenario: both sources of a day are asked for before anything came; the regular exports come and are loaded, day by day.
    Outcome: the first load gives no day a materialization, and its log says how Dagster ends a range then; the backfill's wait
    keeps no day provisional, and a day that is empty on purpose holds nothing back."""
    p = pipeline()
    p.deliver(DAY - timedelta(days=1), events_on(DAY - timedelta(days=1), 1))
    p.now = datetime(DAY.year, DAY.month, DAY.day, 1, tzinfo=UTC)
    asked = p.run(DAY, source=Source.BACKFILL, tags={"dagster/backfill": "of a range"})
    assert asked.success, asked.failure()
    assert not asked.materialized("raw/backfill_events")
    log = [entry.user_message for entry in p.instance.all_logs(asked.run_id)]
    assert [line for line in log if f"{DAY}: no materialization" in line and "shows the backfill as failed" in line]
    assert p.ledger.batches([PROJECT], DAY, DAY)[BatchKey(Source.BACKFILL, PROJECT, DAY)].verdict.value == "waiting"
    p.now = LATER
    p.mark(DAY)
    for shift in (1, 2, 3):
        p.deliver(DAY + timedelta(days=shift), events_on(DAY + timedelta(days=shift), 3))
    late = [{**event, "event_time": f"{DAY} 23:00:00.000000"} for event in events_on(NEXT, 2, prefix="late")]
    p.deliver(NEXT, late, hour=11)

    run = p.run(DAY, DAY + timedelta(days=3))

    assert run.success, run.failure()
    assert p.count(REFINED, DAY) == 2
    assert _record(p, REFINED).is_final


def test_aggregates_follow_every_day_that_refined_built(pipeline: Any) -> None:
    """Scenario: days in a row are stale because only raw was loaded; one at their edge is loaded whole. Outcome: where the chain
    of neighbours made refined build more days than arrivals touch, aggregates have them as well."""
    p = pipeline(reprocessing_window_days=0)
    days = [DAY + timedelta(days=shift) for shift in range(5)]
    for day in days:
        p.deliver(day, events_on(day, 3))
    assert p.load(days[0], days[-1]).success
    for day in days:
        p.deliver(day, events_on(day, 4))
    assert p.load(days[0], days[-1], tables=[RAW]).success

    run = p.load(days[0])

    assert run.success, run.failure()
    built = {day for day in days if p.count(REFINED, day) == 4}
    assert built == set(days)
    counted = p.spark.table(p.lakehouse.identifier(table_by_key(COUNTS))).groupBy("event_date").sum("events").collect()
    assert {row[0]: row[1] for row in counted} == dict.fromkeys(days, 4)


def test_a_day_before_the_calendar_is_not_waited_for(pipeline: Any) -> None:
    """Scenario: the calendar begins on a day; nothing arrived on the day before, but a late event of it did, and older exports
    lie there. Outcome: it is refined and counted with the load of the day it arrived on."""
    p = pipeline(calendar_start=DAY)
    before = DAY - timedelta(days=1)
    p.deliver(DAY - timedelta(days=2), events_on(DAY - timedelta(days=2), 1))
    late = {**events_on(DAY, 1, prefix="late")[0], "event_time": f"{before} 23:00:00.000000"}
    p.deliver(DAY, [*events_on(DAY, 3), late])

    run = p.load(DAY)

    assert run.success, run.failure()
    assert (p.count(RAW, before), p.count(REFINED, before)) == (1, 1)
