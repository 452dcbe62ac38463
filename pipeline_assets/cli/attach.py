"""`tidemark attach`: tables whose catalog is lost, shown and registered in an empty one.

Contains: the command and how it shows what it found.
Add here: another look at what lies in the warehouse.
Does not contain: finding and registering (resources/iceberg/attach.py).
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
from pipeline_assets.tables.registry import ALL_TABLES
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
    """Add the command."""
    app.command(rich_help_panel=Panel.OPERATE)(attach)


def _attach(is_applied: bool, verbose: bool) -> int:
    from resources.iceberg.attach import attach as register_all  # noqa: PLC0415 - `status` starts without Spark
    from resources.iceberg.attach import attachable  # noqa: PLC0415 - `status` starts without Spark
    from resources.spark.session import configure_catalog, spark_resource  # noqa: PLC0415 - `status` starts without Spark

    settings = load_settings()
    with terminal(verbose=verbose), lakehouse_failures("tables"):
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        found = attachable(session, settings, ALL_TABLES)
        done = register_all(session, settings, found) if is_applied else []
    _print(page(), found, done, is_applied=is_applied)
    return EXIT_OK


def _print(console: Console, found: Sequence[Attachable], done: Sequence[Attachable], *, is_applied: bool) -> None:
    shown = RichTable("table", "written", "snapshot", "rows", "", box=None, pad_edge=False)
    # A path is there to be copied: whole, and last.
    shown.add_column("newest metadata file", overflow="fold")
    for one in found:
        if one.metadata_file is None:
            shown.add_row(one.table.key, "", "", "", "nothing there", "the next load creates it")
            continue
        state = "known already" if one.is_attached else "attached" if one in done else "to attach"
        written = f"{one.updated_at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(one.table.key, written, str(one.snapshot_id), f"{one.rows:,}", state, one.metadata_file)
    console.print(shown, soft_wrap=True)
    for one in found:
        if one.left_out:
            said = f"{one.left_out} newer files are left out: they lie ahead of this machine's clock, see docs/operations.md"
            console.print(f"{one.table.key}: {said}", soft_wrap=True)
    waiting = sum(1 for one in found if one.metadata_file is not None and not one.is_attached)
    if is_applied:
        console.print(f"{len(done)} tables attached; go on with tidemark load")
    elif waiting:
        console.print(f"{waiting} tables can be attached: tidemark attach --apply")
    else:
        console.print("the catalog knows all of them: nothing to attach")
