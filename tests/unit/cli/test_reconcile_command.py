"""`tidemark reconcile` on the shell, by the ledger alone; no Spark."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pipeline_assets.cli.reconcile import proposed
from pipeline_assets.cli.terminal import show
from pipeline_assets.domain.golden import rest_of
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.repairs import DayFacts, repairs_of
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.scenarios.test_shell import InThisProcess
from tests.support.builders import PROJECT

DAY = date(2026, 2, 2)
REVENUE = Decimal("12345678901234567.000001")
SPAN = ("--from", str(DAY), "--to", str(DAY))


@pytest.fixture
def shell(tmp_path: Path) -> InThisProcess:
    """A day of 60 events and a revenue that no database number holds."""
    found = InThisProcess(tmp_path)
    figures = {"revenue": float(REVENUE), **rest_of("revenue", REVENUE), "purchases": 6}
    slices = [
        SliceRecord("refined/events", Slice(DAY, PROJECT), Verdict.PUBLISHED, digest=Digest(60, 1, 1)),
        SliceRecord(
            "aggregates/daily_revenue", Slice(DAY, PROJECT), Verdict.PUBLISHED, digest=Digest(1, 1, 1), figures=figures
        ),
    ]
    with closing(Ledger(found.environment["TIDEMARK_CATALOG_URL"])) as ledger:
        ledger.record(Changes(slices=slices), "run")
    return found


def _golden(shell: InThisProcess, *lines: str) -> None:
    folder = shell.landing / "golden"
    folder.mkdir(exist_ok=True)
    (folder / f"{DAY}.csv").write_text("\n".join(["day,project,measure,value", *lines]))


def test_all_agree_to_the_last_digit(shell: InThisProcess) -> None:
    _golden(shell, f"{DAY},{PROJECT},rows,60", f"{DAY},{PROJECT},revenue,{REVENUE}")
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
    console = Console(file=StringIO(), width=200)
    show(console, *proposed(repairs_of(facts)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
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
