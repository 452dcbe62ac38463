"""Cuts: consistent states of all tables for readers, chosen by time or run, and the code lines that read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from enum import StrEnum

from pipeline_assets.domain.errors import LakehouseError, UsageError
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.places import is_rest_catalog
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.iceberg.catalog_at_rest import CatalogAtRest, TableAtRest
from resources.ledger.history import Cut
from resources.ledger.store import Ledger


class Engine(StrEnum):
    """The engine that reads."""

    SPARK = "spark"
    PYICEBERG = "pyiceberg"
    DUCKDB = "duckdb"
    TRINO = "trino"


def newest_cut(ledger: Ledger) -> Cut:
    """The current state of all tables; raises LakehouseError before the first publish."""
    cut = ledger.cuts.newest()
    if cut is None:
        hint = "Load days: tidemark load --help; a load keeps which snapshots belong together"
        raise LakehouseError("snapshots", "no publish is on record yet", hint)
    return cut


def cut_at(ledger: Ledger, moment: datetime) -> Cut:
    """The state that readers saw at an aware time; raises UsageError for a time before the first publish."""
    cut = ledger.cuts.at(moment)
    if cut is not None:
        return cut
    first = ledger.cuts.first() or newest_cut(ledger)
    reason = "lies before the first publish whose snapshots are on record"
    hint = f"Name a time after {first.published_at[:19]} UTC"
    raise UsageError(f"--at {moment.isoformat(timespec='seconds')}", reason, hint)


def cut_of_run(ledger: Ledger, text: str) -> Cut:
    """The state after the last publish of a run; `text`: the run's id, or its beginning. Raises UsageError."""
    runs = ledger.cuts.runs(text) if text else []
    if text in runs:
        runs = [text]
    if not runs:
        raise UsageError(
            f"--run {text}", "no run of this id is on record", "`tidemark history TABLE --json` names the runs"
        )
    if len(runs) > 1:
        raise UsageError(f"--run {text}", f"{len(runs)} runs begin so: {', '.join(runs[:3])}", "Name one of them whole")
    cut = ledger.cuts.of_run(runs[0])
    if cut is None:
        reason = "published nothing, or did before snapshots that belong together were on record"
        raise UsageError(f"--run {runs[0]}", reason, "--at TIME gives what readers saw at a time")
    return cut


def tables_at_rest(settings: Settings, cut: Cut) -> dict[str, TableAtRest]:
    """The cut's tables that the catalog knows, as they are now; raises LakehouseError for an expired snapshot."""
    by_key = {table.key: table for table in EVERY_TABLE}
    found: dict[str, TableAtRest] = {}
    with closing(CatalogAtRest(settings)) as catalog:
        for name, snapshot_id in cut.snapshots.items():
            # A user's own table may be out of the configuration.
            resting = catalog.table(by_key[name]) if name in by_key else None
            if resting is None:
                continue
            if snapshot_id not in resting.snapshot_ids:
                raise _expired(settings, cut, name, resting)
            found[name] = resting
    return found


def _expired(settings: Settings, cut: Cut, name: str, resting: TableAtRest) -> LakehouseError:
    oldest = f"; its oldest is of {resting.oldest_at:%Y-%m-%d %H:%M} UTC" if resting.oldest_at else ""
    reason = (
        f"the snapshot {cut.snapshots[name]} that was published by {cut.published_at[:16]} UTC has expired"
        f" (kept for {settings.rollback_days} days{oldest})"
    )
    return LakehouseError(name, reason, "Name a later time, or build the days again from what the tables hold now")


def reading_lines(
    engine: Engine, settings: Settings, snapshots: Mapping[str, int], resting: Mapping[str, TableAtRest]
) -> list[str]:
    """Code lines that read these tables (table -> snapshot), without secrets; DuckDB needs tables with a known metadata file."""
    names = {key.replace("/", "."): number for key, number in snapshots.items()}
    catalog = settings.catalog_name
    if engine is Engine.SPARK:
        return [f'spark.sql("SELECT * FROM {catalog}.{name} VERSION AS OF {number}")' for name, number in names.items()]
    if engine is Engine.TRINO:
        return [f"SELECT * FROM {catalog}.{name} FOR VERSION AS OF {number};" for name, number in names.items()]
    if engine is Engine.PYICEBERG:
        kind, opens = ("rest", "RestCatalog") if is_rest_catalog(settings.catalog_url) else ("sql", "SqlCatalog")
        opened = f'catalog = {opens}("{catalog}", uri="{masked(settings.catalog_url)}")'
        rows = [f'catalog.load_table("{name}").scan(snapshot_id={number})' for name, number in names.items()]
        return [f"from pyiceberg.catalog.{kind} import {opens}", opened, *(f"{row}.to_arrow()" for row in rows)]
    places = {key: re.sub(r"^file:(//)?", "", table.location).replace("'", "''") for key, table in resting.items()}
    scans = [
        f"SELECT * FROM iceberg_scan('{places[key]}', snapshot_from_id = {number});"
        for key, number in snapshots.items()
        if key in places
    ]
    return ["INSTALL iceberg; LOAD iceberg;", *scans]
