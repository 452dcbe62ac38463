"""Sensors load days: markers, changed and vanished objects, deadlines, failures, stale days."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration import sensor_requests
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.live_runs import DIED_TAG
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, Pipeline, events_on

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
REFINED = "refined/events"
ARRIVED, RECOVERED, HEAL = "regular_exports_arrived", "backfill_exports_arrived", "heal"
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@dataclass
class Sensors:
    p: Pipeline
    cursors: dict[str, str | None] = field(default_factory=dict)
    launched: set[str] = field(default_factory=set)
    _built: tuple[Settings, dg.RepositoryDefinition] | None = None

    def repository(self) -> dg.RepositoryDefinition:
        """Of the present settings."""
        if self._built is None or self._built[0] != self.p.settings:
            self._built = self.p.settings, build_defs(self.p.settings).get_repository_def()
        return self._built[1]

    def tick(self, name: str, when: str, *, minutes: int = 0) -> Any:
        """One evaluation, so many minutes after the last; `when` is the situation, which `-s` prints."""
        self.p.now += timedelta(minutes=minutes)
        repository = self.repository()
        resources = {"landing": LandingStore.from_settings(self.p.settings), "clock": Clock(self.p.now)}
        sensor = repository.get_sensor_def(name)
        needed = {key: resources[key] for key in sensor.required_resource_keys}
        with dg.build_sensor_context(
            instance=self.p.instance, cursor=self.cursors.get(name), repository_def=repository, resources=needed
        ) as context:
            found = sensor.evaluate_tick(context)
        self.cursors[name] = found.cursor
        keys = {str(request.run_key) for request in found.run_requests or []}
        assert not keys & self.launched, "the daemon would launch nothing: it knows the key"
        self.launched |= keys
        print(name, when, found.skip_message, [request.tags for request in found.run_requests or []], sep=": ")
        return found

    def job_of(self, name: str) -> Any:
        return self.p.definitions().resolve_job_def(self.repository().get_sensor_def(name).job_name)

    def requested(self, name: str, when: str, *, minutes: int = 0) -> list[tuple[date, date]]:
        requests = self.tick(name, when, minutes=minutes).run_requests
        return [(date.fromisoformat(one.tags[START]), date.fromisoformat(one.tags[END])) for one in requests]

    def said(self, name: str, when: str, *, minutes: int = 0) -> str:
        found = self.tick(name, when, minutes=minutes)
        assert not found.run_requests
        return str(found.skip_message)

    def run(self, name: str, when: str, *, minutes: int = 0) -> list[dg.ExecuteInProcessResult]:
        requests = self.tick(name, when, minutes=minutes).run_requests or []
        job = self.job_of(name)
        return [
            job.execute_in_process(tags=request.tags, instance=self.p.instance, raise_on_error=False)
            for request in requests
        ]


def test_a_day_is_loaded_when_its_hours_are_complete_and_again_when_they_change(pipeline: Any) -> None:
    """Scenario: markers come one by one, an hour changes, an object goes, the deadline. Outcome: exactly the due days."""
    p = pipeline(calendar_start=DAY)
    p.now = datetime(2026, 2, 2, 8, tzinfo=UTC)
    s = Sensors(p)
    assert s.said(ARRIVED, "nothing in landing").startswith("waiting: landing lists nothing for 10001; check")

    p.deliver(DAY, events_on(DAY, 4, prefix="a"), hour=5)
    p.deliver(DAY, events_on(DAY, 3, prefix="b"), hour=6)
    first = s.tick(ARRIVED, "two hours without markers", minutes=1)
    assert f"regular/{PROJECT}/{DAY}: hours 5, 6 are not complete yet" in first.skip_message
    (shown,) = first.asset_events
    assert shown.partition == str(DAY)
    told = [shown.metadata[name].value for name in ("objects", "hours_delivered", "hours_complete")]
    assert told == [2, 2, 0]
    assert not s.tick(ARRIVED, "the same again", minutes=1).asset_events

    p.mark(DAY, hours=[5])
    found = s.tick(ARRIVED, "marker of one hour", minutes=1)
    (request,) = found.run_requests
    assert (request.tags[START], request.tags[END], request.tags["dagster/priority"]) == (str(DAY), str(DAY), "10")
    assert request.tags["tidemark/reason"] == f"{DAY}: new hours: 1"
    assert [event.metadata["hours_complete"].value for event in found.asset_events] == [1]

    p.mark(DAY, hours=range(24))
    (run,) = s.run(ARRIVED, "all 24 markers", minutes=1)
    assert run.success
    assert p.count(REFINED) == 7
    assert s.said(ARRIVED, "the day is loaded", minutes=1).startswith("nothing to do")

    key = p.deliver(DAY, events_on(DAY, 6, prefix="b"), hour=6)
    assert "hours 6 are not complete yet" in s.said(ARRIVED, "a loaded hour is delivered again", minutes=1)
    (run,) = s.run(ARRIVED, "it rested for 15 minutes", minutes=15)
    assert run.success
    assert p.count(REFINED) == 10
    p.deliver(DAY, events_on(DAY, 1, prefix="c"), hour=6, shard=2)
    p.remove(key)
    assert "hours 6 are not complete yet" in s.said(ARRIVED, "an object is gone, another shard came", minutes=1)
    (run,) = s.run(ARRIVED, "it rested", minutes=20)
    assert run.success
    assert p.count(REFINED) == 5

    # The next day never comes: it is loaded at its deadline, reported once, and left to an operator.
    p.now = datetime(2026, 2, 6, 0, 1, tzinfo=UTC)
    (run,) = s.run(ARRIVED, "nothing came for a day, its deadline passed")
    assert not run.success
    assert p.verdict(REFINED, NEXT) == "waiting"
    assert s.said(ARRIVED, "that day was told, and stays red", minutes=60).startswith("nothing to do")


def test_a_state_that_keeps_failing_is_tried_a_few_times_and_a_new_one_at_once(pipeline: Any) -> None:
    """Scenario: a run dies, landing is away, the cursor is garbage. Outcome: doubling pauses; a changed day starts anew."""
    p = pipeline(calendar_start=DAY)
    p.now = datetime(2026, 2, 2, 8, tzinfo=UTC)
    s = Sensors(p)
    p.deliver(DAY, events_on(DAY, 4), hour=5)
    p.mark(DAY, hours=[5])
    given_up, keys = "given up until their state changes", list[str]()
    for minutes in (0, 6, 11):
        (request,) = s.tick(ARRIVED, "a day is due, or its run died", minutes=minutes).run_requests
        keys.append(request.run_key)
        word = given_up if len(keys) == 3 else "tried before, to be tried again after a pause"
        assert s.said(ARRIVED, "one minute later", minutes=1).startswith(f"{word}: {DAY}")
    assert f"{given_up}: {DAY} (new hours: 1)" in s.said(ARRIVED, "three runs failed", minutes=300)
    tags = {START: str(DAY), END: str(DAY), DIED_TAG: "true"}
    p.instance.create_run_for_job(s.job_of(ARRIVED), tags=tags, status=dg.DagsterRunStatus.FAILURE)
    assert s.requested(ARRIVED, "the last one did not fail on it: its process died") == [(DAY, DAY)]
    s.cursors[ARRIVED] = None
    assert s.requested(ARRIVED, "a person resets the cursor") == [(DAY, DAY)]

    away = p.landing.rename(p.landing.with_name("away"))
    assert "is not a folder. Correct TIDEMARK_LANDING_URL" in s.said(ARRIVED, "landing is out of reach")
    away.rename(p.landing)
    p.deliver(DAY, events_on(DAY, 5), hour=5)
    assert s.requested(ARRIVED, "the day is delivered again") == [(DAY, DAY)]

    for garbage in ("{", "[]", json.dumps({"seen": {"x": 1}, "attempts": {}, "told": {}, "sweep_from": None})):
        s.cursors[ARRIVED] = garbage
        found = s.tick(ARRIVED, f"the cursor is garbage: {garbage}", minutes=1)
        assert found.run_requests
        json.loads(str(found.cursor))

    p.remove(p.deliver(DAY, events_on(DAY, 5), hour=5))
    emptied = s.tick(ARRIVED, "all objects of the day are gone", minutes=1).asset_events
    assert [(event.partition, event.metadata["objects"].value) for event in emptied] == [(str(DAY), 0)]
    p.change(calendar_start=date(2027, 1, 1))
    assert "TIDEMARK_CALENDAR_START 2027-01-01 lies in the future" in s.said(ARRIVED, "the calendar begins next year")
    p.change(projects=())
    for name in (ARRIVED, RECOVERED, HEAL):
        assert "TIDEMARK_PROJECTS" in s.said(name, "no project is configured")


def _a_look_takes(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensor_requests, "DAYS_PER_TICK", days)


def test_runs_are_coalesced_capped_and_never_doubled(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: forty days, a cap of ten, runs of five. Outcome: whole ranges, oldest first; covered days are left."""
    _a_look_takes(10, monkeypatch)
    p = pipeline(calendar_start=DAY, days_per_run=5, reprocessing_window_days=1)
    p.now = datetime(2026, 3, 20, tzinfo=UTC)
    days = [DAY + timedelta(days=n) for n in range(40)]
    for day in days:
        p.deliver(day, events_on(day, 1))
    s = Sensors(p)
    first = s.requested(ARRIVED, "40 days of exports, cap 10 days, chunks of 5")
    assert first == [(days[0], days[4]), (days[5], days[9])]
    run = p.instance.create_run_for_job(
        p.definitions().resolve_job_def("daily_load"),
        tags={START: str(days[10]), END: str(days[11])},
        status=dg.DagsterRunStatus.STARTED,
    )
    second = s.requested(ARRIVED, "a run of two of them is under way", minutes=1)
    assert second == [(days[11], days[15]), (days[16], days[20]), (days[21], days[21])]
    p.instance.report_run_canceled(run)

    today = p.now.date()
    for hour in range(2):
        p.deliver(today, events_on(today, 1, prefix=str(hour)), hour=hour)
    p.mark(today, hours=[0])
    p.now += timedelta(minutes=1)
    requests = s.tick(ARRIVED, "an hour of today came, the history is not through").run_requests
    priorities = {request.tags[END]: request.tags["dagster/priority"] for request in requests}
    assert priorities.pop(str(today)) == "10"
    assert len(priorities) >= 2
    assert set(priorities.values()) == {"0"}


def test_a_recovery_is_loaded_when_it_rests_and_the_daily_job_never_sees_it(pipeline: Any) -> None:
    """Scenario: recovery exports of an old day arrive one by one; their first run dies. Outcome: the backfill sensor
    waits until they rest, retries after a pause and yields to daily runs; the regular one ignores them."""
    p = pipeline(calendar_start=date(2025, 6, 1))
    p.now = datetime(2026, 2, 20, tzinfo=UTC)
    old, first = date(2025, 7, 1), date(2026, 2, 17)
    p.deliver(first, events_on(first, 2))
    p.mark(first)
    for day in (first + timedelta(days=1), first + timedelta(days=2)):
        p.mark(day)
    s = Sensors(p)
    assert s.run(ARRIVED, "exports begin")[0].success
    p.deliver(old, events_on(old, 3), hour=1, source=Source.BACKFILL)
    waiting = f"waiting: backfill/{PROJECT}/{old}: hours 1"
    found = [s.said(RECOVERED, "a recovery of an old day begins", minutes=1) for _ in range(9)]
    assert any(f"{waiting} are not complete yet" in said for said in found)
    p.deliver(old, events_on(old, 3, prefix="more"), hour=2, source=Source.BACKFILL)

    def until_requested() -> Any:
        for _ in range(40):
            requests = s.tick(RECOVERED, "another hour of it came", minutes=1).run_requests
            if requests:
                return requests
        pytest.fail("never requested")

    (request,) = until_requested()
    assert (request.tags[END], request.tags["dagster/priority"]) == (str(old), "0")
    assert request.tags["tidemark/reason"] in (f"{old}: new hours: 1", f"{old}: new hours: 2")
    (again,) = until_requested()
    assert s.job_of(RECOVERED).execute_in_process(tags=again.tags, instance=p.instance, raise_on_error=False).success
    assert p.count(REFINED, old) == 6
    for _ in range(9):
        assert "deadline" not in s.said(ARRIVED, "a recovery lies on the other prefix", minutes=1)


def test_an_old_day_that_keeps_failing_is_given_up_though_it_is_looked_at_by_turns(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: runs of a day behind the horizon die. Outcome: three tries in all, then it is named as given up."""
    _a_look_takes(40, monkeypatch)
    p = pipeline(calendar_start=date(2025, 6, 1))
    p.now = datetime(2026, 2, 20, tzinfo=UTC)
    old = date(2025, 7, 1)
    p.deliver(old, events_on(old, 3))
    s = Sensors(p)
    looks = [s.tick(ARRIVED, "its turn comes, its run dies", minutes=60) for _ in range(40)]
    asked = [one for look in looks for one in look.run_requests or [] if one.tags[START] <= str(old) <= one.tags[END]]
    assert len([one for one in asked if f"{old}: new hours: 1" in one.tags["tidemark/reason"]]) == 3
    given_up = [look for look in looks if f"given up until their state changes: {old}" in str(look.skip_message)]
    assert given_up


def test_an_exporter_without_markers_is_told_to_dagster_as_it_rests(pipeline: Any) -> None:
    """Outcome: an hour counts as complete once it rested."""
    p = pipeline(calendar_start=DAY, hours_complete_by=Completeness.QUIET)
    p.now = datetime(2026, 2, 2, 8, tzinfo=UTC)
    s = Sensors(p)

    def hours_complete() -> list[Any]:
        return [one.metadata["hours_complete"].value for one in s.tick(ARRIVED, "no markers", minutes=10).asset_events]

    p.deliver(DAY, events_on(DAY, 2), hour=5)
    assert hours_complete() == [0]
    p.deliver(DAY, events_on(DAY, 2, prefix="six"), hour=6)
    assert hours_complete() == [0]
    assert hours_complete() == [1]
    assert hours_complete() == [2]
    assert hours_complete() == []


def test_heal_builds_what_is_stale_missing_or_newly_final_and_nothing_else(pipeline: Any) -> None:
    """Outcome: exactly missing, tampered and newly final days are requested, without a JVM and beside no load."""
    p = pipeline(calendar_start=DAY)
    p.now = datetime(2026, 2, 3, 6, tzinfo=UTC)
    s = Sensors(p)
    assert s.said(HEAL, "an empty ledger").startswith("nothing to do")
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 5))
        p.mark(day)
    p.must_run(DAY, NEXT, tables=["raw/regular_events"])
    (run,) = s.run(HEAL, "raw alone was loaded, two days")
    assert run.success
    assert p.count(REFINED) == 10
    assert s.said(HEAL, "all is built", minutes=5).startswith("nothing to do")

    p.deliver(NEXT, events_on(NEXT, 6))
    p.must_run(NEXT, tables=["raw/regular_events"])
    queued = p.instance.create_run_for_job(
        p.definitions().resolve_job_def("daily_load"), tags={}, status=dg.DagsterRunStatus.STARTED
    )
    assert "loads under way: 1" in s.said(HEAL, "raw of a day changed, a load runs")
    p.instance.report_run_canceled(queued)
    (run,) = s.run(HEAL, "the load ended")
    assert run.success
    assert (p.count(REFINED, NEXT), p.verdict("aggregates/event_counts", NEXT)) == (6, "published")

    # A late fact of a day without a partition is built with the arrival that brought it.
    early = date(2025, 12, 24)
    p.deliver(NEXT, [*events_on(NEXT, 6), *events_on(early, 1)])
    p.must_run(NEXT, tables=["raw/regular_events"])
    assert s.requested(HEAL, "raw got a late fact of a day before the calendar") == [(NEXT, NEXT)]
    s.cursors[HEAL] = None
    (run,) = s.run(HEAL, "the same, with a lost cursor", minutes=1)
    assert run.success
    assert p.count(REFINED, early) == 1
    assert s.said(HEAL, "all is built", minutes=5).startswith("nothing to do")

    # Likewise where the arrival is before the calendar too, within its first day's reach.
    before = DAY - timedelta(days=1)
    p.deliver(before, events_on(early, 2, prefix="before"))
    p.must_run(DAY, tables=["raw/regular_events"])
    (run,) = s.run(HEAL, "raw got an arrival of the day before the calendar")
    assert run.success
    assert p.count(REFINED, early) == 3

    settings, p.settings = p.settings, p.settings.model_copy(update={"calendar_start": date(2026, 2, 20)})
    p.now = datetime(2026, 2, 21, tzinfo=UTC)
    told = s.said(HEAL, "a day became final that the calendar does not reach any more", minutes=5)
    assert f"{DAY} is stale, but the calendar does not reach it; set TIDEMARK_CALENDAR_START earlier" in told
    p.settings = settings

    p.now = datetime(2026, 6, 1, tzinfo=UTC)
    for shift in range(2, 5):
        p.deliver(DAY + timedelta(days=shift), events_on(DAY + timedelta(days=shift), 1))
    p.must_run(DAY + timedelta(days=2), DAY + timedelta(days=4), tables=["raw/regular_events"])
    found = s.requested(HEAL, "three more days in raw alone, and two that became final")
    assert found == [(DAY, DAY + timedelta(days=4))]
