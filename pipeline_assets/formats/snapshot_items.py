"""Reads the items of a snapshot; memory holds one line and a hash per id, however large the object is."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.formats.snapshot_lines import BadSnapshotError, records, subject_of, told
from pipeline_assets.formats.snapshot_objects import SnapshotPart

REQUIRED = ("id", "name", "status")
"""Columns that every snapshot must have; further columns are kept as `attributes`."""


@dataclass(frozen=True, slots=True)
class SnapshotItem:
    """One item of a snapshot."""

    line: int
    """Line on which its record begins, from 1."""
    id: str
    name: str | None
    status: str
    attributes: str | None
    """JSON text of the further columns, keys sorted; None without any."""
    is_trimmed: bool = False
    """Whether white space around id or status was removed."""


def read_snapshot(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int) -> Iterator[SnapshotItem]:
    """Yield the items of a snapshot; raises BadSnapshotError if the object is not a valid snapshot.

    Duplicate ids are found only at the end, so the caller must not use any item before it has read all. `stored` and
    `max_line_bytes`: see `records`.
    """
    ids = _Ids()
    for item in _items(stored, part, max_line_bytes):
        ids.add(item.id)
        yield item
    if not len(ids):
        raise BadSnapshotError(0, "holds no item")
    doubtful = ids.twice()
    lines: dict[str, int] = {}
    for item in _items(stored, part, max_line_bytes) if doubtful else ():
        if hash(item.id) not in doubtful:
            continue
        if item.id in lines:
            raise BadSnapshotError(item.line, f"the id {told(item.id)} is already on line {lines[item.id]}")
        lines[item.id] = item.line


class _Ids:
    """Finds ids that may occur twice, from eight bytes per id: an id whose hash is unique is unique itself."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, key: str) -> None:
        self._hashes.append(hash(key))

    def twice(self) -> frozenset[int]:
        values = pa.Array.from_buffers(pa.int64(), len(self._hashes), [None, pa.py_buffer(self._hashes)])
        ordered = values.take(pc.array_sort_indices(values))
        is_same = pc.equal(ordered[1:], ordered[:-1])
        return frozenset(ordered[1:].filter(is_same).to_pylist())


def _items(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int) -> Iterator[SnapshotItem]:
    for line, fields in records(stored, part, REQUIRED, max_line_bytes):
        name = fields["name"]
        # Nothing rests on a name, so one that is no text refuses no snapshot.
        name = name if name is None or isinstance(name, str) else json.dumps(name, ensure_ascii=False)
        subject = subject_of(line, fields, REQUIRED, name)
        yield SnapshotItem(line, subject.id, name, subject.status, subject.attributes, subject.is_trimmed)
