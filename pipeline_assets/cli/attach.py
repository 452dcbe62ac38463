"""`tidemark attach`: show tables whose catalog or ledger is lost, and attach them to another one."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import EXIT_OK, VerboseOption
from pipeline_assets.cli.terminal import page, plainly, terminal
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.masking import masked
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Attachable, Mark, attachable, read_mark, taken_from
from resources.iceberg.lake_identity import attach as register_all


def attach(
    apply: Annotated[
        bool, typer.Option("--apply", help="Register what is shown: this catalog takes the lake.")
    ] = False,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Measure the tables for this ledger: it takes the place of the lake's own.")
    ] = False,
    take: Annotated[
        str | None, typer.Option("--take", metavar="NAME", help="The name of the catalog that owns the lake until now.")
    ] = None,
    verbose: VerboseOption = False,
) -> int:
    """Show the newest state of every table in the warehouse, and whose lake it is; take it for a lost catalog, or a lost ledger.

    With --apply this catalog owns the lake from then on, and the former one is refused; the former one takes it back in the same
    way. Loads go on afterwards. Exits 0 when done, 1 when not all of it could be, 2 on bad usage.
    """
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - `status` starts without Dagster

    from pipeline_assets.load.runtime import Runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.operations.attach_ledger import UNKNOWN, attach_ledger  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.orchestration.runtime import production_ledger  # noqa: PLC0415 - `status` starts without Spark
    from resources.iceberg.lakehouse import Lakehouse  # noqa: PLC0415 - `status` starts without Spark
    from resources.iceberg.metadata import JavaTables  # noqa: PLC0415 - `status` starts without Spark
    from resources.landing.store import LandingStore  # noqa: PLC0415 - `status` starts without Spark
    from resources.spark.session import configure_catalog, spark_resource  # noqa: PLC0415 - `status` starts without Spark

    settings, out = load_settings(), page()
    with terminal(verbose=verbose) as console, lakehouse_failures("tables"):
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        tables = JavaTables(session, settings.catalog_name)
        # A ledger alone is attached whatever a killed publish left beside the tables.
        candidates = [] if ledger and not apply else attachable(tables, settings, EVERY_TABLE)
        mark, taken = read_mark(settings), taken_from(tables, settings)
        _print_owner(out, mark, candidates, is_ours=taken is None)
        if mark is not None and (ledger or (apply and taken is not None)):
            _require_meant(mark, take)
        done = register_all(tables, settings, candidates) if apply else []
        if candidates:
            _print(out, candidates, done, is_applied=apply, is_ours=taken is None)
        if ledger:
            with closing(production_ledger(settings)) as own_ledger:
                landing = LandingStore.from_settings(settings, S3Resource())
                lakehouse = Lakehouse(session, settings.catalog_name)
                attach_ledger(Runtime(lakehouse, own_ledger, landing, settings, plainly(console)), str(uuid.uuid4()))
            own = f"{masked(settings.ledger_database_url)} is the ledger of this lake. It does not know:"
            for line in (own, *(f"  - {unknown}" for unknown in UNKNOWN)):
                out.print(line, soft_wrap=True)
    return EXIT_OK


def _print_owner(console: Console, mark: Mark | None, candidates: Sequence[Attachable], *, is_ours: bool) -> None:
    if mark is None:
        console.print("the warehouse has no mark: nobody is known to own this lake")
        return
    last = max((one.updated_at for one in candidates if one.updated_at is not None), default=None)
    committed = "" if last is None else f", last commit {last:%Y-%m-%d %H:%M:%S}"
    also = ", which is this one" if is_ours else ""
    console.print(
        f"the lake is of {mark.owner}{also}: marked {(mark.made_at or 'long ago')[:19]}{committed}", soft_wrap=True
    )
    console.print(f"its ledger is {mark.ledger_url or 'not on record'}", soft_wrap=True)


def _require_meant(mark: Mark, take: str | None) -> None:
    """Raise UsageError unless the operator names the catalog whose lake or ledger is replaced."""
    name = mark.catalog or "unknown"
    if take is None and sys.stdin.isatty():
        take = typer.prompt(f"Who uses it is refused from then on. Type {name} to go on", err=True)
    if take != name:
        raise UsageError(
            "--take",
            f"is {'not given' if take is None else take}, and the lake is of {mark.owner}; nothing was touched",
            f"Check that what is replaced is lost, and not only mistyped here; then add --take {name}",
        )


def _print(
    console: Console, candidates: Sequence[Attachable], done: Sequence[Attachable], *, is_applied: bool, is_ours: bool
) -> None:
    shown = RichTable("table", "written", "snapshot", "rows", "", box=None, pad_edge=False)
    # The path comes last and is never cut, so that it can be copied.
    shown.add_column("newest metadata file", overflow="fold")
    for candidate in candidates:
        if candidate.metadata_file is None:
            shown.add_row(candidate.table.key, "", "", "", "nothing there", "the next load creates it")
            continue
        behind = "changed since" if candidate.known_at is not None else "to attach"
        state = "known already" if candidate.is_attached else "attached" if candidate in done else behind
        figures = (f"{candidate.updated_at:%Y-%m-%d %H:%M:%S}", str(candidate.snapshot_id), f"{candidate.rows:,}")
        shown.add_row(candidate.table.key, *figures, state, candidate.metadata_file)
    console.print(shown, soft_wrap=True)
    for candidate in candidates:
        if candidate.left_out:
            reason = "ahead of this machine's clock, or of a commit that failed, see docs/operations.md"
            note = f"{candidate.left_out} newer files are left out: {reason}"
            console.print(f"{candidate.table.key}: {note}", soft_wrap=True)
    waiting = sum(1 for candidate in candidates if candidate.metadata_file is not None and not candidate.is_attached)
    if is_applied:
        console.print(f"{len(done)} tables attached; go on with tidemark load")
    elif waiting or not is_ours:
        console.print(f"{waiting} tables can be attached, and the lake is then this catalog's: tidemark attach --apply")
    else:
        console.print("the catalog knows all of them: nothing to attach")
