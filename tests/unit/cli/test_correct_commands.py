"""`tidemark reconcile`, `rebuild` and `release` on the shell, by the ledger alone; no Spark."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline_assets.cli.correct import acceptances_of
from pipeline_assets.cli.reconcile import compared_keys, keys_json, proposed
from pipeline_assets.cli.terminal import show
from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.checks import AcceptanceKind, read_acceptances
from pipeline_assets.domain.golden import rest_of
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, SliceDifference
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.repairs import DayFacts, repairs_of
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.formats.key_list import read_key_list
from pipeline_assets.inspection.key_comparison import KeyComparison, KeyRange, are_rows_counted
from pipeline_assets.operations.decisions import Held
from pipeline_assets.orchestration.assets import KINDS, SHARED
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.transforms.digests import FEWER_HERE, MORE_HERE, ONLY_HERE, ONLY_THERE, SAME, STATES
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.scenarios.test_shell import InThisProcess
from tests.support.builders import PROJECT

DAY = date(2026, 2, 2)
EXACT = Decimal("12345678901234567.000001")
SPAN = ("--from", str(DAY), "--to", str(DAY))


@pytest.fixture
def shell(tmp_path: Path) -> InThisProcess:
    """A day of 60 events and a revenue that no database number holds."""
    found = InThisProcess(tmp_path)
    figures = {"revenue": float(EXACT), **rest_of("revenue", EXACT), "purchases": 6}
    known = (Slice(DAY, PROJECT), Verdict.PUBLISHED)
    slices = [
        SliceRecord("refined/events", *known, digest=Digest(60, 1, 1)),
        SliceRecord("aggregates/daily_revenue", *known, digest=Digest(1, 1, 1), figures=figures),
    ]
    with closing(Ledger(found.environment["TIDEMARK_CATALOG_URL"])) as ledger:
        ledger.record(Changes(slices=slices), "run")
    return found


def _golden(shell: InThisProcess, *lines: str) -> None:
    folder = shell.landing / "golden"
    folder.mkdir(exist_ok=True)
    (folder / f"{DAY}.csv").write_text("\n".join(["day,project,measure,value", *lines]))


def test_all_agree_to_the_last_digit(shell: InThisProcess) -> None:
    _golden(shell, f"{DAY},{PROJECT},rows,60", f"{DAY},{PROJECT},revenue,{EXACT}")
    done = shell("reconcile")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 golden totals of 1 days and projects" in done.stdout
    assert "all agree" in done.stdout
    _golden(shell, f"{DAY},{PROJECT},revenue,12345678901234567.000002")
    off = shell("reconcile", *SPAN)
    assert off.returncode == 1
    assert "12345678901234567.000001 published, 12345678901234567.000002 golden (-0.000001, 0.00%)" in off.stdout
    within = shell("reconcile", *SPAN, TIDEMARK_GOLDEN_ABSOLUTE_TOLERANCE="0.01")
    assert within.returncode == 0, within.stdout


def test_a_good_total_beside_bad_lines_is_compared_and_the_call_still_fails(shell: InThisProcess) -> None:
    _golden(shell, f"{DAY},{PROJECT},rows,60", f"{DAY},{PROJECT},rows,many")
    done = shell("reconcile", *SPAN)
    assert (done.returncode, "golden/2026-02-02.csv line 3: value 'many' is not a number" in done.stdout) == (1, True)
    assert "1 golden totals of 1 days and projects (2026-02-02 to 2026-02-02): all agree" in done.stdout


def test_a_total_that_its_file_no_longer_tells_rightly_still_counts(shell: InThisProcess) -> None:
    _golden(shell, f"{DAY},{PROJECT},rows,61")
    assert shell("reconcile", *SPAN).returncode == 1
    _golden(shell, f"{DAY},{PROJECT},rows,many")
    done = shell("reconcile", *SPAN)
    assert (done.returncode, "rows 60 published, 61 golden (-1, 1.64%)" in done.stdout) == (1, True)
    assert "golden/2026-02-02.csv line 2: value 'many' is not a number" in done.stdout


def test_a_day_that_is_waited_for_is_shown_as_nobodys_task() -> None:
    facts = DayFacts(Slice(DAY, PROJECT), is_lacking=True, open_until=datetime(2026, 2, 5, tzinfo=UTC))
    written = StringIO()
    show(Console(file=written, width=200), *proposed(repairs_of(facts)))
    shown = written.getvalue()
    assert shown.startswith("wait, 1 day of 10001: the day is open until 2026-02-05 00:00 UTC; ")
    assert f"  tidemark reconcile --from {DAY} --to {DAY} --project {PROJECT}\n" in shown


def test_a_query_that_fails_hides_no_file_and_shows_no_password(shell: InThisProcess) -> None:
    _golden(shell, f"{DAY},{PROJECT},rows,60")
    done = shell(
        "reconcile", *SPAN, "--json", TIDEMARK_GOLDEN_URL="postgresql://reader:hush-hush@127.0.0.1:1/d",
        TIDEMARK_GOLDEN_QUERY="SELECT :first_day, :last_day",
    )  # fmt: skip
    assert (done.returncode, '"agreement": "agrees"' in done.stdout) == (1, True)
    assert "the golden query failed" in done.stdout
    assert "hush-hush" not in done.stdout + done.stderr


RANGE = KeyRange(("10001",), DAY, DAY)


def _found(*states: str) -> KeyComparison:
    counts = {("10001", DAY, state): 2 for state in states}
    samples = {state: (f"{DAY}/10001 e-{state}",) for state in states if state != SAME}
    return KeyComparison("refined/events", "keys.csv", RANGE, counts, samples)


def test_equal_are_keys_that_are_the_same_alone() -> None:
    assert _found(SAME).is_good
    assert not KeyComparison("refined/events", "keys.csv", RANGE).is_good
    for state in STATES:
        assert _found(SAME, state).is_good == (state == SAME)


@pytest.mark.parametrize(
    ("state", "is_lacking"), [(ONLY_THERE, True), (FEWER_HERE, True), (ONLY_HERE, False), (MORE_HERE, False)]
)
def test_a_day_lacks_where_a_key_does_or_has_too_few_rows(state: str, is_lacking: bool) -> None:
    assert _found(SAME, state).lacking == {Slice(DAY, "10001"): is_lacking}


def test_each_state_is_counted_and_sampled_for_people_and_machines() -> None:
    found = _found(SAME, FEWER_HERE, MORE_HERE)
    told = keys_json(found)
    assert told["totals"] == {**dict.fromkeys(STATES, 0), "same": 2, "fewer here": 2, "more here": 2}
    assert not told["is_equal"]
    written = StringIO()
    show(Console(file=written, width=200), *compared_keys(found))
    shown = written.getvalue()
    assert f"fewer here {DAY}/10001 e-fewer here\nand 1 more keys fewer here" in shown
    assert "2 same, 0 only here, 0 only there, 0 different, 2 fewer here, 2 more here" in shown


def test_rows_are_counted_where_a_row_is_an_event_and_no_sender_is_named() -> None:
    alone, sent = (read_key_list("keys.csv", [header]) for header in ("insert_id,day,app\n", "insert_id,device_id\n"))
    assert are_rows_counted(REFINED_EVENTS, alone)
    assert not are_rows_counted(REFINED_EVENTS, sent)
    assert not are_rows_counted(RAW_TABLES[Source.BACKFILL], alone)


FIRST, LAST = date(2026, 2, 2), date(2026, 2, 5)
REFINED, REVENUE = "refined/events", "aggregates/daily_revenue"
DAYS = ("--from", str(FIRST), "--to", str(LAST))


def a_slice(table: str, shift: int, verdict: Verdict = Verdict.PUBLISHED, **more: Any) -> SliceRecord:
    key = Slice(FIRST + timedelta(days=shift), PROJECT)
    return SliceRecord(table, key, verdict, digest=Digest(4, 1, shift), **more)


def a_report(shell: InThisProcess, state: RebuildState) -> None:
    """A day that changes, one that stays, one that is refused, and one that depends on it."""
    why = ("net [bold]of[/] refunds", "ann")
    asked = RebuildRecord(0, (REFINED, REVENUE), FIRST, LAST, (PROJECT,), *why, RebuildState.BUILDING, "run")
    keys = KeyChange(2, {"code": 1}, {"code": 2}, {"code": 1})
    difference = SliceDifference((5, 4), {"revenue": (12.5, 10.0), "tax": (None, 1.0)}, keys)
    refused = {"verdict": Verdict.REFUSED, "reason": "unique_event_key: 2 keys twice", "hint": "Look at them"}
    with closing(Ledger(shell.environment["TIDEMARK_CATALOG_URL"])) as ledger:
        begun = ledger.rebuilds.begin(asked)
        same = a_slice(REVENUE, 1)
        slices = [
            RebuiltSlice(a_slice(REVENUE, 0), Digest(5, 9, 9), difference),
            RebuiltSlice(same, same.digest, SliceDifference((4, 4), {"revenue": (2.0, 2.0)})),
            RebuiltSlice(a_slice(REFINED, 2, **refused), Digest(5, 9, 9), SliceDifference((5, 6))),
            RebuiltSlice(a_slice(REVENUE, 2), Digest(5, 9, 9), difference, (f"{REFINED} {FIRST}/{PROJECT}",)),
        ]
        ledger.rebuilds.record(begun, slices)
        ledger.rebuilds.change(begun, state=state)


def test_a_report_tells_what_changes_what_stays_and_why_a_day_is_left_out(shell: InThisProcess) -> None:
    a_report(shell, RebuildState.READY)

    shown = shell("rebuild", "show", "1")

    assert shown.returncode == 0, shown.stderr
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "rebuild 1 of refined/events, aggregates/daily_revenue, 2026-02-02 to 2026-02-05: ready"
    assert lines[1].startswith("reason: net [bold]of[/] refunds (ann, ")
    assert "2026-02-02 aggregates/daily_revenue 10001 5 -> 4 revenue 12.5 -> 10, tax not known -> 1 1 2 1" in lines
    assert not any(line.startswith("2026-02-03") for line in lines)
    for table, (change, stay, rest) in {REFINED: (0, 0, 3), REVENUE: (1, 1, 1)}.items():
        counts = (
            f"{change} slices change, {stay} stay as they are, 1 are left out, {rest} hold nothing or are not built yet"
        )
        assert f"{table}: {counts}" in lines
    assert [line for line in lines if line.startswith("left out: ")] == [
        "left out: 2026-02-04/10001 refined/events: unique_event_key: 2 keys twice",
        f"left out: 2026-02-04/10001 {REVENUE}: cannot go without refined/events 2026-02-02/10001, left out as well",
    ]
    assert "fix: Look at them" in lines
    assert lines[-1] == "answer it: tidemark rebuild swap 1, or tidemark rebuild abandon 1"

    told = json.loads(shell("rebuild", "show", "1", "--json").stdout)
    assert (told["id"], told["state"], told["reason"]) == (1, "ready", "net [bold]of[/] refunds")
    by_place = {(one["table"], one["day"]): one for one in told["slices"]}
    assert len(by_place) == 4
    assert by_place[REVENUE, "2026-02-02"]["difference"] == {
        "rows": [5, 4], "measures": {"revenue": [12.5, 10.0], "tax": [None, 1.0]},
        "keys": {"kept": 2, "only_rebuilt": {"code": 1}, "only_published": {"code": 2}, "different": {"code": 1}},
    }  # fmt: skip
    assert [one["goes"] for one in by_place.values()].count(True) == 2

    listed = " ".join(shell("rebuild", "show").stdout.split())
    assert "1 ready refined/events, aggregates/daily_revenue 2026-02-02 to 2026-02-05" in listed


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RebuildState.BUILDING, "building; go on with it: tidemark rebuild start, with the same tables and days"),
        (RebuildState.READY, "ready; answer it: tidemark rebuild swap 1, or tidemark rebuild abandon 1"),
        (
            RebuildState.SWAPPING,
            "swapping; complete it: tidemark rebuild swap 1; or take it back: tidemark rebuild undo 1",
        ),
        (RebuildState.SWAPPED, None),
    ],
)
def test_status_tells_of_an_open_rebuild(shell: InThisProcess, state: RebuildState, said: str | None) -> None:
    a_report(shell, state)
    done = shell("status", *DAYS)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rebuild")]
    title = "rebuild 1 of refined/events, aggregates/daily_revenue, 2026-02-02 to 2026-02-05"
    assert lines == ([f"{title}: {said}"] if said else [])
    assert json.loads(shell("status", *DAYS, "--json").stdout)


PROJECTS = ("10001", "10002")
AGGREGATE = "aggregates/active_item_events"


def _accepted(table: str, project: str, loaded: tuple[str, ...]) -> set[tuple[str, Slice]]:
    held = [Held(table, Slice(DAY, project), "was wrong", EMPTY, EMPTY, "is built again")]
    config = {AcceptanceKind.CHANGE: acceptances_of(held, PROJECTS, "it was right")}
    return set(read_acceptances(config, KINDS, loaded, SHARED))


def test_a_released_snapshot_accepts_its_month_and_the_day_of_every_project() -> None:
    assert _accepted(ITEM.snapshot.key, ALL_PROJECTS, PROJECTS) == {
        (ITEM.snapshot.key, Slice(DAY, ALL_PROJECTS)),
        (ITEM.validity.key, Slice(date(2026, 2, 1), ALL_PROJECTS)),
        *((AGGREGATE, Slice(DAY, project)) for project in PROJECTS),
    }


def test_a_released_day_of_events_accepts_changes_of_its_own_project_alone() -> None:
    accepted = _accepted("refined/events", "10001", ("10001",))
    assert (AGGREGATE, Slice(DAY, "10001")) in accepted
    assert {key for _, key in accepted} == {Slice(DAY, "10001")}
