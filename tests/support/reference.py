"""The tables' expected content, by brute force over all raw rows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeline_assets.domain.identity import RawRow, RowFate, outcomes
from pipeline_assets.domain.lateness import AT_ONCE, EARLY, GREATEST_SECONDS
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice, Source
from pipeline_assets.tables.events import CONTENT, RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.registry import ASSET_TABLES
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import HASH_A, HASH_B, digest_of, digests, with_row_hashes
from resources.iceberg.lakehouse import Lakehouse
from resources.ledger.store import Ledger


def raw_rows(lakehouse: Lakehouse) -> list[RawRow]:
    return [
        raw_row(source, row, (row[HASH_A], row[HASH_B]))
        for source, table in RAW_TABLES.items()
        for row in with_row_hashes(lakehouse.spark.table(lakehouse.identifier(table)), CONTENT).collect()
    ]


def raw_row(source: Source, row: Any, content: tuple[int, int]) -> RawRow:
    """`row`: column -> value."""
    place = (row["project_id"], row["event_date"], source, row["_object_key"], row["_line_number"])
    ids, times = (row["insert_id"], row["uuid"]), (row["server_upload_time"], row["processed_time"])
    return RawRow(*place, (row["app"], row["device_id"]), *ids, *times, content)


def by_slice(rows: Iterable[RawRow], what: Callable[[RawRow], Any]) -> dict[Slice, Counter[Any]]:
    found: defaultdict[Slice, Counter[Any]] = defaultdict(Counter)
    for row in rows:
        found[Slice(row.event_date, row.project_id)][what(row)] += 1
    return found


def fates(rows: Iterable[RawRow], settings: Settings) -> Iterator[tuple[RawRow, RowFate]]:
    """Event by event, because the rule compares every row with every other."""
    by_key: defaultdict[Any, list[RawRow]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    for same in by_key.values():
        yield from zip(same, outcomes(same, settings.source_precedence, settings.dedupe_window_days), strict=True)


def winners(rows: Iterable[RawRow], settings: Settings) -> dict[Slice, Counter[Any]]:
    won = [row for row, fate in fates(rows, settings) if fate is RowFate.WINNER]
    return by_slice(won, lambda row: row.content)


def measured_digests(lakehouse: Lakehouse, tables: Iterable[Table] = ASSET_TABLES) -> dict[str, dict[Slice, str]]:
    """Table -> slice -> digest, read from the rows; for the tables with digests in the ledger."""
    found = {}
    for table in tables:
        frame = lakehouse.spark.table(lakehouse.identifier(table))
        rows = digests(frame, table.content_columns, (table.day_column, "project_id")).collect()
        found[table.key] = {
            Slice(row[table.day_column], row["project_id"]): str(digest_of(row.asDict())) for row in rows
        }
    return found


def require_known(p: Any) -> None:
    """The ledger's records equal the tables' content, and the files where it trusts a head."""
    tables = [table for table in p.tables if table in ASSET_TABLES]
    measured = measured_digests(p.lakehouse, tables)
    for table in tables:
        recorded = p.ledger.slices(table.key, None)
        digest_of_slice = {key: str(record.digest) for key, record in recorded.items() if record.digest.rows}
        assert measured[table.key] == digest_of_slice, table.key
        head = p.lakehouse.head(table)
        if p.ledger.head(table.key) == Head(head):
            live = p.lakehouse.slice_files(table, head)
            told = {key: record.file_hash for key, record in recorded.items() if record.digest.rows}
            assert {key: files.file_hash for key, files in live.items()} == told, table.key


def refined_rows(lakehouse: Lakehouse) -> dict[Slice, Counter[Any]]:
    frame = with_row_hashes(lakehouse.spark.table(lakehouse.identifier(REFINED_EVENTS)), CONTENT)
    found: defaultdict[Slice, Counter[Any]] = defaultdict(Counter)
    for row in frame.select("event_date", "project_id", HASH_A, HASH_B).collect():
        found[Slice(row["event_date"], row["project_id"])][row[HASH_A], row[HASH_B]] += 1
    return found


def bin_of(seconds: int) -> int:
    """The bin of a lateness in whole seconds."""
    return EARLY if seconds < 0 else AT_ONCE if seconds < 1 else bisect_left(GREATEST_SECONDS, seconds)


def broken_chains(ledger: Ledger) -> list[str]:
    """Slices whose changes on record do not lead from nothing to the recorded state."""
    present: dict[tuple[str, Slice], str] = {}
    broken = []
    for record in ledger.publications():
        place = (record.table, record.key)
        if str(record.digest_before) != present.get(place, str(EMPTY)):
            broken.append(f"{record.table} {record.key}: {record.cause} begins elsewhere")
        present[place] = str(record.digest_after)
    return broken
