"""Two weeks of late rows: their lateness is on record, a narrow window is named, and the doctor sees it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.doctor.examine import examine
from pipeline_assets.doctor.rules import Light
from pipeline_assets.domain.lateness import LatenessSketch, merged
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.file_tasks import arrival_days
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from resources.landing.store import LandingStore
from tests.support.builders import LATER, PROJECT, Outcome, Pipeline, a_pipeline, an_event
from tests.support.reference import bin_of
from tests.support.shell import OfPipeline

pytestmark = pytest.mark.slow
DAYS = [date(2026, 5, 10) + timedelta(days=shift) for shift in range(14)]
DAY = DAYS[-1]
RAW = "raw/regular_events"
TWO_DAYS = 2 * 86_400


def arriving(day: date, *late_seconds: int) -> list[dict[str, Any]]:
    """Events received at half past ten, each so many seconds after it happened."""
    at = datetime(day.year, day.month, day.day, 10, 30)
    return [
        an_event(event_time=str(at - timedelta(seconds=late)), server_upload_time=str(at), device_id=f"d{number}")
        for number, late in enumerate(late_seconds)
    ]


def expected(events: Iterable[Mapping[str, Any]]) -> str:
    sketches = []
    for event in events:
        if event["server_upload_time"] is None:
            sketches.append(LatenessSketch(unknown=1))
            continue
        received, happened = (datetime.fromisoformat(event[name]) for name in ("server_upload_time", "event_time"))
        seconds = math.floor((received - happened).total_seconds())
        sketches.append(LatenessSketch({bin_of(seconds): 1}, 0, seconds, seconds))
    return merged(sketches).to_text()


def on_record(p: Pipeline, day: date) -> str:
    found = p.ledger.summaries.lateness(Source.REGULAR, [PROJECT], day, day)
    assert all(sketch is not None for _, _, sketch in found)
    return merged(sketch for _, _, sketch in found if sketch is not None).to_text()


@dataclass
class Fortnight:
    """A deployment that loaded two weeks twice, and a recovery; a quarter of its rows are two days late."""

    p: Pipeline
    first: list[dict[str, Any]]
    """Rows of every kind, of the last day."""
    run: Outcome
    """The first load, with a window of one day."""


@pytest.fixture(scope="module")
def fortnight(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortnight]:
    settings: dict[str, Any] = {
        "reprocessing_window_days": 1, "tolerated_missed_share": 0.1, "calendar_start": DAYS[0],
    }  # fmt: skip
    with a_pipeline(spark, tmp_path_factory.mktemp("fortnight"), **settings) as p:
        for day in DAYS[:-1]:
            p.deliver(day, arriving(day, *range(20, 26), TWO_DAYS + 7, TWO_DAYS + 8))
        nowhen = an_event(event_time=f"{DAY} 09:00:00", server_upload_time=None)
        first = [*arriving(DAY, 0, 1, 59, 3_600, -1_800, 40 * 86_400), nowhen]
        p.deliver(DAY, first, hour=10)
        p.deliver(DAY, arriving(DAY, 86_400, TWO_DAYS + 9), hour=11)
        for day in DAYS:
            p.mark(day)
        run = p.must_run(DAYS[0], DAY)
        p.change(reprocessing_window_days=3)
        yield Fortnight(p, first, run)


def test_a_sketch_is_of_the_rows_that_raw_holds_and_a_narrow_window_is_named(fortnight: Fortnight) -> None:
    """Scenario: a quarter of two weeks' rows is two days late, with a window of one day; an object is replaced twice.
    Outcome: the sketch is that of raw's rows; the load warns of the window; Dagster counts the rows that came after it."""
    p, first = fortnight.p, fortnight.first
    ordinary = arriving(DAYS[0], *range(20, 26), TWO_DAYS + 7, TWO_DAYS + 8)
    assert on_record(p, DAYS[0]) == expected(ordinary)
    assert on_record(p, DAY) == expected([*first, *arriving(DAY, 86_400, TWO_DAYS + 9)])
    said = [entry.user_message for entry in p.instance.all_logs(fortnight.run.run_id)]
    (warning,) = [text for text in said if "too narrow" in text]
    assert warning.startswith(f"{RAW}: the reprocessing window is too narrow for {PROJECT}: ")
    assert "of 14 arrival days came more than 1 day after their event day (tolerated: 10 %); 2 days would" in warning
    shown = fortnight.run.metadata(RAW, DAY)
    counted = {name: shown[name] for name in shown if name.startswith("rows_")}
    assert counted == {
        "rows_beyond_window": 2, "rows_before_calendar": 1, "rows_in_future": 0,
    }  # fmt: skip

    other = arriving(DAY, 5, 6, 7)
    for events in (arriving(DAY, 86_400, TWO_DAYS + 9), other):
        p.deliver(DAY, events, hour=11)
        p.must_run(DAY)
    assert on_record(p, DAY) == expected([*first, *other])

    table = RAW_TABLES[Source.REGULAR]
    head = p.lakehouse.head(table)
    measured = arrival_days(p.runtime, table, head, p.lakehouse.slice_files(table, head).keys())
    of_day = [parts[DAY].lateness for parts in measured.values() if DAY in parts]
    assert merged(sketch for sketch in of_day if sketch is not None).to_text() == on_record(p, DAY)


def points(p: Pipeline) -> dict[str, Any]:
    landing = LandingStore.from_settings(p.settings)
    return {one.name: one for one in examine(p.ledger, p.settings, lambda: landing, LATER + timedelta(days=1))}


def lights(p: Pipeline, light: Light) -> set[str]:
    return {name for name, point in points(p).items() if point.light is light}


def test_the_doctor_finds_a_good_deployment_good_and_names_three_faults(
    fortnight: Fortnight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a good deployment is examined; then a narrow window, deleted rows and a misplaced recovery.
    Outcome: green and exit 0; then exactly these three points are red, each with its cure, and exit 1."""
    p = fortnight.p
    for name in ("KEY", "SECRET"):
        monkeypatch.setenv(f"TIDEMARK_EXPORT_{name}_{PROJECT}", f"a-{name}-of-length")
    p.deliver(DAYS[3], arriving(DAYS[3], 30, 31), source=Source.BACKFILL)
    p.must_load(DAYS[3], source=Source.BACKFILL)
    p.must_load(DAYS[3])
    assert lights(p, Light.GREEN) == points(p).keys()
    # By a later clock maintenance rests, which is no fault.
    well = OfPipeline(p).must("doctor", "--deep", "--json")
    found = {one["name"]: one for one in json.loads(well.stdout)["points"]}
    assert found["recomputed"]["light"] == "green", found["recomputed"]

    p.change(reprocessing_window_days=1)
    refined = p.lakehouse.identifier(REFINED_EVENTS)
    p.spark.sql(f"DELETE FROM {refined} WHERE event_date = DATE '{DAYS[5]}'")
    stray = p.landing / PROJECT / f"{PROJECT}-backfill_{DAY}_12#1.json.gz"
    stray.write_bytes(b"")
    faults = {"window", "one load path", "separate prefixes"}
    assert lights(p, Light.RED) == faults
    assert "the newest commit of refined/events is of no run of ours" in points(p)["one load path"].found

    p.must_load(DAYS[5])
    assert lights(p, Light.RED) == faults
    told = points(p)
    assert "1 foreign changes of slices are on record, 1 of them of the last 30 days" in told["one load path"].found
    assert f"refined/events {DAYS[5]}/{PROJECT}" in told["one load path"].found
    assert stray.name in told["separate prefixes"].found
    assert told["separate prefixes"].fix.startswith(f"tidemark split-landing --project {PROJECT}")
    assert told["window"].fix.startswith("Set TIDEMARK_REPROCESSING_WINDOW_DAYS=2")
    ill = OfPipeline(p)("doctor")
    assert ill.returncode == 1, ill.stdout
    assert "red     window: Is the reprocessing window wide enough for the lateness seen?" in ill.stdout
    # By this machine's clock some days may be too old to list; any clock sees two faults.
    assert ill.stdout.splitlines()[-1].partition(",")[0] in ("2 red", "3 red")
