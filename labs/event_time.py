"""Event time versus processing time: Monday's total on each day as late events arrive."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from benchmarks.workload import PROJECT
from labs.story import Deployment, Story, revenue_by_day, total
from pipeline_assets.orchestration.health_page import lines
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

MONDAY = date(2026, 1, 5)
_BEFORE, _AFTER = timedelta(days=3), timedelta(days=4)
_SPEC = ExportSpec(
    seed=43, projects=(PROJECT,), first_day=MONDAY - _BEFORE, days=(_BEFORE + _AFTER).days + 1, shards=1, hours=(3, 15),
    late_share=0.25, tail_share=0.0, delivery_duplicate_share=0.0, send_duplicate_share=0.0, correction_share=0.0,
)  # fmt: skip
"""A quarter of the events is one to three days late; without duplicates both totals count the same events."""


def event_time(work: Path, events: int = 600) -> Story:
    """Load each day on the next morning, from Monday on, and compute Monday's total both ways each time."""
    spec = replace(_SPEC, events_per_day=events)
    p = Deployment(work / "event_time", "event_time", calendar_start=spec.first_day)
    write_export(spec, p.landing)
    arrivals = [MONDAY + timedelta(days=shift) for shift in range(_AFTER.days + 1)]
    held = {path: path.read_bytes() for path in sorted(p.landing.rglob("*")) if path.is_file()}
    for path in held:
        path.unlink()
    by_event: dict[date, float] = {}
    by_arrival: dict[date, float] = {}
    late: dict[date, float] = {}
    for day in arrivals:
        _arrive(held, day)
        p.load(spec.first_day if day == MONDAY else day, day, datetime.combine(day + timedelta(days=1), time(6), UTC))
        by_event[day] = total(p.revenue(), [MONDAY])
        facts = revenue_by_arrival(p)
        by_arrival[day] = total(facts, [MONDAY])
    late = {day: round(by_event[day] - by_event[MONDAY], 2) for day in arrivals}
    figures = {
        "first": by_event[MONDAY], "last": by_event[arrivals[-1]], "before_last": by_event[arrivals[-2]],
        "processing_first": by_arrival[MONDAY], "processing_last": by_arrival[arrivals[-1]],
    }  # fmt: skip
    share = late[arrivals[-1]] / figures["last"]
    return Story(
        "event_time",
        "Event time or processing time: what was Monday's revenue?",
        (
            f"A quarter of the events arrive one to three days after they happen. On Tuesday morning Monday's revenue by event "
            f"time is {figures['first']:,.2f}.",
            f"Late facts of Monday land until Thursday: the loads of those days publish Monday again, and nothing else that did "
            f"not change. On Friday it is {figures['last']:,.2f}; {share:.0%} of it was not there on Tuesday, and the day after "
            "brings nothing more.",
            f"By the day of arrival Monday's total is {figures['processing_last']:,.2f} on every morning. It never moves, and it "
            "is never right: it lacks Monday's late facts and holds those of Friday to Sunday.",
        ),
        lines("event_time", "Monday's total after each load", arrivals, [by_event, by_arrival]),
        ("Monday by event time, as of each load", "Monday by day of arrival"),
        figures,
    )


def _arrive(held: dict[Path, bytes], day: date) -> None:
    """Put the objects into landing that arrived until the end of this day."""
    for path, body in held.items():
        arrived = date.fromisoformat(path.name.split("_")[1])
        if arrived <= day and not path.exists():
            path.write_bytes(body)


def revenue_by_arrival(p: Deployment) -> dict[date, float]:
    """Return arrival day -> revenue of the rows that arrived on it."""
    raw = p.table("raw/regular_events")
    return revenue_by_day(raw.drop("event_date").withColumnRenamed("_arrival_date", "event_date"), p.settings)
