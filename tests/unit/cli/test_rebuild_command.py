"""`tidemark rebuild` on the shell: lists, reports, open answers, bad usage; no Spark."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, SliceDifference
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from resources.ledger.store import Ledger
from tests.scenarios.test_shell import InThisProcess
from tests.support.builders import PROJECT

FIRST, LAST = date(2026, 2, 2), date(2026, 2, 5)
REFINED, REVENUE = "refined/events", "aggregates/daily_revenue"
DAYS = ("--from", str(FIRST), "--to", str(LAST))


@pytest.fixture
def shell(tmp_path: Path) -> InThisProcess:
    found = InThisProcess(tmp_path)
    found.environment["TIDEMARK_CATALOG_URL"] = f"sqlite:///{tmp_path}/catalog.db"
    return found


def a_slice(table: str, shift: int, verdict: Verdict = Verdict.PUBLISHED, **more: object) -> SliceRecord:
    key = Slice(FIRST + timedelta(days=shift), PROJECT)
    return SliceRecord(table, key, verdict, digest=Digest(4, 1, shift), **more)  # type: ignore[arg-type]


def a_report(shell: InThisProcess, state: RebuildState) -> None:
    """A day that changes, one that stays, one that is refused, and one that depends on it."""
    asked = RebuildRecord(
        0, (REFINED, REVENUE), FIRST, LAST, (PROJECT,), "net [bold]of[/] refunds", "ann", RebuildState.BUILDING, "run"
    )
    difference = SliceDifference(
        (5, 4), {"revenue": (12.5, 10.0), "tax": (None, 1.0)}, KeyChange(2, {"code": 1}, {"code": 2}, {"code": 1})
    )
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
    assert (
        "refined/events: 0 slices change, 0 stay as they are, 1 are left out, 3 hold nothing or are not built yet"
        in lines
    )
    assert (
        "aggregates/daily_revenue: 1 slices change, 1 stay as they are, 1 are left out, 1 hold nothing or are not built yet"
        in lines
    )
    left_out = [line for line in lines if line.startswith("left out: ")]
    assert left_out == [
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
