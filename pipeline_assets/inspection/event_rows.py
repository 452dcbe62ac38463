"""Find the rows of one event in raw, refined and quarantine, with the narrowest reads possible."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, Row

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.identity import RawRow
from pipeline_assets.domain.identity import named_sender as named_sender_of
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import QUARANTINE, RAW_TABLES
from pipeline_assets.tables.refined_events import CONTENT, REFINED_EVENTS
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import HASH_A, HASH_B, named, named_sender, unread_text, with_row_hashes
from resources.iceberg.metadata import slices_condition

MAX_ROWS = 2_000
"""The most raw rows to collect and judge; judging compares them pairwise."""
MAX_QUARANTINED = 100
_MAX_OTHER_KEYS = 100
_READS_PER_JOB = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNREAD = "_unread"
_SENDER = EXPORT_FORMAT.identity.sender
_SEND_ID, _ROW_ID = EXPORT_FORMAT.identity.send_id, EXPORT_FORMAT.identity.row_id
_RECEIVED_AT, _PROCESSED_AT = EXPORT_FORMAT.rank_columns
_IDENTITY = ("event_date", "project_id", *EXPORT_FORMAT.identity.names, "_source", "_object_key", "_line_number")


FoundRow = tuple[RawRow, dict[str, Any]]
"""A raw row of the event, and its etag, arrival date and event time for display."""


@dataclass(frozen=True)
class QuarantinedLine:
    """A quarantined line whose kept bytes contain the identifier."""

    source: str
    project_id: str
    arrival_date: date
    object_key: str
    etag: str
    line_number: int | None
    reason: str
    detail: str | None
    is_batch_accepted: bool


@dataclass(frozen=True)
class Search:
    """What to search for, and where."""

    runtime: Runtime
    pins: Mapping[str, int]
    """Table key -> snapshot id, the same for all reads."""
    identifier: str
    projects: tuple[str, ...]
    first: date | None = None
    last: date | None = None
    other_keys: tuple[tuple[tuple[int | str | None, ...], str], ...] = ()
    """(sender, send id) of rows whose row id is the identifier: other rows with these keys belong to the event too."""

    def raw(self) -> DataFrame:
        """Both raw tables, with `_source`."""
        frames = [
            self.runtime.lakehouse.read(table, self.pins[table.key]).withColumn("_source", F.lit(source.value))
            for source, table in RAW_TABLES.items()
        ]
        return reduce(DataFrame.unionByName, frames)

    def refined(self, snapshot_id: int | None = None) -> DataFrame:
        """refined.events as of a snapshot; the pinned one by default."""
        pin = self.pins[REFINED_EVENTS.key] if snapshot_id is None else snapshot_id
        return self.runtime.lakehouse.read(REFINED_EVENTS, pin)

    def matches(self) -> Column:
        """The condition for rows with the identifier, and for the other rows of their keys."""
        found = (F.col(_SEND_ID) == self.identifier) | (F.col(_ROW_ID) == self.identifier)
        for sender, send_id in self.other_keys:
            parts = zip(named_sender().values(), sender, strict=True)
            is_sender = [part.eqNullSafe(F.lit(value)) for part, value in parts]
            found |= reduce(Column.__and__, is_sender, F.col(_SEND_ID) == send_id)
        return found

    def in_reach(self) -> Column:
        """The condition for the projects and days: the requested event days and all days whose rows decide about theirs."""
        reach = timedelta(days=2 * self.runtime.settings.dedupe_window_days)
        inside = F.col("project_id").isin(*self.projects)
        if self.first is not None:
            inside &= F.col("event_date") >= F.lit(self.first - min(reach, self.first - date.min))
        if self.last is not None:
            inside &= F.col("event_date") <= F.lit(self.last + min(reach, date.max - self.last))
        return inside


def pin(runtime: Runtime) -> dict[str, int]:
    """The current snapshots of all searched tables; raises LakehouseError before the first load."""
    tables: tuple[Table, ...] = (*RAW_TABLES.values(), REFINED_EVENTS, QUARANTINE)
    for table in tables:
        name = runtime.lakehouse.identifier(table)
        # Asking for the head of a missing table would create it.
        if not runtime.spark.catalog.tableExists(name):
            raise LakehouseError(name, "is not there: nothing is loaded yet", "Load days first: tidemark load --help")
    return {table.key: runtime.lakehouse.head(table) for table in tables}


def find_slices(search: Search) -> tuple[Search, set[Slice]]:
    """The newest slices with rows of the event, to which later reads are limited, and the search extended by the keys found."""
    columns = ("event_date", "project_id", *EXPORT_FORMAT.identity.names)
    narrow = search.raw().select(*columns).unionByName(search.refined().select(*columns)).where(search.in_reach())
    is_other = named(_SEND_ID).isNotNull() & (F.col(_SEND_ID) != search.identifier)
    keys = [F.when(is_other, F.col(name)).alias(name) for name in (*_SENDER, _SEND_ID)]
    found = narrow.where(search.matches()).select("event_date", "project_id", *keys).distinct()
    matching = found.orderBy(F.desc("event_date"), "project_id").limit(MAX_ROWS).collect()
    slices = {Slice(row["event_date"], row["project_id"]) for row in matching}
    others = {
        (named_sender_of(tuple(row[name] for name in _SENDER)), row[_SEND_ID]): None
        for row in matching
        if row[_SEND_ID] is not None
    }
    if not others:
        return search, slices
    extended = replace(search, other_keys=tuple(others)[:_MAX_OTHER_KEYS])
    days = narrow.where(extended.matches()).select("event_date", "project_id").distinct().limit(MAX_ROWS).collect()
    return extended, slices | {Slice(row["event_date"], row["project_id"]) for row in days}


def raw_rows(search: Search, slices: Collection[Slice]) -> tuple[list[FoundRow], bool]:
    """The raw rows of the event, those of highest rank, and whether raw has more than were collected."""
    extra = ("_object_etag", "_arrival_date", F.unix_micros(EVENT_TIME).alias("_event_time"))
    rows = (
        _hashed(search.raw(), search, slices)
        .select(*_identified(), HASH_A, HASH_B, unread_text().substr(1, 80).alias(_UNREAD), *extra)
        .orderBy(F.desc_nulls_last(_RECEIVED_AT), F.desc_nulls_last(_PROCESSED_AT))
        .limit(MAX_ROWS + 1)
        .collect()
    )
    found: list[FoundRow] = []
    for row in rows[:MAX_ROWS]:
        shown = {"etag": row["_object_etag"], "arrival_date": row["_arrival_date"]}
        found.append((_raw_row(row), {**shown, "event_time": _instant(row["_event_time"])}))
    return found, len(rows) > MAX_ROWS


def live_rows(search: Search, slices: Collection[Slice]) -> list[RawRow]:
    """The event's rows in refined.events at the pinned snapshot."""
    rows = _hashed(search.refined(), search, slices).select(*_identified(), HASH_A, HASH_B)
    return [_raw_row(row) for row in rows.limit(MAX_ROWS).collect()]


def published_rows(search: Search, slices: Collection[Slice], snapshots: Sequence[int]) -> dict[int, list[RawRow]]:
    """Snapshot of refined.events -> the event's rows in these slices; their `content` is not read."""
    rows: dict[int, list[RawRow]] = {snapshot: [] for snapshot in snapshots}
    for start in range(0, len(snapshots), _READS_PER_JOB):
        frames = [
            search.refined(snapshot)
            .where(slices_condition(REFINED_EVENTS, slices) & search.matches())
            .select(*_identified(), F.lit(snapshot).cast("long").alias("_snapshot"))
            for snapshot in snapshots[start : start + _READS_PER_JOB]
        ]
        for row in reduce(DataFrame.unionByName, frames).collect():
            rows[row["_snapshot"]].append(_raw_row(row))
    return rows


def quarantined_lines(search: Search) -> list[QuarantinedLine]:
    """Quarantined lines whose kept bytes contain the identifier, verbatim or JSON-escaped; newest first."""
    as_json = (json.dumps(search.identifier, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    spellings = {search.identifier, *as_json}
    holds = [F.contains(F.col("sample"), F.lit(spelling.encode())) for spelling in sorted(spellings)]
    rows = (
        search.runtime.lakehouse.read(QUARANTINE, search.pins[QUARANTINE.key])
        .where(F.col("project_id").isin(*search.projects) & reduce(Column.__or__, holds))
        .withColumns({"etag": F.col("object_etag"), "is_batch_accepted": F.coalesce("is_batch_accepted", F.lit(False))})
        .orderBy(F.desc("arrival_date"), "object_key", "line_number")
        .limit(MAX_QUARANTINED)
        .select(*[one.name for one in fields(QuarantinedLine)])
        .collect()
    )
    return [QuarantinedLine(**row.asDict()) for row in rows]


def _hashed(frame: DataFrame, search: Search, slices: Collection[Slice]) -> DataFrame:
    wanted = slices_condition(REFINED_EVENTS, slices) & search.matches()
    return with_row_hashes(frame.where(wanted), CONTENT)


def _identified() -> list[Any]:
    # As microseconds, because Spark collects timestamps in the machine's local time.
    return [*_IDENTITY, *[F.unix_micros(name).alias(name) for name in EXPORT_FORMAT.rank_columns]]


def _raw_row(row: Row) -> RawRow:
    return RawRow(
        project_id=row["project_id"],
        event_date=row["event_date"],
        source=Source(row["_source"]),
        object_key=row["_object_key"],
        line_number=row["_line_number"],
        sender=tuple(row[name] for name in _SENDER),
        send_id=row[_SEND_ID],
        row_id=row[_ROW_ID],
        received_at=_instant(row[_RECEIVED_AT]),
        processed_at=_instant(row[_PROCESSED_AT]),
        content=(row[HASH_A], row[HASH_B]) if HASH_A in row else (0, 0),
        unread=row[_UNREAD] if _UNREAD in row else None,  # noqa: SIM401 - a Row has no get
    )


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)
