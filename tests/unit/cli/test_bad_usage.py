"""Bad usage exits 2 before anything starts, with one sentence, its cure and no stack trace."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline_assets.cli import run
from pipeline_assets.cli.run import _require_meant
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState
from resources.iceberg.lake_identity import Mark
from resources.ledger import engine
from resources.ledger.store import Ledger
from tests.scenarios.test_shell import InThisProcess

DAY, REFINED = date(2026, 2, 2), "refined/events"
SPAN = f"--from {DAY} --to {DAY}"
START = f"rebuild start {SPAN} --reason why"
OF_SEVERAL = {"TIDEMARK_PROJECTS": "10001,10002"}

CASES = {
    f"load --source regular --from 2026-02-03 --to {DAY}": "ends before it begins",
    f"load --source regular --from 2025-02-03 --to {DAY}": "calendar",
    f"load --source regular --from soon --to {DAY}": "YYYY-MM-DD",
    f"load --source other {SPAN}": "other",
    f"load --source regular {SPAN} --project 7": "not among",
    f"load --source regular {SPAN} --accept-changes ' '": "reason",
    f"explain i-1 --from 2026-02-03 --to {DAY}": "ends before it begins",
    "explain i-1 --from soon": "YYYY-MM-DD",
    "explain i-1 --project 7": "not among",
    "explain": "ID",
    f"recover --from {DAY}": "names no range",
    f"recover --from {DAY}T7 --to {DAY}": "YYYY-MM-DDTHH",
    f"recover --from 2025-01-01 --to {DAY}": "calendar",
    "recover --refused --project 7": "is not among the configured projects",
    f"replay raw/regular_events {DAY} --as-published": "holds what was delivered, so there is nothing to compute again",
    f"replay refined/nothing {DAY} --current": "is not a derived table",
    f"replay {REFINED} {DAY} --current": "a publication of project 10001 is not on record",
    f"replay {REFINED} {DAY} --current --run abc": "a publication by run abc of project 10001 is not on record",
    f"replay {REFINED} {DAY} --current --publication 9": "publication 9 of project 10001 is not on record",
    f"replay {REFINED} {DAY} --current --project 5": "is not among the configured projects",
    f"replay {REFINED} soon --current": "is not a day",
    f"replay {REFINED} {DAY}": "needs one of --as-published and --current",
    f"replay {REFINED} {DAY} --as-published --current": "needs one of --as-published and --current",
    f"replay {REFINED} {DAY} --current --run a --publication 1": "takes one of --publication and --run",
    f"reconcile --from 2026-02-03 --to {DAY}": "the range ends before it begins",
    "reconcile --from 2025-12-31": "the calendar holds 2026-01-01 to ",
    "reconcile --to 2999-01-01 --repair": "the calendar holds 2026-01-01 to ",
    "reconcile --from soon": "is not a day",
    "reconcile --project 777": "is not among the configured projects",
    f"reconcile --keys a.csv --against backfill {SPAN}": "name two things to compare with",
    "reconcile --table raw/backfill_events": "says whose keys are compared, and there is nothing beside",
    "reconcile --against backfill": "names no range, and would read every event there is",
    f"reconcile --against aggregates/daily_revenue {SPAN}": "is not a table of events",
    f"reconcile --keys /nowhere/keys.csv {SPAN}": "cannot be read: No such file",
    f"rebuild start {SPAN}": "needs --from, --to and --reason",
    f"rebuild start {SPAN} --reason ' '": "needs a reason",
    f"{START} --table raw/regular_events": "raw/regular_events: is not built, so it cannot be rebuilt",
    f"rebuild start --from 2026-02-03 --to {DAY} --reason why": "ends before it begins",
    f"rebuild start --from soon --to {DAY} --reason why": "YYYY-MM-DD",
    f"{START} --project 7": "is not among the configured projects",
    f"rebuild start 3 {SPAN} --reason why": "takes no id",
    f"{START} --table aggregates/event_counts --table {REFINED}": "rebuild 1 is open for these days",
    "rebuild show 99": "rebuild 99: is not on record",
    f"rebuild show 1 --table {REFINED}": "takes the id of a rebuild and no tables or days",
    "rebuild swap": "needs the id of a rebuild",
    "rebuild swap 1 --reason ''": "needs a reason",
    "rebuild undo 99": "rebuild 99: is not on record",
    f"rebuild abandon 1 {SPAN}": "takes the id of a rebuild and no tables or days",
    "rebuild forget 1": "forget",
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InThisProcess:
    """A rebuild of refined/events is open."""
    found = InThisProcess(tmp_path_factory.mktemp("shell"))
    asked = RebuildRecord(0, (REFINED,), DAY, DAY, ("10001",), "why", "ann", RebuildState.BUILDING, "run")
    with closing(Ledger(found.environment["TIDEMARK_CATALOG_URL"])) as ledger:
        ledger.rebuilds.begin(asked)
    return found


@pytest.mark.parametrize(("words", "said"), CASES.items())
def test_it_exits_2_with_a_sentence(shell: InThisProcess, words: str, said: str) -> None:
    done = shell(*shlex.split(words))
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "fix: " in done.stderr or "Usage: " in done.stderr


def test_a_setting_that_nobody_knows_is_named(shell: InThisProcess) -> None:
    assert "TIDEMARK_LANDIN" in shell("status", TIDEMARK_LANDIN="x").stderr


@pytest.mark.parametrize("option", ["--accept-missing", "--accept-changes"])
def test_an_acceptance_names_its_project_where_there_are_several(shell: InThisProcess, option: str) -> None:
    """Outcome: events need a project; snapshots of a dimension belong to none, and need none."""
    done = shell("load", "--source", "backfill", *SPAN.split(), option, "it was lost", **OF_SEVERAL)
    assert (done.returncode, f"{option}: would apply to all projects (10001, 10002)" in done.stderr) == (2, True)
    reasons = {option[2:].replace("-", "_"): "it was lost"}
    run.require_one_meant(run.LoadSource.DIMENSIONS, reasons, (), ("10001", "10002"))
    run.require_one_meant(run.LoadSource.BACKFILL, reasons, ("10001",), ("10001", "10002"))
    run.require_one_meant(run.LoadSource.BACKFILL, reasons, (), ("10001",))


_AWAY = "postgresql://127.0.0.1:1/lake: the ledger is out of reach: refused. Do it again"


@pytest.mark.parametrize(
    ("failure", "tells_of_the_ledger"),
    [("10001/a.json.gz: landing refused: AccessDenied. Check the rights", 1), (_AWAY, 0)],
)
def test_a_ledger_out_of_reach_is_told_once(
    tmp_path: Path, failure: str, tells_of_the_ledger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a run fails for landing, or for the ledger; then the ledger is away. Outcome: one message."""

    def failing(jobs: run.Jobs, *_: Any, **__: Any) -> None:
        jobs.failures.append(failure)

    monkeypatch.setattr(run, "load_in_chunks", failing)
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.0)
    away = {"TIDEMARK_LEDGER_URL": "postgresql://127.0.0.1:1/lake"}
    done = InThisProcess(tmp_path)("load", "--source", "regular", *SPAN.split(), **away)
    assert done.returncode == 1, done.stderr
    assert (done.stdout + done.stderr).count("the ledger is out of reach: connection") == tells_of_the_ledger


MARK = Mark("id", "lake-id", catalog="lake", catalog_url="postgresql://db/catalog", ledger_url="postgresql://db/ledger")


@pytest.mark.parametrize("given", [None, "", "mistyped", "Lake"])
def test_a_lake_is_taken_by_the_name_of_its_owner(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(
        UsageError, match=r"the lake is of catalog lake \(postgresql://db/catalog\); nothing was touched.*--take lake"
    ):
        _require_meant(MARK, given)
    _require_meant(MARK, "lake")


@pytest.mark.parametrize(("typed", "is_taken"), [("lake", True), ("y", False)])
def test_a_terminal_asks_for_the_name(typed: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Callable[..., str] = lambda *_, **__: typed  # noqa: E731 - what somebody types
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", answer)
    if is_taken:
        _require_meant(MARK, None)
    else:
        with pytest.raises(UsageError):
            _require_meant(MARK, None)
