"""Files of folded tables: a task writes the rows of slices, reads each file back, and measures what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.transforms.data_files import ARROW_TYPES, DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import whole
from pipeline_assets.transforms.fold import Folded
from pipeline_assets.transforms.longs import exact_sum, longs
from pipeline_assets.transforms.row_hash_arrow import Encoded

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
        return _EXACT.scaleb(Decimal(units), -_scale(kind)) if kind.startswith("decimal(") else units

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
    """The files of one slice, and what they hold, read from them."""

    key: Slice
    files: tuple[str, ...]
    """As `data_files.data_file` describes them."""
    digest: Digest
    totals: Mapping[str, int | Decimal]
    """Measure -> sum of the column of its name."""


@dataclass(frozen=True)
class WritingSlices:
    """The function of a task: writes the rows of slices to files of the table and measures these."""

    rows: TableRows
    layout: FileLayout
    store: Store
    content: tuple[str, ...]
    """The columns that the digest covers."""
    measures: tuple[str, ...]

    def __call__(self, slices: Sequence[tuple[Slice, Folded]]) -> list[WrittenSlice]:
        """The written slices, in their order; raises TidemarkError where a file cannot be written or read."""
        writer = DataFileWriter(self.layout, self.store)
        try:
            return [self._written(writer, key, folded) for key, folded in slices]
        except BaseException:
            writer.discard()
            raise

    def _written(self, writer: DataFileWriter, key: Slice, folded: Folded) -> WrittenSlice:
        (batch,) = self.rows.of(key, folded).combine_chunks().to_batches()
        files = (*writer.add(batch), *writer.finish())
        held = pa.concat_tables([self._read_back(path_of(file)) for file in files])
        columns = {name: whole(held[name]) for name in self.content}
        halves = Encoded(columns, {name: self.rows.types[name] for name in self.content}).hashes()
        sums = (exact_sum(longs(half)) for half in halves)
        totals = {
            name: self.rows.value(name, 0) if (total := _total(held[name])) is None else total for name in self.measures
        }
        return WrittenSlice(key, files, Digest(held.num_rows, *sums), totals)

    def _read_back(self, path: str) -> pa.Table:
        with self.store.open(path.removeprefix(f"{self.store.url}/")) as body:
            return pq.ParquetFile(pa.PythonFile(body, mode="r"), pre_buffer=False).read(columns=list(self.rows.types))


def _rank(name: str | None) -> tuple[bool, bytes]:
    return name is not None, (name or "").encode()


def path_of(file: str) -> str:
    """The URL of a file that `data_files.data_file` describes."""
    return str(json.loads(file)["file-path"])


def _scale(kind: str) -> int:
    return int(kind.rstrip(")").partition(",")[2])


def _total(column: pa.ChunkedArray) -> Any:
    """The exact sum; None without values."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.decimal256(60, column.type.scale))
    return pc.sum(column).as_py()

