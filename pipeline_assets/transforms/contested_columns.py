"""The narrow rows by which a contest of raw rows is decided: their columns, and how a file's rows become such rows."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import LOWEST, Longs, longs, named, whole
from pipeline_assets.transforms.named import KEY, ROW_ID

RECEIVED, PROCESSED = EXPORT_FORMAT.rank_columns
_SEND_ID = EXPORT_FORMAT.identity.send_id
_TYPES = EXPORT_FORMAT.spark_types
_KEPT = {
    **dict.fromkeys(KEY, "bigint"),
    RECEIVED: _TYPES[RECEIVED],
    PROCESSED: _TYPES[PROCESSED],
    "_hash_a": "bigint",
    "_hash_b": "bigint",
    "_object_key": "string",
    "_line_number": "int",
}
READ_TYPES = {**_KEPT, _SEND_ID: "string", ROW_ID: "string", EXTRA_COLUMN: "string"}
"""Column of raw to read -> Spark type."""
SCHEMA = pa.schema(
    [
        ("_day", pa.int32()),
        ("project_id", pa.string()),
        ("_source", pa.string()),
        *((name, ARROW_TYPES[kind]) for name, kind in _KEPT.items()),
        (ROW_ID, pa.string()),
        ("_is_nameless", pa.bool_()),
        ("_is_unread", pa.bool_()),
    ]
)
"""`_day`: days since 1970. ROW_ID is null where it is blank. `_is_nameless`: the row has no id, so its key is its content.
`_is_unread`: PROCESSED was delivered and could not be read."""
_DAY = pa.date32()


def contested_rows(rows: pa.Table, key: Slice, source: str) -> pa.Table:
    """The rows of one slice of a raw table (READ_TYPES) with SCHEMA; rows without a key compete with none and are left out."""
    rows = rows.filter(pc.and_(*(rows[name].is_valid() for name in KEY))).combine_chunks()
    send_id, row_id = (named(whole(rows[name])) for name in (_SEND_ID, ROW_ID))
    made = {
        "_day": pa.repeat(pa.scalar(key.event_date, _DAY).cast(pa.int32()), rows.num_rows),
        "project_id": pa.repeat(pa.scalar(key.project_id), rows.num_rows),
        "_source": pa.repeat(pa.scalar(source), rows.num_rows),
        ROW_ID: row_id,
        "_is_nameless": pc.and_(send_id.is_null(), row_id.is_null()),
        "_is_unread": is_unread(rows),
    }
    columns = [made[name] if name in made else whole(rows[name]) for name in SCHEMA.names]
    return pa.Table.from_arrays(
        [one.cast(kind) for one, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def is_unread(rows: pa.Table) -> pa.Array:
    """Whether a row's PROCESSED is null because its delivered text, which EXTRA_COLUMN keeps, could not be read."""
    extra = whole(rows[EXTRA_COLUMN])
    found = np.zeros(rows.num_rows, dtype=np.bool_)
    # The name may be written with escapes, but only by another program: our parser writes it plainly.
    may_tell = pc.and_(rows[PROCESSED].is_null(), pc.fill_null(pc.match_substring(extra, PROCESSED), False))
    for at in np.flatnonzero(may_tell.to_numpy()):
        found[at] = _tells(extra[int(at)].as_py())
    return pa.array(found)


def _tells(extra: str) -> bool:
    try:
        # Numbers stay text, because Python refuses to read very long ones.
        told = json.loads(extra, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get(PROCESSED) is not None


def numbers_of(column: pa.Array | pa.ChunkedArray) -> Longs:
    """Integers, days or times as int64; a null is lower than any value."""
    return longs(column, null=LOWEST)
