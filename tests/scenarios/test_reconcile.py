"""An outside system's totals per day: differences are named, explained and closed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.notices import NoticeKind
from pipeline_assets.inspection.health import read_health
from pipeline_assets.transforms.digests import STATES
from tests.support.builders import LATER, PROJECT, a_body, events_on
from tests.support.export_api import Vendor
from tests.support.shell import OfPipeline

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(4)]
CUT, EMPTIED, MISSING, LATE = DAYS
SPAN = ("--from", str(DAYS[0]), "--to", str(DAYS[-1]))
REFINED = "refined/events"
LOST = {CUT: 12, EMPTIED: 9, MISSING: 8, LATE: 8}
"""Day -> how many of its 60 events are missing."""


class Incident:
    """Four days lose 37 events in four ways; an outside system knows all of them."""

    def __init__(self, pipeline: Any, vendor: Vendor, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.p, self.vendor, self.home, self._capfd = pipeline, vendor, home, capfd
        self._shell = OfPipeline(pipeline, home, **vendor.environment(), TIDEMARK_EXPORT_MIN_FREE_BYTES="0")
        self.events = {day: events_on(day, 60) for day in DAYS}
        for day, events in self.events.items():
            kept = len(events) - LOST[day]
            self._deliver(day, 9, 1, events[:kept])
            # Lost: a file beside others of its hour, an hour with its marker, one without, and one that is late.
            hour, shard = (9, 2) if day == CUT else (10, 1)
            vendor.add(PROJECT, Hour(day, hour), a_body(events[kept:]), shard)
            lost = (10,) if day in (MISSING, LATE) else ()
            self.p.mark(day, hours=[number for number in range(24) if number not in lost])

    def _deliver(self, day: date, hour: int, shard: int, events: list[dict[str, Any]]) -> None:
        self.p.deliver(day, events, hour=hour, shard=shard)
        self.vendor.add(PROJECT, Hour(day, hour), a_body(events), shard)

    def comes_late(self) -> None:
        """The last day's hour arrives during the day's load."""
        self.p.deliver(LATE, self.events[LATE][-LOST[LATE] :], hour=10, shard=1)

    def golden(self, day: date, *more: str) -> None:
        folder = self.p.landing / "golden"
        folder.mkdir(exist_ok=True)
        totals = {"rows": 60, "events": 60, "revenue": "15.00", "purchases": 6}
        lines = [f"{day},{PROJECT},{name},{value}" for name, value in totals.items()]
        (folder / f"{day}.csv").write_text("\n".join(["day,project,measure,value", *lines, *more]) + "\n")

    def keys(self) -> Path:
        path = self.home / "keys.csv"
        rows = [f"{one['$insert_id']},{one['event_time']}" for events in self.events.values() for one in events]
        path.write_text("\n".join(["insert_id,event_time", *rows]) + "\n")
        return path

    def tidemark(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self._capfd.readouterr()
        done = self._shell(*words, **environment)
        told = done.stderr + self._capfd.readouterr().err
        return subprocess.CompletedProcess(words, done.returncode, done.stdout, told)

    def found(self, *words: str, **environment: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.tidemark("reconcile", *words, "--json", **environment).stdout)
        return found


def test_a_mismatch_of_37_lost_keys_over_four_days_is_named_explained_and_closed(
    pipeline: Any, vendor: Vendor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Scenario: 37 events are lost in four ways, three of them silent; totals and keys arrive after the loads.
    Outcome: check, status, page and command name each day; `--repair` loads and recovers until all agree."""
    incident = Incident(pipeline(), vendor, tmp_path / "home", capfd)
    p = incident.p
    p.must_run(DAYS[0], DAYS[-1])
    nothing = incident.tidemark("reconcile", *SPAN)
    assert nothing.returncode == 1
    assert "there is nothing to compare" in nothing.stdout
    for day in DAYS:
        incident.golden(day, *(["2026-02-02,10001,sales,3"] if day == CUT else []))
    # A load without changes compares too; it warns and succeeds.
    loaded = p.must_run(DAYS[0], DAYS[2])
    warned = loaded.failed_checks(dg.AssetCheckSeverity.WARN)
    assert (REFINED, "reconciles_with_golden", str(CUT)) in warned
    assert loaded.check_metadata(REFINED, "reconciles_with_golden", CUT)["rows_relative_difference"].value == 0.2
    assert {(day, kind) for table, day, kind in _told_of_golden(p) if table == REFINED} == {
        (day, NoticeKind.GOLDEN_MISMATCH) for day in DAYS[:3]
    }, "receivers are told by the load"
    incident.comes_late()

    first = incident.tidemark("reconcile", *SPAN)
    assert first.returncode == 1
    assert "2026-02-02/10001 refined/events: rows 48 published, 60 golden (-12, 20.00%)" in first.stdout
    assert "golden/2026-02-02.csv line 6: sales is no measure" in first.stdout
    incident.golden(CUT)
    told = incident.found(*SPAN)
    rows = [one for one in told["totals"] if one["measure"] == "refined/events:rows"]
    assert {one["day"]: one["difference"] for one in rows} == {str(day): str(-lost) for day, lost in LOST.items()}
    assert [(one["kind"], one["days"], one["command"]) for one in told["repairs"]] == [
        # Its object may hold late events of the days before.
        (
            "load", [f"{day}/10001" for day in DAYS],
            f"tidemark load --source regular --from {LATE} --to {LATE} --project 10001",
        ),
        (
            "recover hours", [f"{MISSING}/10001"],
            f"tidemark recover --from {MISSING}T10 --to {MISSING}T10 --project 10001 --load",
        ),
        (
            "recover days", [f"{CUT}/10001", f"{EMPTIED}/10001"],
            f"tidemark recover --from {CUT} --to {EMPTIED} --project 10001 --load",
        ),
    ]  # fmt: skip
    assert not vendor.asked

    shown = incident.tidemark("status", *SPAN)
    assert "2026-02-03 refined/events golden: 10001: rows 51 published, 60 golden (-9, 15.00%)" in shown.stdout
    wrong = {(one.table, one.day): one.value for one in read_health(p.ledger, p.settings, LATER).mismatches}
    assert wrong[REFINED, CUT] == 1

    listed = incident.tidemark("reconcile", "--keys", str(incident.keys()), "--table", REFINED, *SPAN, "--samples", "3")
    assert listed.returncode == 1, listed.stderr
    assert "203 same, 0 only here, 37 only there, 0 different" in listed.stdout
    assert f"only there {CUT}/10001 e-{CUT}-48" in listed.stdout
    assert "and 34 more keys only there" in listed.stdout

    repaired = incident.tidemark("reconcile", *SPAN, "--repair")
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert "16 golden totals of 4 days and projects (2026-02-02 to 2026-02-05): all agree" in repaired.stdout
    closed = [line for line in repaired.stderr.splitlines() if line.startswith("looked again: ")]
    assert closed == [f"looked again: {count} days closed" for count in ("1 of 4", "1 of 3", "2 of 2")]
    assert {asked.hours[0].day for asked in vendor.asked} == {CUT, EMPTIED, MISSING}
    asked, history = len(vendor.asked), p.history()
    again = incident.tidemark("reconcile", *SPAN, "--repair")
    assert (again.returncode, len(vendor.asked), p.history()) == (0, asked, history)
    keys = incident.found("--keys", str(incident.keys()), *SPAN)
    assert (keys["is_equal"], keys["totals"]["same"]) == (True, 240)
    assert not [one for one in read_health(p.ledger, p.settings, LATER).mismatches if one.value]
    last = {(table, day): kind for table, day, kind in _told_of_golden(p)}
    assert {day for table, day in last if table == REFINED} == set(DAYS)
    assert set(last.values()) == {NoticeKind.GOLDEN_AGREEMENT}, "and that it is over"
    assert "golden" not in incident.tidemark("status", *SPAN).stdout

    _another_table_a_query_and_what_nobody_can_repair(incident)


def _told_of_golden(p: Any) -> list[tuple[str, date, NoticeKind]]:
    kinds = (NoticeKind.GOLDEN_MISMATCH, NoticeKind.GOLDEN_AGREEMENT)
    notices = p.ledger.outbox.recorded_since(datetime(2020, 1, 1, tzinfo=UTC))
    return [(one.table, one.key.event_date, one.kind) for one in notices if one.kind in kinds]


def _another_table_a_query_and_what_nobody_can_repair(incident: Incident) -> None:
    """Recovered rows beside the published ones; a database that says otherwise."""
    vendor = incident.vendor
    against = incident.found("--against", "backfill", *SPAN)
    # Two whole days and one hour were requested, and all of their rows are published.
    assert against["totals"] == {**dict.fromkeys(STATES, 0), "same": 128, "only here": 112}

    # The outside system counts an event that never was, of a day whose every hour was recovered.
    database = incident.home / "totals.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (d TEXT, p TEXT, m TEXT, v REAL)")
        rows = [(str(day), PROJECT, "purchases", 6.0) for day in DAYS]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [*rows, (str(CUT), PROJECT, "active_users", 61.0)])
        connection.commit()
    query = {
        "TIDEMARK_GOLDEN_URL": f"sqlite:///{database}",
        "TIDEMARK_GOLDEN_QUERY": "SELECT d AS day, p AS project, m AS measure, v AS value FROM t "
        "WHERE d BETWEEN :first_day AND :last_day",
    }
    asked = len(vendor.asked)
    failed = incident.tidemark("reconcile", *SPAN, "--repair", **query)
    assert failed.returncode == 1
    assert "active_users 60 published, 61 golden (-1, 1.64%) [row 5 of the golden query]" in failed.stdout
    assert "decide (for an operator), 1 day of 10001: all that landing and the vendor have" in failed.stdout
    assert len(vendor.asked) == asked
    tolerant = incident.tidemark("reconcile", *SPAN, **query, TIDEMARK_GOLDEN_ABSOLUTE_TOLERANCE="1")
    assert tolerant.returncode == 0, tolerant.stdout
