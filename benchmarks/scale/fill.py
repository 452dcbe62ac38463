"""Fill a real ledger with the rows that loads would have written, without any data."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import date
from itertools import chain, islice
from typing import Any

import sqlalchemy as sa

from benchmarks.scale.rows import (
    PROJECT,
    TABLES,
    batch_days,
    batch_of_day,
    cuts,
    deliveries_of,
    notice,
    processes,
    publication_of,
    runs,
    slice_of,
)
from benchmarks.scale.sizes import Size
from pipeline_assets.domain.settings import Settings
from resources.ledger.schema import (
    BATCH_DAYS,
    BATCHES,
    CUTS,
    DELIVERIES,
    HEADS,
    NOTICES,
    PROCESSES,
    PUBLICATIONS,
    RUNS,
    SLICES,
)
from resources.ledger.store import Ledger

_ROWS_AT_ONCE = 20_000
Row = tuple[Any, ...]


def fill(ledger: Ledger, size: Size, settings: Settings) -> dict[str, int]:
    """Fill the ledger, which must be new and in SQLite; returns table -> number of rows."""
    rows: Mapping[sa.Table, Callable[[], Iterable[dict[str, Any]]]] = {
        HEADS: lambda: ({"table_name": table.key, "snapshot_id": 1} for table in TABLES),
        BATCHES: lambda: _of_days(size.all_days, batch_of_day),
        BATCH_DAYS: lambda: chain.from_iterable(_of_days(size.all_days, part) for part in batch_days()),
        SLICES: lambda: chain.from_iterable(
            _of_days(size.all_days, slice_of(table, size, settings)) for table in TABLES
        ),
        PUBLICATIONS: lambda: chain.from_iterable(
            _of_days(size.all_days, publication_of(table, size, settings)) for table in TABLES
        ),
        RUNS: lambda: chain.from_iterable(map(runs, size.all_days)),
        CUTS: lambda: chain.from_iterable(map(cuts, size.all_days)),
        PROCESSES: lambda: chain.from_iterable(map(processes, size.all_days)),
        NOTICES: lambda: map(notice, size.all_days),
        DELIVERIES: lambda: chain.from_iterable(
            map(deliveries_of(settings), size.all_days[-size.days_with_deliveries :])
        ),
    }
    path = ledger.engine.url.database
    assert path is not None
    written = {}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-1000000")
        for table, made in rows.items():
            written[table.name] = _insert(connection, table, made(), size)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return written


def _insert(connection: sqlite3.Connection, table: sa.Table, rows: Iterable[dict[str, Any]], size: Size) -> int:
    """Insert rows as plain text and numbers; repeats a row with a placeholder for each project."""
    iterator, names, written = iter(rows), None, 0
    while part := list(islice(iterator, max(1, _ROWS_AT_ONCE // size.projects))):
        names = names or list(part[0])
        values = chain.from_iterable(_of_projects([_plain(row[name]) for name in names], size.names) for row in part)
        marks = ", ".join("?" * len(names))
        connection.execute("BEGIN")
        cursor = connection.executemany(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})", values)
        connection.execute("COMMIT")
        written += cursor.rowcount
    return written


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, date) else value


def _of_projects(row: list[Any], projects: Iterable[str]) -> Iterator[Row]:
    places = {number for number, value in enumerate(row) if isinstance(value, str) and PROJECT in value}
    if not places:
        yield tuple(row)
        return
    for project in projects:
        yield tuple(value.replace(PROJECT, project) if number in places else value for number, value in enumerate(row))


def _of_days(days: Iterable[date], made: Callable[[date], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return map(made, days)
