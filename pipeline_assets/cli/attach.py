"""`tidemark attach`: show tables whose catalog is lost, and register them in an empty one.

Contains: the command and its output.
Add here: another view of what is in the warehouse.
Does not contain: finding and registering tables (resources/iceberg/attach.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import EXIT_OK, Panel, VerboseOption, run
from pipeline_assets.cli.terminal import page, terminal
from pipeline_assets.config import load_settings
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.attach import Attachable
from resources.iceberg.errors import lakehouse_failures


def attach(
    apply: Annotated[bool, typer.Option("--apply", help="Register what is shown.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Show the newest state of every table in the warehouse; with --apply register them in a catalog that knows none of them.

    For a catalog that is lost: loads go on afterwards. Exits 0 when done, 1 when not all of it could be, 2 on bad usage.
    """
    run(lambda: _attach(apply, verbose), verbose)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(rich_help_panel=Panel.OPERATE)(attach)


def _attach(is_applied: bool, verbose: bool) -> int:
    from resources.iceberg.attach import attach as register_all  # noqa: PLC0415 - `status` starts without Spark
    from resources.iceberg.attach import attachable  # noqa: PLC0415 - `status` starts without Spark
    from resources.spark.session import configure_catalog, spark_resource  # noqa: PLC0415 - `status` starts without Spark

    settings = load_settings()
    with terminal(verbose=verbose), lakehouse_failures("tables"):
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        candidates = attachable(session, settings, EVERY_TABLE)
        done = register_all(session, settings, candidates) if is_applied else []
    _print(page(), candidates, done, is_applied=is_applied)
    return EXIT_OK


def _print(console: Console, candidates: Sequence[Attachable], done: Sequence[Attachable], *, is_applied: bool) -> None:
    shown = RichTable("table", "written", "snapshot", "rows", "", box=None, pad_edge=False)
    # The path comes last and is never cut, so that it can be copied.
    shown.add_column("newest metadata file", overflow="fold")
    for candidate in candidates:
        if candidate.metadata_file is None:
            shown.add_row(candidate.table.key, "", "", "", "nothing there", "the next load creates it")
            continue
        state = "known already" if candidate.is_attached else "attached" if candidate in done else "to attach"
        written = f"{candidate.updated_at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(
            candidate.table.key,
            written,
            str(candidate.snapshot_id),
            f"{candidate.rows:,}",
            state,
            candidate.metadata_file,
        )
    console.print(shown, soft_wrap=True)
    for candidate in candidates:
        if candidate.left_out:
            reason = "ahead of this machine's clock, or of a commit that failed, see docs/operations.md"
            note = f"{candidate.left_out} newer files are left out: {reason}"
            console.print(f"{candidate.table.key}: {note}", soft_wrap=True)
    waiting = sum(1 for candidate in candidates if candidate.metadata_file is not None and not candidate.is_attached)
    if is_applied:
        console.print(f"{len(done)} tables attached; go on with tidemark load")
    elif waiting:
        console.print(f"{waiting} tables can be attached: tidemark attach --apply")
    else:
        console.print("the catalog knows all of them: nothing to attach")
