"""`tidemark report`: write the health page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pipeline_assets.cli.command import EXIT_OK, Panel, VerboseOption, run
from pipeline_assets.cli.terminal import page
from pipeline_assets.config import load_settings
from resources.ledger.store import own_ledger


def report(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write, an HTML file.")],
    verbose: VerboseOption = False,
) -> None:
    """Write the health of everything on one page: days, figures, revisions, and what waits for a person.

    Reads the ledger alone and writes nothing else. Exits 0 when the page is written, 1 when the ledger cannot be read,
    2 on bad usage.
    """
    run(lambda: _report(out), verbose)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(rich_help_panel=Panel.INSPECT)(report)


def _report(out: Path) -> int:
    from pipeline_assets.inspection.health.report import read_health  # noqa: PLC0415 - other commands start without it
    from pipeline_assets.orchestration.health_page.page import write_page  # noqa: PLC0415 - others start without charts

    settings = load_settings()
    with own_ledger(settings) as ledger:
        health = read_health(ledger, settings, datetime.now(UTC))
    console = page()
    console.print(f"page: {write_page(health, out)}")
    waiting = health.waiting
    console.print(f"{waiting} questions wait for a person" if waiting else "nothing waits for a person")
    return EXIT_OK
