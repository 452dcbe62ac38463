"""`tidemark replay` says what cannot be asked before it starts anything: one sentence with its cure, exit 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline_assets.cli.app import app

DAY, REFINED = "2026-02-02", "refined/events"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("raw/regular_events", DAY, "--as-published"),
            "holds what was delivered, so there is nothing to compute again",
        ),
        (("refined/nothing", DAY, "--current"), "is not a derived table"),
        ((REFINED, DAY, "--current"), "a publication of project 10001 is not on record"),
        ((REFINED, DAY, "--current", "--run", "abc"), "a publication by run abc of project 10001 is not on record"),
        ((REFINED, DAY, "--current", "--publication", "9"), "publication 9 of project 10001 is not on record"),
        ((REFINED, DAY, "--current", "--project", "5"), "is not among the configured projects"),
        ((REFINED, "soon", "--current"), "is not a day"),
        ((REFINED, DAY), "needs one of --as-published and --current"),
        ((REFINED, DAY, "--as-published", "--current"), "needs one of --as-published and --current"),
        ((REFINED, DAY, "--current", "--run", "a", "--publication", "1"), "takes one of --publication and --run"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    environment = {
        "TIDEMARK_CATALOG_URL": f"sqlite:///{tmp_path}/catalog.db",
        "TIDEMARK_PROJECTS": "10001",
        "DAGSTER_HOME": str(tmp_path),
    }
    done = CliRunner().invoke(app, ("replay", *words), env=environment)
    assert done.exit_code == 2, done.output
    assert said in done.output.replace("\n", " ")
    assert "fix: " in done.output
