"""The items of a snapshot, read line by line: however large the object is, a line and the hashes of ids are in memory.

Contains: what a snapshot tells of an item, and that it tells of each id once.
Add here: another column that every snapshot has.
Does not contain: both formats (snapshot_lines.py), names of objects (snapshot_objects.py), how many items are kept at once
(transforms/snapshot_rows.py), what becomes of a refused snapshot (load/).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.formats.snapshot_lines import BadSnapshotError, records, subject_of, told
from pipeline_assets.formats.snapshot_objects import SnapshotPart

REQUIRED = ("id", "name", "status")
"""What every snapshot tells of an item; further columns are kept as `attributes`."""


@dataclass(frozen=True, slots=True)
class SnapshotItem:
    """One item of a snapshot."""

    line: int
    """Where it begins, from 1."""
    id: str
    name: str | None
    status: str
    attributes: str | None
    """JSON text of the further columns, keys sorted; None where there are none."""
    is_trimmed: bool = False
    """Whether white space around id or status was left out."""


def read_snapshot(stored: IO[bytes], part: SnapshotPart, max_line_bytes: int) -> Iterator[SnapshotItem]:
    """The items of a snapshot, one after the other; raises BadSnapshotError for what makes it none.

    An id that is there twice is known at the end alone: the items are those of a snapshot when all were read. `stored` and
    `max_line_bytes`: as for `records`.
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
    """Which ids may be there twice, by eight bytes for each: a hash that is there once is the hash of one id."""

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
        if name is not None and not isinstance(name, str):
            raise BadSnapshotError(line, "name is no text")
        subject = subject_of(line, fields, REQUIRED, name)
        yield SnapshotItem(line, subject.id, name, subject.status, subject.attributes, subject.is_trimmed)
