"""What `tidemark load` tells when its run failed and the ledger cannot be asked afterwards."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline_assets.cli import run as runs
from pipeline_assets.cli.app import app
from resources.ledger import engine

_AWAY = "postgresql://127.0.0.1:1/lake: the ledger is out of reach: refused. Do it again"


@pytest.mark.parametrize(
    ("failure", "tells_of_the_ledger"),
    [("10001/a.json.gz: landing refused: AccessDenied. Check the rights", 1), (_AWAY, 0)],
)
def test_a_ledger_out_of_reach_is_told_once(
    failure: str, tells_of_the_ledger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a run fails for landing, or for the ledger; then the ledger is away. Outcome: the ledger is told of, once."""

    def failing(*_: Any, **__: Any) -> list[str]:
        return [failure]

    monkeypatch.setattr(runs, "load_in_chunks", failing)
    monkeypatch.setattr(engine, "_FIRST_PAUSE_SECONDS", 0.0)
    settings = {"LEDGER_URL": "postgresql://127.0.0.1:1/lake", "PROJECTS": "10001", "CALENDAR_START": "2026-01-01"}
    for name, value in settings.items():
        monkeypatch.setenv(f"TIDEMARK_{name}", value)
    day = str(date(2026, 2, 2))
    done = CliRunner().invoke(app, ["load", "--source", "regular", "--from", day, "--to", day])
    assert done.exit_code == 1, done.output
    assert done.output.count("the ledger is out of reach: connection") == tells_of_the_ledger
