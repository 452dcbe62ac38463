"""The hashes that an event carries through raw and refined: made where it is parsed, made again where a file is doubted.

Contains: their columns, and which columns they cover.
Add here: another hash that is stored with an event.
Does not contain: the hash itself (row_hash_arrow.py, domain/row_hash.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.identity import SOMETHING_TO_SEE
from pipeline_assets.transforms.row_hash_arrow import Encoded

HASH_COLUMNS = ("_hash_a", "_hash_b", "_meaning_hash", "_key_a", "_key_b")
_KEY_TYPES = {"project_id": "string", "kind": "string", "app": "bigint", "device_id": "string", "id": "string"}


@dataclass(frozen=True)
class EventHashes:
    """Which columns the stored hashes of an event cover; `types`: column -> Spark type, in the order to hash in."""

    types: Mapping[str, str]
    meaning: Sequence[str]
    """Those that say what happened, and not how the row travelled."""

    def of(self, rows: pa.RecordBatch | pa.Table) -> dict[str, pa.Array]:
        """HASH_COLUMNS (int64) of each row, which has the columns of `types` and project_id."""
        encoded = Encoded({name: whole(rows.column(name)) for name in self.types}, self.types)
        first, second = encoded.hashes()
        key = key_hashes(rows, (first, second))
        return dict(zip(HASH_COLUMNS, (first, second, encoded.hashes(self.meaning)[0], *key), strict=True))


def key_hashes(rows: pa.RecordBatch | pa.Table, content: tuple[pa.Array, pa.Array]) -> tuple[pa.Array, pa.Array]:
    """Two halves (int64) of a hash of `RawRow.key` of domain/identity.py; `content`: the hashes of the rows' content."""
    columns = {name: whole(rows.column(name)) for name in ("project_id", "app", "device_id", "insert_id", "uuid")}
    insert_id, uuid = named(columns["insert_id"]), named(columns["uuid"])
    is_inserted = insert_id.is_valid()
    by_content = pc.binary_join_element_wise(*(half.cast(pa.string()) for half in content), ":")
    found = {
        "project_id": columns["project_id"],
        "kind": pc.if_else(is_inserted, "insert_id", pc.if_else(uuid.is_valid(), "uuid", "content")),
        "app": pc.if_else(is_inserted, columns["app"], None),
        "device_id": pc.if_else(is_inserted, named(columns["device_id"]), None),
        "id": pc.coalesce(insert_id, uuid, by_content),
    }
    return Encoded(found, _KEY_TYPES).hashes()


def named(texts: pa.Array) -> pa.Array:
    """The texts, null where nothing in them can be seen; as domain/identity.py reads an id."""
    return pc.if_else(pc.match_substring_regex(texts, SOMETHING_TO_SEE), texts, None)


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, whatever a column was read in."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
