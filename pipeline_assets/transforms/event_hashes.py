"""The hashes stored with an event, how Arrow columns are hashed to them, and their digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.domain.slices import MEANING, NAN_BITS, NULL, ROW_HASH_VERSION, UNMEASURABLE, Digest, is_text
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.native import row_hashes as native_hashes

VERSION = str(ROW_HASH_VERSION)
_STORED_HALF = np.dtype(">i8")


def hashes_of(rows: pa.Table | Mapping[str, pa.Array], types: Mapping[str, str]) -> tuple[pa.Array, pa.Array]:
    """Both halves (int64) of the hash of each row; `types`: column -> Spark type, in order. Raises ValueError for others."""
    columns = plain_columns(rows, types)
    return native_hashes(columns, VERSION) or in_arrow(columns)


def plain_columns(rows: pa.Table | Mapping[str, pa.Array], types: Mapping[str, str]) -> list[pa.Array]:
    """The columns of `types` as texts, bytes, booleans, doubles or integers; raises ValueError as `hashes_of` does."""
    return [_plain(whole(rows[name]), kind) for name, kind in types.items()]


def _plain(values: pa.Array, kind: str) -> pa.Array:
    if is_text(kind):
        return values if kind in ("string", "binary") else values.cast(pa.string())
    if kind in ("timestamp", "date"):
        return values.cast(pa.int64() if kind == "timestamp" else pa.int32())
    return values


def in_arrow(columns: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
    """The same without the native library."""
    count = len(columns[0])
    numbers = [
        pa.scalar(NULL) if one.null_count == count else pc.fill_null(_numbers(one).cast(pa.string()), NULL)
        for one in columns
    ]
    if not any(isinstance(one, pa.Array) for one in numbers):
        numbers[0] = pa.repeat(NULL, count)
    told = pc.binary_join_element_wise(*numbers, ",").cast(pa.binary())
    texts = [one.cast(pa.binary()).fill_null(b"") for one in columns if one.type in _TEXTS and one.null_count < count]
    return _sha256(pc.binary_join_element_wise(f"{VERSION};".encode(), told, b";", *texts, b""))


_TEXTS = (pa.string(), pa.binary())


def _numbers(values: pa.Array) -> pa.Array:
    if values.type in _TEXTS:
        return pc.binary_length(values)
    if values.type == pa.float64():
        plain = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        bits = np.where(np.isnan(plain), NAN_BITS, plain.view(np.int64))
        return pa.array(bits, mask=np.asarray(values.is_null()))
    return values.cast(pa.int64())


def _sha256(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].tolist()
    bytes_of = memoryview(data or b"")
    halves = b"".join(sha256(bytes_of[start:end]).digest()[:16] for start, end in pairwise(ends))
    pairs = np.frombuffer(halves, _STORED_HALF).astype(np.int64).reshape(-1, 2)
    return pa.array(np.ascontiguousarray(pairs[:, 0])), pa.array(np.ascontiguousarray(pairs[:, 1]))


KEY = ("_key_a", "_key_b")
"""Both halves (long) of a 128-bit hash over project, kind of key and ids, or over the content without an id."""
HASH_COLUMNS = ("_hash_a", "_hash_b", "_meaning_hash", *KEY)
_IDENTITY = EXPORT_FORMAT.identity
SEND_ID, ROW_ID = IDS = (_IDENTITY.send_id, _IDENTITY.row_id)
_SENDER_TYPES = {name: EXPORT_FORMAT.spark_types[name] for name in _IDENTITY.sender}
_KEY_TYPES = {"project_id": "string", "kind": "string", **_SENDER_TYPES, "id": "string"}


@dataclass(frozen=True)
class EventHashes:
    """The columns that the stored hashes of an event cover; `types`: column -> Spark type, in hashing order."""

    types: Mapping[str, str]

    def of(self, rows: pa.RecordBatch | pa.Table) -> dict[str, pa.Array]:
        """HASH_COLUMNS (int64) of each row; `rows` have the columns of `types` and project_id."""
        first, second, meaning = self.content(rows)
        return dict(zip(HASH_COLUMNS, (first, second, meaning, *key_hashes(rows, (first, second))), strict=True))

    def content(self, rows: pa.RecordBatch | pa.Table) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The hash of an event (domain/slices.py) of each row; `rows` have the columns of `types`."""
        columns = {name: whole(rows.column(name)) for name in self.types}
        transport = {name: kind for name, kind in self.types.items() if name in EXPORT_FORMAT.transport_columns}
        said = {name: kind for name, kind in self.types.items() if name not in transport}
        meaning = hashes_of(columns, said)
        columns |= dict(zip(MEANING, meaning, strict=True))
        return *hashes_of(columns, MEANING | transport), meaning[0]


def key_hashes(rows: pa.RecordBatch | pa.Table, content: tuple[pa.Array, pa.Array]) -> tuple[pa.Array, pa.Array]:
    """Both halves (int64) of a hash of `RawRow.key` (domain/identity.py); `content`: hashes of the rows' content."""
    columns = {name: whole(rows.column(name)) for name in ("project_id", *_IDENTITY.names)}
    send_id, row_id = named(columns[SEND_ID]), named(columns[ROW_ID])
    is_sent = send_id.is_valid()
    ids = pc.coalesce(send_id, row_id)
    if ids.null_count:
        ids = pc.coalesce(ids, pc.binary_join_element_wise(*(half.cast(pa.string()) for half in content), ":"))
    sender = {name: named(columns[name]) if kind == "string" else columns[name] for name, kind in _SENDER_TYPES.items()}
    parts = {
        "project_id": columns["project_id"],
        "kind": pc.if_else(is_sent, _IDENTITY.send_id, pc.if_else(row_id.is_valid(), _IDENTITY.row_id, "content")),
        **{name: pc.if_else(is_sent, values, None) for name, values in sender.items()},
        "id": ids,
    }
    return hashes_of(parts, _KEY_TYPES)


def named(texts: pa.Array) -> pa.Array:
    """The texts, with null for empty or blank ones, as domain/identity.py reads an id."""
    return pc.if_else(pc.match_substring_regex(texts, SOMETHING_TO_SEE), texts, None)


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


Longs = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
NO_LONGS: Longs = np.zeros(0, np.int64)
LOWEST = int(np.iinfo(np.int64).min)
_HALF = 32


def longs(column: pa.Array | pa.ChunkedArray, null: int = 0) -> Longs:
    """The column's values; a null is `null`, a time is in microseconds, a date in days, since 1970."""
    values = whole(column)
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    values = values.cast(pa.int64())
    return np.asarray(values.fill_null(null).to_numpy() if values.null_count else values.to_numpy())


def are_null(column: pa.Array | pa.ChunkedArray) -> Mask:
    """Which values are null."""
    return np.asarray(whole(column).is_null().to_numpy(zero_copy_only=False))


def exact_sum(values: Longs) -> int:
    """The sum, exact for fewer than two billion values."""
    return (int((values >> _HALF).sum()) << _HALF) + int((values & ((1 << _HALF) - 1)).sum())


def are_among(values: Longs, wanted: Longs) -> Mask:
    """Which values are among the wanted, sorted ones."""
    if not len(wanted):
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(wanted[np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)] == values)


def part_of(hashes: Longs, parts: int) -> Longs:
    """The number of the range, of `parts` of equal width, that each hash lies in; at most a million parts."""
    # The upper 40 bits, so that the product stays within 64.
    found = (hashes.view(np.uint64) >> np.uint64(24)) * np.uint64(max(1, parts)) >> np.uint64(40)
    return found.astype(np.int64)


class HashedRows(NamedTuple):
    """Both halves of the hash of each row, and which stored hashes are false."""

    first: Longs
    second: Longs
    are_false: Mask

    def digest(self, chosen: Mask | slice = slice(None)) -> Digest:
        """Of all rows or some; with a false stored hash it equals no digest of sound rows."""
        first, second, are_false = self.first[chosen], self.second[chosen], self.are_false[chosen]
        version = UNMEASURABLE if are_false.any() else ROW_HASH_VERSION
        return Digest(len(first), exact_sum(first), exact_sum(second), version)


def hash_types(checked: EventHashes | None) -> Mapping[str, str]:
    """Column to read for `hashed_rows` -> Spark type."""
    if checked is None:
        return dict.fromkeys(HASH_COLUMNS[:2], "bigint")
    return {**checked.types, **dict.fromkeys(HASH_COLUMNS, "bigint")}


def hashed_rows(checked: EventHashes | None, rows: pa.Table, project_id: str | None = None) -> HashedRows:
    """The stored hashes of one project's rows (or with its column); with `checked`, compared with computed ones."""
    if checked is None:
        first, second = (longs(rows.column(name)) for name in HASH_COLUMNS[:2])
        return HashedRows(first, second, np.zeros(rows.num_rows, np.bool_))
    if project_id is not None:
        of_project = pa.repeat(pa.scalar(project_id, pa.string()), rows.num_rows)
        rows = rows.select(list(hash_types(checked))).append_column("project_id", of_project)
    made = checked.of(rows)
    are_false = np.zeros(rows.num_rows, np.bool_)
    for name, values in made.items():
        are_false |= ~pc.fill_null(pc.equal(rows.column(name), values), False).to_numpy()
    return HashedRows(longs(made[HASH_COLUMNS[0]]), longs(made[HASH_COLUMNS[1]]), are_false)
