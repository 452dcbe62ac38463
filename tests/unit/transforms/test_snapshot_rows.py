"""A snapshot becomes rows in blocks, only after all of it was read and found whole."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Any

import pyarrow as pa

from pipeline_assets.transforms.snapshot_rows import (
    BAD,
    BLOCK_CHARACTERS,
    BLOCK_ITEMS,
    HISTORY,
    SNAPSHOT,
    ObjectKind,
    SnapshotWork,
)

DAY, KEY = date(2026, 2, 2), "dimensions/item/2026-02-02.csv"
HEAD = b"id,name,status\n"
LONGEST = 8 * 1024**2


class Watched(io.BytesIO):
    """Bytes that record the largest request."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        return self._noted(super().read(size))

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._noted(super().read1(size))

    def _noted(self, part: bytes) -> bytes:
        self.most = max(self.most, len(part))
        return part


@dataclass
class Landing:
    body: bytes
    opened: list[Watched] = field(default_factory=list)

    def open(self, key: str, etag: str) -> IO[bytes]:
        assert (key, etag) == (KEY, "v1")
        self.opened.append(Watched(self.body))
        return self.opened[-1]


def read(landing: Landing, max_bytes: int = 64 * 1024**2, kind: ObjectKind = SNAPSHOT) -> Iterator[pa.RecordBatch]:
    place = {"bucket": 0, "day": DAY, "key": KEY, "etag": "v1", "size_bytes": len(landing.body)}
    return SnapshotWork(landing, kind, max_bytes, LONGEST)([pa.RecordBatch.from_pylist([place])])


def test_a_large_snapshot_is_read_in_small_parts_and_handed_on_in_blocks() -> None:
    """Outcome: no request or block is near the object's size; rows have their places."""
    many = b"".join(b"%d,item %d, ACTIVE\n" % (number, number) for number in range(45_000))
    long = b"".join(b"x%d,%s,ACTIVE\n" % (number, b"n" * 100_000) for number in range(100))
    landing = Landing(HEAD + many + long)
    batches = read(landing)
    rows: list[dict[str, Any]] = []
    blocks = 0
    for batch in batches:
        assert batch.num_rows <= BLOCK_ITEMS
        assert sum(len(name or "") for name in batch.column("name").to_pylist()) <= BLOCK_CHARACTERS + 100_000
        blocks += 1
        rows += batch.to_pylist()
    summary = rows.pop()
    assert (summary["id"], summary["rows"], summary["trimmed"], summary["problem"]) == (None, 45_100, 45_000, None)
    assert blocks >= 45_000 // BLOCK_ITEMS + 100 * 100_000 // BLOCK_CHARACTERS
    assert [row["id"] for row in rows] == [*map(str, range(45_000)), *(f"x{number}" for number in range(100))]
    assert {(row["snapshot_date"], row["_object_key"], row["_object_etag"]) for row in rows} == {(DAY, KEY, "v1")}
    last = tuple(rows[44_999][name] for name in ("name", "status", "_line_number"))
    assert last == ("item 44999", "ACTIVE", 45_001)
    (opened,) = landing.opened
    assert opened.most < len(landing.body) / 50
    assert opened.closed


def test_an_object_that_is_found_bad_at_its_end_has_no_rows() -> None:
    lines = b"".join(b"%d,n,ACTIVE\n" % number for number in range(BLOCK_ITEMS * 2))
    for last, detail in (
        (b"0,n,ACTIVE\n", "line 20002: the id '0' is already on line 2"),
        (b"z,n\n", "line 20002: has 2 "),
    ):
        (batch,) = read(Landing(HEAD + lines + last))
        (summary,) = batch.to_pylist()
        assert (summary["id"], summary["rows"], summary["problem"]) == (None, 0, BAD)
        assert summary["detail"].startswith(detail)


def test_an_object_of_more_bytes_than_are_allowed_is_not_opened() -> None:
    landing = Landing(HEAD + b"1,a,ACTIVE\n")
    (batch,) = read(landing, max_bytes=25)
    assert batch.to_pylist()[0]["detail"] == "has 26 bytes, and TIDEMARK_MAX_SNAPSHOT_BYTES allows 25"
    assert not landing.opened


def test_a_history_becomes_rows_in_the_same_blocks() -> None:
    """Outcome: two equal intervals are one row; trimmed ones are counted; a bad end gives no rows."""
    head = b"id,status,active_start_date,active_end_date,site\n"
    lines = b"".join(b"%d, ACTIVE,2026-01-01,,Bern\n" % number for number in range(BLOCK_ITEMS + 1))
    parts = b"x,A,2026-01-01,2026-01-31,Bern\nx,A,2026-02-01,,Bern\n"
    batches = list(read(Landing(head + parts + lines), kind=HISTORY))
    assert [batch.num_rows for batch in batches] == [BLOCK_ITEMS, 2, 1]
    *rows, summary = [row for batch in batches for row in batch.to_pylist()]
    assert (summary["id"], summary["rows"], summary["trimmed"]) == (None, BLOCK_ITEMS + 2, BLOCK_ITEMS + 1)
    (joined,) = [row for row in rows if row["id"] == "x"]
    assert (joined["active_start_date"], joined["active_end_date"]) == (date(2026, 1, 1), DAY)
    assert (joined["attributes"], joined["snapshot_date"], joined["_line_number"]) == ('{"site":"Bern"}', DAY, 2)
    (batch,) = read(Landing(head + parts + lines + b"x,A,2026-01-05,,Bern\n"), kind=HISTORY)
    assert batch.to_pylist()[0]["detail"].endswith("the interval of the id 'x' overlaps with the one on line 2")
