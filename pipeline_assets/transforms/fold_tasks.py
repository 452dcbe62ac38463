"""Functions of the tasks that fold slices of refined.events: each slice in one task, or a large one in shares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, scale_of
from pipeline_assets.transforms.data_files import ARROW_TYPES, DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import exact_sum, hashes_of, longs
from pipeline_assets.transforms.file_rows import SliceFile, as_bytes, from_bytes, narrow_rows, opened
from pipeline_assets.transforms.fold import Folded, SliceFold, shares_of

_EXACT = Context(prec=80)


@dataclass(frozen=True)
class TableRows:
    """The form of a folded table's rows; picklable."""

    types: Mapping[str, str]
    """Column -> Spark type, in the table's order."""
    key_columns: tuple[str, ...]
    partition_columns: tuple[str, str]
    """Day and project."""
    write_order: tuple[str, ...]
    """Key columns."""

    @property
    def value_columns(self) -> tuple[str, ...]:
        """The columns that `Folded.rows` has values for, in its order."""
        return tuple(name for name in self.types if name not in (*self.partition_columns, *self.key_columns))

    def value(self, name: str, units: int) -> int | Decimal:
        """The value of a column or of a total of it; `units`: as in Folded."""
        kind = self.types.get(name, "bigint")
        return _EXACT.scaleb(Decimal(units), -scale_of(kind)) if kind.startswith("decimal(") else units

    def of(self, key: Slice, folded: Folded) -> pa.Table:
        """The rows of a slice, in the table's write order, nulls first."""
        places = [self.key_columns.index(name) for name in self.write_order]
        rows = sorted(folded.rows.items(), key=lambda row: [_rank(row[0][at]) for at in places])
        of_slice = zip(self.partition_columns, (key.event_date, key.project_id), strict=True)
        columns: dict[str, Any] = {name: [value] * len(rows) for name, value in of_slice}
        for at, name in enumerate(self.key_columns):
            columns[name] = [names[at] for names, _ in rows]
        for at, name in enumerate(self.value_columns):
            columns[name] = [self.value(name, values[at]) for _, values in rows]
        arrays = {name: pa.array(columns[name], ARROW_TYPES[kind]) for name, kind in self.types.items()}
        return pa.Table.from_pydict(arrays)


@dataclass(frozen=True)
class WrittenSlice:
    """The files of one slice of a table, what they hold, read from them, and what they should hold."""

    files: tuple[str, ...] = ()
    """As `data_files.data_file` describes them; none where the slice has no rows."""
    digest: Digest = EMPTY
    totals: Mapping[str, int | Decimal] = field(default_factory=dict)
    """Measure -> sum of the column of its name."""
    controls: Mapping[str, int | Decimal] = field(default_factory=dict)
    """As in Folded."""

    @property
    def paths(self) -> frozenset[str]:
        """The URLs of the files."""
        return frozenset(str(json.loads(file)["file-path"]) for file in self.files)


@dataclass(frozen=True)
class FoldedTable:
    """How the rows of one folded table become files; picklable."""

    rows: TableRows
    layout: FileLayout
    store: Store
    content: tuple[str, ...]
    """The columns that the digest covers."""
    measures: tuple[str, ...]

    def written(self, writer: DataFileWriter, key: Slice, folded: Folded) -> WrittenSlice:
        """Write the rows of a slice, read each file back, and measure it."""
        controls = {name: self.rows.value(name, units) for name, units in folded.controls.items()}
        if not folded.rows:
            return WrittenSlice(controls=controls)
        (batch,) = self.rows.of(key, folded).combine_chunks().to_batches()
        one = WrittenSlice((*writer.add(batch), *writer.finish()), controls=controls)
        held = pa.concat_tables([self._read_back(path) for path in sorted(one.paths)])
        halves = hashes_of(held, {name: self.rows.types[name] for name in self.content})
        sums = (exact_sum(longs(half)) for half in halves)
        totals = {
            name: self.rows.value(name, 0) if (total := _total(held[name])) is None else total for name in self.measures
        }
        return replace(one, digest=Digest(held.num_rows, *sums), totals=totals)

    def discard(self, one: WrittenSlice) -> None:
        """Try to delete files that no snapshot will refer to. Maintenance removes those that stay."""
        for path in one.paths:
            with suppress(TidemarkError, OSError):
                self.store.delete(self._name(path))

    def _read_back(self, path: str) -> pa.Table:
        with opened(self.store, self._name(path)) as file:
            return file.read(columns=list(self.rows.types))

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.store.url}/")


@dataclass(frozen=True)
class WritingSlices:
    """The function of a task: writes what slices fold to, for several tables."""

    tables: Mapping[str, FoldedTable]
    """By key."""

    def __call__(
        self, slices: Iterable[tuple[Slice, Mapping[str, Folded]]]
    ) -> list[tuple[Slice, dict[str, WrittenSlice]]]:
        """The slices, in their order, by table; raises TidemarkError where a file cannot be written or read."""
        writers = {name: DataFileWriter(table.layout, table.store) for name, table in self.tables.items()}
        with ExitStack() as stack:
            for writer in writers.values():
                stack.enter_context(writer)
            return [
                (
                    key,
                    {name: self.tables[name].written(writers[name], key, folded) for name, folded in by_table.items()},
                )
                for key, by_table in slices
            ]


def _rank(name: str | None) -> tuple[bool, bytes]:
    return name is not None, (name or "").encode()


def _total(column: pa.ChunkedArray) -> Any:
    """The exact sum; None without values."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.decimal256(60, column.type.scale))
    return pc.sum(column).as_py()


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
                    yield numbers[share], as_bytes(facts.filter(pa.array(places == share)))


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
