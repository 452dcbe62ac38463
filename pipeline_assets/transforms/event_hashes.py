"""The hashes stored with an event in raw and refined: computed by the parser, recomputed when a file is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.domain.row_hash import MEANING
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.row_hash_arrow import Encoded

HASH_COLUMNS = ("_hash_a", "_hash_b", "_meaning_hash", "_key_a", "_key_b")
_IDENTITY = EXPORT_FORMAT.identity
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
        """`domain.row_hash.event_hash` of each row; `rows` have the columns of `types`."""
        columns = {name: whole(rows.column(name)) for name in self.types}
        transport = {name: kind for name, kind in self.types.items() if name in EXPORT_FORMAT.transport_columns}
        said = {name: kind for name, kind in self.types.items() if name not in transport}
        meaning = Encoded(columns, said).hashes()
        columns |= dict(zip(MEANING, meaning, strict=True))
        return *Encoded(columns, MEANING | transport).hashes(), meaning[0]


def key_hashes(rows: pa.RecordBatch | pa.Table, content: tuple[pa.Array, pa.Array]) -> tuple[pa.Array, pa.Array]:
    """Both halves (int64) of a hash of `RawRow.key` (domain/identity.py); `content` holds the hashes of the rows' content."""
    columns = {name: whole(rows.column(name)) for name in ("project_id", *_IDENTITY.names)}
    send_id, row_id = named(columns[_IDENTITY.send_id]), named(columns[_IDENTITY.row_id])
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
    return Encoded(parts, _KEY_TYPES).hashes()


def named(texts: pa.Array) -> pa.Array:
    """The texts, with null for empty or blank ones, as domain/identity.py reads an id."""
    return pc.if_else(pc.match_substring_regex(texts, SOMETHING_TO_SEE), texts, None)


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array; a chunked column is combined."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
