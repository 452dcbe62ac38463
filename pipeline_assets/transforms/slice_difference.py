"""How the rows that a slice is to hold differ from those that its files hold, told by the narrow columns of both.

Contains: numbering rows, finding those on one side alone, and what that does to keys.
Add here: another comparison of the two sides.
Does not contain: reading and writing files (refine_files.py), what keys of other days say
(key_changes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.event_hashes import named, whole

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
NAMES = ("_object_key", "_line_number", "_hash_a")
"""What tells a row of one source from all others, and one content of it from another: half a hash is 64 bits for each row."""
_IDS = (EXPORT_FORMAT.identity.send_id, EXPORT_FORMAT.identity.row_id)
KEYS_OF = ("_key_a", "_key_b", "_meaning_hash", *_IDS)
KEYS = pa.schema([("_key_a", pa.int64()), ("_key_b", pa.int64()), ("is_added", pa.bool_())])
_SEPARATOR = "\x00"
_LINE_BITS = 32


class RowNumbers:
    """Gives the same number to the same line of the same object of the same source."""

    def __init__(self) -> None:
        """No object is known yet."""
        self._objects: dict[str, int] = {}

    def of(self, sources: pa.Array | pa.Scalar, rows: pa.Table) -> Numbers:
        """A number for each of some rows with NAMES; `sources`: one for each of them, or for all."""
        joined = pc.binary_join_element_wise(sources, whole(rows["_object_key"]), _SEPARATOR)
        # Only rows that somebody else wrote lack a place. They are all given the same, and so are taken for doubtful.
        names = pc.fill_null(joined, "").dictionary_encode()
        codes = [self._objects.setdefault(name, len(self._objects)) for name in names.dictionary.to_pylist()]
        at = np.asarray(codes, dtype=np.int64)[names.indices.to_numpy(zero_copy_only=False)]
        lines = pc.fill_null(rows["_line_number"], 0).to_numpy().astype(np.int64)
        found: Numbers = at << _LINE_BITS | lines
        return found


class HeldRows:
    """Rows that a slice holds: which of them it is to hold still is found out by asking for those that it is to hold."""

    def __init__(self, numbers: Numbers, hashes: Numbers) -> None:
        """`numbers`: of RowNumbers; `hashes`: `_hash_a` of the same rows."""
        self._order = np.argsort(numbers, kind="stable")
        self._numbers, self._hashes = numbers[self._order], hashes[self._order]
        self._is_wanted = np.zeros(len(numbers), dtype=np.bool_)

    @property
    def are_distinct(self) -> bool:
        """Whether each row is there once; else nothing can be told of it."""
        return bool((self._numbers[1:] != self._numbers[:-1]).all())

    def holds(self, numbers: Numbers, hashes: Numbers) -> Mask:
        """Which of some wanted rows are there with the same content."""
        if not len(self._numbers):
            return np.zeros(len(numbers), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        found: Mask = (self._numbers[at] == numbers) & (self._hashes[at] == hashes)
        self._is_wanted[at[found]] = True
        return found

    @property
    def is_wanted(self) -> Mask:
        """Which of the held rows were asked for, in the order in which they were given."""
        found = np.empty_like(self._is_wanted)
        found[self._order] = self._is_wanted
        return found


@dataclass(frozen=True)
class KeyDifference:
    """What becomes of the keys of one slice."""

    kept: int
    changed: int
    differing: pa.Table
    """KEYS: those that it gains or loses."""


def event_keys(rows: pa.Table) -> list[tuple[int, int, int]]:
    """Both halves of the key and the meaning of each of some rows with KEYS_OF; as key_changes.with_event_keys has them."""
    are_named = pc.or_(*(named(whole(rows[name])).is_valid() for name in _IDS))
    meaning = whole(rows["_meaning_hash"])
    first = pc.if_else(are_named, whole(rows["_key_a"]), meaning)
    second = pc.if_else(are_named, whole(rows["_key_b"]), pa.scalar(0, pa.int64()))
    return list(zip(first.to_pylist(), second.to_pylist(), meaning.to_pylist(), strict=True))


def key_difference(
    held: int, gone: Sequence[tuple[int, int, int]], new: Sequence[tuple[int, int, int]]
) -> KeyDifference:
    """From `event_keys` of the rows that go and that come; `held`: rows of the slice before."""
    before: dict[tuple[int, int], list[int]] = {}
    for first, second, meaning in gone:
        before.setdefault((first, second), []).append(meaning)
    kept, changed, added = held - len(gone), 0, []
    for first, second, meaning in new:
        meanings = before.get((first, second))
        if not meanings:
            added.append((first, second))
        elif meaning in meanings:
            meanings.remove(meaning)
            kept += 1
        else:
            meanings.pop()
            changed += 1
    removed = [key for key, meanings in before.items() for _ in meanings]
    keys = [*added, *removed]
    columns = [
        pa.array([key[0] for key in keys], pa.int64()),
        pa.array([key[1] for key in keys], pa.int64()),
        pa.array([True] * len(added) + [False] * len(removed), pa.bool_()),
    ]
    return KeyDifference(kept, changed, pa.Table.from_arrays(columns, schema=KEYS))
