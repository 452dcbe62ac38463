"""The looks, queries of a large deployment: sensor ticks, the plan of a load, commands and pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks.scale.landing import SimulatedLanding
from benchmarks.scale.sizes import Size
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.health import DUPLICATES, read_health
from pipeline_assets.inspection.metrics import read_samples
from pipeline_assets.inspection.status import day_statuses, joined_statuses
from pipeline_assets.load.deliveries.arrivals import plan_arrivals
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.load.staleness.finality import recent_lateness
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.sensors import arrival_sensor, heal_sensor
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Place:
    """A filled deployment."""

    size: Size
    folder: Path

    def landing(self, more_days: int = 0, recovered_days: int = 0) -> SimulatedLanding:
        """Return the simulated landing, with `more_days` and the oldest `recovered_days` not loaded yet."""
        recovered = self.size.all_days[:recovered_days]
        return SimulatedLanding(self.size, self.size.settings(self.folder).marker_pattern, more_days, recovered)


def _arrival_tick(more_days: int, *, is_empty: bool = False) -> Callable[[Place], dict[str, Any]]:
    def look(place: Place) -> dict[str, Any]:
        settings, landing = place.size.settings(place.folder), place.landing(more_days)
        if is_empty:
            settings = settings.model_copy(update={"ledger_url": f"sqlite:///{place.folder}/empty.db"})
        now = place.size.now + timedelta(days=more_days)
        found = _tick(arrival_sensor(settings, Source.REGULAR), None, now, landing)
        return {"runs": len(found.run_requests or []), "pages": landing.pages, "cursor_kb": len(found.cursor) // 1_000}

    return look


def _recovery_tick(days: int) -> Callable[[Place], dict[str, Any]]:
    """A tick of the recovery sensor, with this number of the oldest days recovered in all projects."""

    def look(place: Place) -> dict[str, Any]:
        settings, landing = place.size.settings(place.folder), place.landing(recovered_days=days)
        found = _tick(arrival_sensor(settings, Source.BACKFILL), None, place.size.now, landing)
        seen = len({name.split("/")[2] for name in json.loads(found.cursor)["seen"]})
        return {"days": seen, "pages": landing.pages, "cursor_kb": len(found.cursor) // 1_000}

    return look


def _tick(sensor: dg.SensorDefinition, cursor: str | None, now: Any, landing: Any = None) -> Any:
    resources = {"clock": Clock(now), "landing": landing}
    needed = {name: resources[name] for name in sensor.required_resource_keys}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, cursor=cursor, resources=needed) as context,
    ):
        return sensor.evaluate_tick(context)


def _heal(place: Place) -> dict[str, Any]:
    found = _tick(heal_sensor(place.size.settings(place.folder)), None, place.size.now)
    return {"runs": len(found.run_requests or []), "said": str(found.skip_message)[:80]}


def _plan(days: int) -> Callable[[Place], dict[str, Any]]:
    """The planning of a load of the newest days, before it reads data."""

    def look(place: Place) -> dict[str, Any]:
        size, settings, landing = place.size, place.size.settings(place.folder), place.landing()
        chosen = size.all_days[-days:]
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            runtime = Runtime(None, ledger, landing, settings)  # type: ignore[arg-type]  # no table is opened
            request = LoadRequest(tuple(chosen), size.names, frozenset(), "a-look", size.now)
            plan = plan_arrivals(runtime, request, Source.REGULAR, {})
            slices = slices_to_look_at(ledger, settings, size.names, chosen)
            facts = Facts.read(ledger, settings, slices, (), size.now)
            plans = sum(
                len(
                    decide_with_neighbours(
                        ledger,
                        facts.reading(ledger, [table]),
                        table,
                        request.slices_of(table.kind),
                        {},
                        size.now,
                    )
                )
                for table in DERIVED
            )
        return {"batches": len(plan), "slices": plans, "pages": landing.pages}

    return look


def _status(place: Place) -> dict[str, Any]:
    settings, last = place.size.settings(place.folder), place.size.last_day
    days = days_between(last - timedelta(days=13), last)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        statuses = day_statuses(ledger, place.size.names, days, tuple(Source))
        statuses += joined_statuses(ledger, place.size.names, days, is_all_wanted=True)
    return {"days": len(statuses)}


def _page(place: Place) -> dict[str, Any]:
    settings = place.size.settings(place.folder)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        report = read_health(ledger, settings, place.size.now)
    return {"days": len(report.calendar.states) if report.calendar else 0}


def _metrics(place: Place) -> dict[str, Any]:
    settings = place.size.settings(place.folder)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        return {"samples": sum(len(one.samples) for one in read_samples(ledger, settings, place.size.now, None))}


def _doctor(place: Place) -> dict[str, Any]:
    """The points of the doctor that query the ledger."""
    size, settings = place.size, place.size.settings(place.folder)
    first: date = size.last_day - timedelta(days=27)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        checkup = ledger.checkup
        again = checkup.built_again(size.names)
        found = [checkup.verdicts(), checkup.found_commits(size.names), ledger.processes.all()]
        unfinished = checkup.of_unfinished_runs(size.names)
        recent_lateness(ledger, Source.REGULAR, size.names, size.last_day)
        duplicates = ledger.summaries.check_figures([DUPLICATES], size.names)[DUPLICATES]
        sizes, marked = (
            ledger.summaries.arrived(None, size.names, first, date.max),
            checkup.marked_days(size.names, first),
        )
    return {"again": again[0], "unfinished": unfinished, "rows": sum(map(len, (*found, duplicates, sizes, marked)))}


def _listing(days: int | None) -> Callable[[Place], dict[str, Any]]:
    """Listing landing only: the newest days, or the whole history."""

    def look(place: Place) -> dict[str, Any]:
        landing = place.landing()
        first = place.size.last_day - timedelta(days=(days or place.size.days) - 1)
        listing = landing.list(Source.REGULAR, place.size.names, first, place.size.last_day)
        return {"objects": len(listing.deliveries), "pages": landing.pages}

    return look


LOOKS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "listing: a day": _listing(1),
    "listing: a month": _listing(30),
    "arrivals: nothing new": _arrival_tick(0),
    "arrivals: a new day": _arrival_tick(1),
    "arrivals: all is new": _arrival_tick(0, is_empty=True),
    "recoveries: none": _recovery_tick(0),
    "recoveries: a quarter": _recovery_tick(91),
    "heal": _heal,
    "plan: a day": _plan(1),
    "plan: 30 days": _plan(30),
    "status": _status,
    "page": _page,
    "metrics": _metrics,
    "doctor": _doctor,
}
