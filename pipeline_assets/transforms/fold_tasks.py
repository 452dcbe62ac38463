"""Functions of the tasks that fold slices of refined.events: each slice in one task, or a large one in shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.slices import Slice
from pipeline_assets.transforms.data_files import Store
from pipeline_assets.transforms.file_rows import SliceFile, narrow_rows
from pipeline_assets.transforms.fold import Folded, SliceFold, shares_of
from pipeline_assets.transforms.folded_files import WritingSlices, WrittenSlice
from pipeline_assets.transforms.refine_task import as_bytes, from_bytes

_BATCH_ROWS = 50_000
"""Rows of refined.events that a task reads at a time; fewer than of narrow columns, because it reads bags."""


@dataclass(frozen=True)
class Reading:
    """Reads what a fold counts from files of refined.events."""

    store: Store
    fold: SliceFold
    types: Mapping[str, str]
    """Column to read -> Spark type."""

    def facts(self, files: Iterable[SliceFile]) -> Iterator[pa.Table]:
        """The facts of all rows, in batches."""
        for file in files:
            for rows in narrow_rows(self.store, file.path, self.types, _BATCH_ROWS):
                yield self.fold.narrow(rows)


@dataclass(frozen=True)
class FoldingSlices:
    """The function of a task: folds slices, each from all its files, and writes what they fold to."""

    reading: Reading
    writing: WritingSlices

    def __call__(self, slices: Sequence[Sequence[SliceFile]]) -> list[tuple[Slice, int, dict[str, WrittenSlice]]]:
        """Slice, number of rows folded, and key of a table -> what was written."""
        rows: list[int] = []

        def folded() -> Iterator[tuple[Slice, dict[str, Folded]]]:
            for files in slices:
                facts = list(self.reading.facts(files))
                rows.append(sum(map(len, facts)))
                yield files[0].key, self.reading.fold.of(facts)

        written = self.writing(folded())
        return [(key, count, by_table) for (key, by_table), count in zip(written, rows, strict=True)]


@dataclass(frozen=True)
class DividingFiles:
    """The function of an exchange: number of a share -> facts of some of its events, as `as_bytes` has them."""

    reading: Reading
    shares: Mapping[Slice, range]
    """Slice -> the numbers of its shares."""

    def __call__(self, files: Sequence[SliceFile]) -> Iterator[tuple[int, bytes]]:
        """The facts of all rows of the files, each once."""
        for file in files:
            numbers = self.shares[file.key]
            for facts in self.reading.facts([file]):
                places = shares_of(facts, len(numbers))
                for share in np.unique(places).tolist():
                    yield numbers[share], as_bytes(facts.filter(pa.array(places == share))) or b""


@dataclass(frozen=True)
class FoldingShares:
    """Folds one share: what the exchange collects."""

    fold: SliceFold
    slices: Sequence[Slice]
    """The slice of each share."""

    def __call__(self, number: int, told: Iterable[bytes]) -> tuple[Slice, int, dict[str, Folded]]:
        """Its slice, number of rows folded, and key of a table -> its fold."""
        facts = list(map(from_bytes, told))
        return self.slices[number], sum(map(len, facts)), self.fold.of(facts)
