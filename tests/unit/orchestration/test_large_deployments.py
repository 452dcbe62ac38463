"""Sensors of a large deployment: each evaluation is bounded, and everything has its turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus

from benchmarks.scale import landing as simulated
from benchmarks.scale.fill import fill
from benchmarks.scale.landing import SimulatedLanding
from benchmarks.scale.looks import LOOKS, Place
from benchmarks.scale.sizes import SIZES
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.records import Rejection, SliceRecord
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import Digest, Slice, Source, Verdict
from pipeline_assets.load.staleness import scan
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.load.staleness.scan import Stale, days_on_record, scan_stale_days
from pipeline_assets.orchestration import sensor_requests, sensors
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.sensor_requests import Cursor
from pipeline_assets.orchestration.specs import REASON_TAG
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import DIMENSIONS
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

SIZE = SIZES["tiny"]
RAW = "raw/regular_events"
DAYS = SIZE.all_days
OTHER_ROWS = Digest(7, 7, 7)
FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    settings = SIZE.settings(folder)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        written = fill(ledger, SIZE, settings)
    assert written["tidemark_deliveries"] == SIZE.objects == 2 * 40 * 24 * 4
    return folder


@pytest.fixture
def place(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A copy for a writing test; a bucket that answers at once."""
    monkeypatch.setattr(simulated, "PAGE_SECONDS", 0.0)
    (tmp_path / "ledger.db").write_bytes((filled / "ledger.db").read_bytes())
    return Place(SIZE, tmp_path)


@pytest.fixture
def ledger(place: Place) -> Iterator[Ledger]:
    with closing(Ledger(place.size.settings(place.folder).ledger_database_url)) as ledger:
        yield ledger


def tick(sensor: dg.SensorDefinition, cursor: str | None, landing: Any = None, minutes: int = 0) -> Any:
    resources = {"clock": Clock(SIZE.now + timedelta(minutes=minutes)), "landing": landing}
    needed = {name: resources[name] for name in sensor.required_resource_keys}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, cursor=cursor, resources=needed) as context,
    ):
        return sensor.evaluate_tick(context)


def test_every_look_works_on_what_is_simulated(place: Place) -> None:
    """Scenario: each look of the benchmark, smallest size. Outcome: only arrivals are due; pages show all."""
    found = {name: look(place) for name, look in LOOKS.items()}
    assert found["listing: a day"]["objects"] == 2 * 96
    assert [found[name]["runs"] for name in ("arrivals: nothing new", "arrivals: a new day", "heal")] == [0, 1, 0]
    assert found["arrivals: all is new"]["runs"] > 0
    assert (found["plan: a day"]["batches"], found["page"]["days"]) == (2 * 4, 5 * len(DAYS))
    assert found["doctor"]["again"] == found["doctor"]["unfinished"] == 0


def test_heal_looks_at_recent_days_each_time_and_at_all_others_in_turn(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: no look exceeds its bound; the newest day is requested at once, others in turn; a round covers all."""
    monkeypatch.setattr(sensors, "MOST_SLICES", 24)
    old = DAYS[20]
    _make_stale(ledger, old, DAYS[-1])
    seen: list[set[date]] = []

    def looking(*args: Any, days: list[date]) -> Any:
        seen.append(set(days))
        return scan_stale_days(*args, days=days)

    monkeypatch.setattr(sensors, "scan_stale_days", looking)
    looks = list(_heal_looks(place, 6, minutes=5))
    asked = [_first_days(look) for look in looks]
    assert all(len(days) <= 12 and set(DAYS[-4:]) <= days for days in seen)
    assert set().union(*seen) == set(DAYS)
    assert asked[0] == [DAYS[-2]]
    (turn,) = [number for number, days in enumerate(seen[:5]) if old in days]
    assert DAYS[19] in asked[turn]
    assert looks[-1].skip_message.startswith("given up until their state changes: ")


def test_what_was_given_up_is_told_by_each_look_whatever_days_it_is_at(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: three requests, once a round; from the fourth meeting on each look names it, until it is healed."""
    asked = _looks_at_a_stale_day(place, ledger, monkeypatch, DAYS[20])
    assert [days for days, _ in asked if days] == [[DAYS[19]]] * 3
    said = [text for _, text in asked]
    first = next(number for number, text in enumerate(said) if "given up" in text)
    assert f"given up until their state changes: {DAYS[19]} (refined/events" in said[first]
    assert len(said) - first > 4
    assert all(f"{DAYS[19]} (when it was looked at last)" in text for text in said[first + 1 : first + 4])
    assert not any("given up" in text for text in said[:first])


def _looks_at_a_stale_day(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, day: date, settings: Settings | None = None
) -> list[tuple[list[date], str]]:
    """Requests and messages of 24 looks, each at 24 of 80 days of projects, five a round."""
    monkeypatch.setattr(sensors, "MOST_SLICES", 24)
    _make_stale(ledger, day)
    return [(_first_days(look), str(look.skip_message)) for look in _heal_looks(place, 24, settings=settings)]


def _make_stale(ledger: Ledger, *days: date) -> None:
    """Raw has other rows of these days than what was built of them."""
    for day in days:
        record = ledger.slices(RAW, ["10001"], [day])[Slice(day, "10001")]
        ledger.record(Changes(slices=[replace(record, digest=OTHER_ROWS)]), "a-run")


def _heal_looks(place: Place, count: int, *, minutes: int = 10, settings: Settings | None = None) -> Iterator[Any]:
    cursor: str | None = None
    for number in range(count):
        look = tick(sensors.heal_sensor(settings or SIZE.settings(place.folder)), cursor, minutes=minutes * number)
        cursor = look.cursor
        yield look


def _first_days(look: Any) -> list[date]:
    return [date.fromisoformat(one.tags[FIRST]) for one in look.run_requests or []]


def test_a_day_outside_of_the_calendar_is_tried_as_often_as_any_although_a_recent_day_is_loaded_for_it(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a stale day before the calendar, built with a recent arrival day. Outcome: three requests."""
    outside, arrival = DAYS[2], DAYS[-2]
    batch = BatchKey(Source.REGULAR, "10001", arrival)
    known = ledger.batch_days_of(Source.REGULAR, "10001", [arrival])[arrival][batch]
    ledger.record(Changes(batch_days={batch: {arrival: known, outside: known}}), "a-run")
    settings = SIZE.settings(place.folder).model_copy(update={"calendar_start": DAYS[10]})
    asked = _looks_at_a_stale_day(place, ledger, monkeypatch, outside, settings)
    assert [days for days, _ in asked if days] == [[arrival]] * 3
    assert f"given up until their state changes: {outside} (" in " ".join(text for _, text in asked)
    assert f"{outside} (when it was looked at last)" in asked[-1][1] + asked[-2][1]


def test_an_interval_of_a_dimension_is_tried_apart_from_the_days_of_the_look(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: three attempts of each state of the interval and three of the stale day, by whichever look."""
    (dimension,) = DIMENSIONS
    day, state = DAYS[19], ["s1"]

    def with_interval(*args: Any, days: list[date]) -> Any:
        found = scan_stale_days(*args, days=days)
        found.setdefault(day, []).append(Stale(dimension.validity.key, "is stale", state[0], True))
        return found

    monkeypatch.setattr(sensors, "scan_stale_days", with_interval)
    monkeypatch.setattr(sensors, "MOST_SLICES", 24)
    _make_stale(ledger, DAYS[20])
    reasons = []
    for number, look in enumerate(_heal_looks(place, 24)):
        state[0] = "s1" if number < 11 else "s2"  # of the next look
        reasons += [(number, one.tags[REASON_TAG]) for one in look.run_requests or [] if day in _first_days(look)]
    of_interval = [number for number, why in reasons if dimension.validity.key in why]
    of_day = [number for number, why in reasons if REFINED_EVENTS.key in why]
    assert (len(of_interval), len([number for number in of_interval if number < 12]), len(of_day)) == (6, 3, 3)


def test_what_is_in_memory_at_once_is_bounded_by_days_that_lie_together(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: looks at old and recent days. Outcome: no reading spans the days between."""
    monkeypatch.setattr(scan, "_SLICES_AT_ONCE", 10)
    spans = []
    read = Ledger.slices

    def noted(of: Ledger, table: str, projects: Any, days: Any = None) -> Any:
        if days:
            spans.append((max(days) - min(days)).days)
        return read(of, table, projects, days)

    monkeypatch.setattr(Ledger, "slices", noted)
    scan_stale_days(ledger, SIZE.settings(place.folder), SIZE.now, days=[*DAYS[:7], *DAYS[-3:]])
    # Five days at once, with their neighbours for refined.
    assert spans
    assert max(spans) <= 4 + 2


def test_a_small_deployment_is_looked_at_whole(place: Place, ledger: Ledger) -> None:
    found = tick(sensors.heal_sensor(SIZE.settings(place.folder)), None)
    assert found.skip_message == "nothing to do: every published day matches its inputs"
    assert Cursor.parse(found.cursor).sweep_from is None
    assert days_on_record(ledger) == DAYS


def test_a_scan_in_parts_says_what_a_scan_of_everything_says(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: parts of any size give the full scan's answer; the day that waits for a held one stays."""
    settings = SIZE.settings(place.folder)
    keys = [Slice(day, "10001") for day in DAYS]
    _make_stale(ledger, DAYS[9])
    waiting: SliceRecord = ledger.slices(REFINED_EVENTS.key, ["10001"], [DAYS[24]])[keys[24]]
    assert waiting.input_state is not None
    rejection = Rejection(waiting.input_state, judging(REFINED_EVENTS, settings), (DAYS[27],))
    tied = replace(waiting, input_state=None, rejection=rejection, verdict=Verdict.WAITING)
    ledger.record(Changes(slices=[tied]), "a-run")
    ledger.interventions.hold({REFINED_EVENTS.key: [keys[27]]}, "a look", "a-run")
    whole = scan_stale_days(ledger, settings, SIZE.now)
    assert DAYS[9] in whole
    assert not [one for one in whole.get(DAYS[24], ()) if one.table == REFINED_EVENTS.key]
    for slices_at_once in (2, 10, 50):
        monkeypatch.setattr(scan, "_SLICES_AT_ONCE", slices_at_once)
        assert scan_stale_days(ledger, settings, SIZE.now) == whole


def _looks_at_landing(
    settings: Settings, source: Source, monkeypatch: pytest.MonkeyPatch, looks: int, recovered: Sequence[date] = ()
) -> tuple[list[list[tuple[date, date]]], list[list[tuple[date, date]]]]:
    """Listings and requests of looks every 20 minutes; requests are not loaded."""
    listed: list[list[tuple[date, date]]] = []
    asked: list[list[tuple[date, date]]] = []
    cursor = None
    for number in range(looks):
        landing = SimulatedLanding(SIZE, settings.marker_pattern, recovered=recovered)
        of_look: list[tuple[date, date]] = []
        ask = landing.list

        def noted(of: Source, projects: Any, first: date, last: date, *rest: Any, to=of_look, ask=ask) -> Any:  # type: ignore[no-untyped-def]
            to.append((first, last))
            return ask(of, projects, first, last, *rest)

        monkeypatch.setattr(landing, "list", noted)
        found = tick(sensors.arrival_sensor(settings, source), cursor, landing, minutes=20 * number)
        cursor = found.cursor
        listed.append(of_look)
        tags = [one.tags for one in found.run_requests or []]
        asked.append([(date.fromisoformat(one[FIRST]), date.fromisoformat(one[LAST])) for one in tags])
    return listed, asked


def test_arrivals_are_listed_in_bounded_parts_of_which_the_newest_days_are_in_each(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: each look lists the newest days within its bound; all days come in turn, the horizon more often."""
    monkeypatch.setattr(sensors, "MOST_BATCHES", 24)
    settings = SIZE.settings(place.folder)
    listed, asked = _looks_at_landing(settings, Source.REGULAR, monkeypatch, 10)
    days = [{day for first, last in look for day in _between(first, last)} for look in listed]
    today = SIZE.now.date()
    assert not any(asked)
    assert all(len(look) <= 12 and {today - timedelta(days=back) for back in range(5)} <= look for look in days)
    assert set().union(*days) == set(_between(DAYS[0], today))
    often = {day: sum(day in look for look in days) for day in DAYS}
    assert often[DAYS[15]] > often[DAYS[0]] > 0


def test_recoveries_of_old_days_are_found_as_soon_as_in_a_small_deployment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcome: each look covers the whole horizon and one part of older days; a rested recovery is one run."""
    settings = SIZE.settings(place.folder)
    monkeypatch.setattr(sensor_requests, "DAYS_PER_TICK", 10)
    whole = _looks_at_landing(settings, Source.BACKFILL, monkeypatch, 3, DAYS[1:8])
    monkeypatch.setattr(sensors, "MOST_BATCHES", 24)
    assert _looks_at_landing(settings, Source.BACKFILL, monkeypatch, 3, DAYS[1:8]) == whole
    recent = SIZE.now.date() - timedelta(days=settings.redelivery_horizon_days)
    listed, asked = whole
    assert listed == [[(recent, SIZE.now.date()), (DAYS[0], recent - timedelta(days=1))]] * 3
    assert asked[:2] == [[], [(DAYS[0], DAYS[7])]]


def test_many_recovered_names_are_listed_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: 14 days of 480 names, 2,000 a look. Outcome: no look exceeds that; each has the newest days."""
    monkeypatch.setattr(sensors, "MOST_BATCHES", 12)
    monkeypatch.setattr(sensors, "MOST_NAMES", 2_000)
    few_days = {"calendar_start": DAYS[26], "redelivery_horizon_days": 10}
    settings = SIZE.settings(place.folder).model_copy(update=few_days)
    listed, asked = _looks_at_landing(settings, Source.BACKFILL, monkeypatch, 10, DAYS[26:])
    today = SIZE.now.date()
    # The look's last three windows; the earlier ones were too large.
    looked_at = [{day for first, last in look[-3:] for day in _between(first, last)} for look in listed]
    assert all(240 * len(days & set(DAYS)) <= 2_000 for days in looked_at)
    assert all({today - timedelta(days=back) for back in range(5)} <= days for days in looked_at)
    assert {day for look in asked for first, last in look for day in _between(first, last)} == set(DAYS[26:])


def test_a_round_of_ten_years_takes_as_many_looks_as_is_written() -> None:
    """Outcome: the time within which a change of an old day is found is that of `docs/scale.md`."""
    today = date(2026, 1, 1)
    for projects, regular in ((10, 121), (40, 329), (100, 1_208), (200, 3_622)):
        names = tuple(str(10_000 + number) for number in range(projects))
        settings = Settings(projects=names, calendar_start=today - timedelta(days=3_652))
        assert _looks_of_a_round(Source.BACKFILL, settings, today) == 121
        assert _looks_of_a_round(Source.REGULAR, settings, today) == regular


def _looks_of_a_round(source: Source, settings: Settings, today: date) -> int:
    cursor, looks = Cursor(), 0
    landing = NoLanding()
    while cursor.sweep_from is None or looks == 0 or cursor.sweep_from < today - timedelta(days=30):
        sensors.list_windows(landing, source, settings, cursor, today)  # type: ignore[arg-type]  # what is asked is nothing here
        looks += 1
    return looks


class NoLanding:
    def list(self, *_: Any) -> Listing:
        return Listing()


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"seen": ' * 50_000, "1" * 5_000, '"\\ud800"', "[]",
     '{"attempts": {"2026-02-02 2026-02-02 ": {"state": "x", "count": 1e999, "at": "2026-02-02T00:00:00+00:00"}}}'],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_a_cursor_that_a_stranger_wrote_is_one_that_cannot_be_read(text: str) -> None:
    """Dagster's page sets cursors. Only ValueError lets the sensor go on."""
    with pytest.raises(ValueError, match=r"."):
        Cursor.parse(text)


def test_looks_of_sensors_do_not_fill_dagsters_storage(tmp_path: Path) -> None:
    """Outcome: by our dagster.yaml, the 1,440 daily looks without a request go after two days instead of seven."""
    (tmp_path / "dagster.yaml").write_text((PROJECT_ROOT / "dagster.yaml").read_text("utf-8"))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        kept = instance.get_tick_retention_settings(InstigatorType.SENSOR)
    assert (kept[TickStatus.SKIPPED], kept[TickStatus.FAILURE], kept[TickStatus.SUCCESS]) == (2, 90, -1)


def _between(first: date, last: date) -> list[date]:
    return [first + timedelta(days=shift) for shift in range((last - first).days + 1)]
