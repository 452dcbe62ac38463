"""`tidemark attach`: show tables whose catalog or ledger is lost, and attach them to another one."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing

import typer
from dagster_aws.s3 import S3Resource

from pipeline_assets.cli.command import EXIT_OK
from pipeline_assets.cli.terminal import page, plainly, show, terminal
from pipeline_assets.config import load_settings
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import Attach
from pipeline_assets.load.ledger_sync import UNKNOWN, attach_ledger
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.orchestration.runtime import production_ledger
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg import lake_identity as catalog
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Mark, read_mark
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.metadata import JavaTables
from resources.landing.store import LandingStore
from resources.spark.session import configure_catalog, spark_resource


def attach(request: Attach) -> int:
    """Print whose lake it is and what can be attached; attach it if that is asked."""
    settings = load_settings()
    with terminal() as console, lakehouse_failures("tables"):
        session = spark_resource(settings).spark_session
        configure_catalog(session, settings)
        tables = JavaTables(session, settings.catalog_name)
        # A ledger alone is attached whatever a killed publish left beside the tables.
        is_of_ledger = request.ledger and not request.apply
        candidates = [] if is_of_ledger else catalog.attachable(tables, settings, EVERY_TABLE)
        mark, taken = read_mark(settings), catalog.taken_from(tables, settings)
        show(page(), *_owner(mark, candidates, is_ours=taken is None))
        if mark is not None and (request.ledger or (request.apply and taken is not None)):
            _require_meant(mark, request.take)
        done = catalog.attach(tables, settings, candidates) if request.apply else []
        if candidates:
            show(page(), *_attached(candidates, done, is_applied=request.apply, is_ours=taken is None))
        if request.ledger:
            with closing(production_ledger(settings)) as ledger:
                landing = LandingStore.from_settings(settings, S3Resource())
                lakehouse = Lakehouse(session, settings.catalog_name)
                attach_ledger(Runtime(lakehouse, ledger, landing, settings, plainly(console)), str(uuid.uuid4()))
            own = f"{masked(settings.ledger_database_url)} is the ledger of this lake. It does not know:"
            show(page(), own, *(f"  - {unknown}" for unknown in UNKNOWN))
    return EXIT_OK


def _owner(mark: Mark | None, candidates: Sequence[catalog.Attachable], *, is_ours: bool) -> Iterator[str]:
    if mark is None:
        yield "the warehouse has no mark: nobody is known to own this lake"
        return
    last = max((one.updated_at for one in candidates if one.updated_at is not None), default=None)
    committed = "" if last is None else f", last commit {last:%Y-%m-%d %H:%M:%S}"
    also = ", which is this one" if is_ours else ""
    yield f"the lake is of {mark.owner}{also}: marked {(mark.made_at or 'long ago')[:19]}{committed}"
    yield f"its ledger is {mark.ledger_url or 'not on record'}"


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


def _attached(
    candidates: Sequence[catalog.Attachable],
    done: Sequence[catalog.Attachable],
    *,
    is_applied: bool,
    is_ours: bool,
) -> Iterator[Table | str]:
    rows: list[tuple[object, ...]] = []
    there = [one for one in candidates if one.metadata_file is not None]
    for one in candidates:
        if one.metadata_file is None:
            rows.append((one.table.key, "", "", None, "nothing there: the next load creates it"))
            continue
        behind = "changed since" if one.known_at is not None else "to attach"
        state = "known already" if one.is_attached else "attached" if one in done else behind
        rows.append((one.table.key, f"{one.updated_at:%Y-%m-%d %H:%M:%S}", str(one.snapshot_id), one.rows, state))
    yield Table(("table", "written", "snapshot", "rows", ""), rows)
    # A line of its own, which is never cut, so that the path can be copied.
    yield from (f"{one.table.key}: {one.metadata_file}" for one in there)
    for one in candidates:
        if one.left_out:
            reason = "ahead of this machine's clock, or of a commit that failed, see docs/operations.md"
            yield f"{one.table.key}: {one.left_out} newer files are left out: {reason}"
    waiting = sum(not one.is_attached for one in there)
    if is_applied:
        yield f"{len(done)} tables attached; go on with tidemark load"
    elif waiting or not is_ours:
        yield f"{waiting} tables can be attached, and the lake is then this catalog's: tidemark attach --apply"
    else:
        yield "the catalog knows all of them: nothing to attach"
