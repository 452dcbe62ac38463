"""Compares the rows that a slice should hold with the rows in its files, by a few narrow columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.transforms.event_hashes import Longs, Mask, whole

NAMES = ("_object_key", "_line_number", "_hash_a")
"""Columns that identify a row of one source and its content; half of the hash (64 bits) suffices for the content."""
_SEPARATOR = "\x00"
_LINE_BITS = 32


class RowNumbers:
    """Assigns numbers to rows: the same line of the same object of the same source gets the same number."""

    def __init__(self) -> None:
        """Start without known objects."""
        self._objects: dict[str, int] = {}

    def of(self, sources: pa.Array | pa.Scalar, rows: pa.Table) -> Longs:
        """A number for each row (with NAMES); `sources` holds one source per row, or one for all rows."""
        joined = pc.binary_join_element_wise(sources, whole(rows["_object_key"]), _SEPARATOR)
        # Only rows written by another program lack an object. They share a number, so HeldRows finds them not distinct.
        names = pc.fill_null(joined, "").dictionary_encode()
        codes = [self._objects.setdefault(name, len(self._objects)) for name in names.dictionary.to_pylist()]
        at = np.asarray(codes, dtype=np.int64)[names.indices.to_numpy(zero_copy_only=False)]
        lines = pc.fill_null(rows["_line_number"], 0).to_numpy().astype(np.int64)
        found: Longs = at << _LINE_BITS | lines
        return found


class HeldRows:
    """The rows that a slice holds, and which of them it keeps.

    A held row that names a row of raw stays if that row wins, or one that is equal to it: `meet` is told all rows of raw, then
    `lacks` the winners among them that `meet` did not find.
    """

    def __init__(self, numbers: Longs, hashes: Longs) -> None:
        """`numbers` come from RowNumbers; `hashes` are `_hash_a` of the same rows."""
        self._order = np.argsort(numbers, kind="stable")
        self._numbers, self._hashes = numbers[self._order], hashes[self._order]
        self._is_wanted, self._is_in_raw = np.zeros((2, len(numbers)), dtype=np.bool_)

    @property
    def are_distinct(self) -> bool:
        """Whether each row occurs once; otherwise rows cannot be compared."""
        return bool((self._numbers[1:] != self._numbers[:-1]).all())

    def meet(self, numbers: Longs, hashes: Longs, is_winner: Mask) -> Mask:
        """A mask of the rows that win and that the slice does not hold under their own names."""
        if not len(self._numbers):
            return is_winner
        at = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        is_held: Mask = (self._numbers[at] == numbers) & (self._hashes[at] == hashes)
        self._is_in_raw[at[is_held]] = True
        self._is_wanted[at[is_held & is_winner]] = True
        return is_winner & ~is_held

    def lacks(self, hashes: Longs) -> Mask:
        """A mask of the winners that have to be written, given `_hash_a` of those that `meet` did not find.

        None has to where the rows that go are equal to those that would come: nothing is published for lineage alone.
        """
        others = np.flatnonzero(self._is_in_raw & ~self._is_wanted)
        held, first = np.unique(self._hashes[others], return_index=True)
        is_new: Mask = ~np.isin(hashes, held)
        self._is_wanted[others[first[np.isin(held, hashes)]]] = True
        if np.array_equal(np.sort(hashes[is_new]), np.sort(self._hashes[~self._is_wanted])):
            self._is_wanted[:] = True
            is_new[:] = False
        return is_new

    @property
    def is_wanted(self) -> Mask:
        """A mask of the held rows that stay, in the order given to the constructor."""
        found = np.empty_like(self._is_wanted)
        found[self._order] = self._is_wanted
        return found
