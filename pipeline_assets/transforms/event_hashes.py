"""The hashes that an event carries through raw and refined: made where it is parsed, made again where a file is doubted.

Lives here: their columns, and which columns they cover. Put here: another hash that is stored with an event. Keep out: the hash
itself (row_hash_arrow.py, domain/row_hash.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline_assets.transforms.row_hash_arrow import Encoded

HASH_COLUMNS = ("_hash_a", "_hash_b", "_meaning_hash")


@dataclass(frozen=True)
class EventHashes:
    """Which columns the stored hashes of an event cover; `types`: column -> Spark type, in the order to hash in."""

    types: Mapping[str, str]
    meaning: Sequence[str]
    """Those that say what happened, and not how the row travelled."""

    def of(self, rows: pa.RecordBatch | pa.Table) -> dict[str, pa.Array]:
        """`_hash_a`, `_hash_b` and `_meaning_hash` (int64) of each row."""
        encoded = Encoded({name: whole(rows.column(name)) for name in self.types}, self.types)
        first, second = encoded.hashes()
        return dict(zip(HASH_COLUMNS, (first, second, encoded.hashes(self.meaning)[0]), strict=True))


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, whatever a column was read in."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
