"""The tasks that fold slices of refined.events, a large one in shares, and write the results."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, scale_of
from pipeline_assets.transforms import file_rows
from pipeline_assets.transforms.data_files import ARROW_TYPES, DataFileWriter, FileLayout, Store
from pipeline_assets.transforms.event_hashes import exact_sum, hashes_of, longs
from pipeline_assets.transforms.fold import FACTS, Folded, SliceFold, columns_of, joined, shares_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXACT = Context(prec=80)
_BATCH_ROWS = 50_000
"""Rows that a task reads at a time; few, because it reads bags."""


@dataclass(frozen=True)
class TableRows:
    """The form of a folded table's rows; picklable."""

    types: Mapping[str, str]
    key_columns: tuple[str, ...]
    partition_columns: tuple[str, str]
    write_order: tuple[str, ...]

    def value(self, name: str, units: int) -> int | Decimal:
        """The value of a column or of its total; `units`: as in Folded."""
        kind = self.types.get(name, "bigint")
        return _EXACT.scaleb(Decimal(units), -scale_of(kind)) if kind.startswith("decimal(") else units

    def of(self, key: Slice, folded: Folded) -> pa.Table:
        """The rows of a slice, in the table's write order, nulls first."""
        places = [self.key_columns.index(name) for name in self.write_order]
        rows = sorted(folded.rows.items(), key=lambda row: [_rank(row[0][at]) for at in places])
        day, project = self.partition_columns
        columns: dict[str, Any] = {day: [key.event_date] * len(rows), project: [key.project_id] * len(rows)}
        columns |= {name: [names[at] for names, _ in rows] for at, name in enumerate(self.key_columns)}
        for at, name in enumerate(name for name in self.types if name not in columns):
            columns[name] = [self.value(name, values[at]) for _, values in rows]
        return pa.table({name: pa.array(columns[name], ARROW_TYPES[kind]) for name, kind in self.types.items()})


def _rank(name: str | None) -> tuple[bool, bytes]:
    return name is not None, (name or "").encode()


@dataclass(frozen=True)
class WrittenSlice:
    """The files of one slice of a table, with expected and actual content."""

    files: tuple[str, ...] = ()
    digest: Digest = EMPTY
    totals: Mapping[str, int | Decimal] = field(default_factory=dict)
    controls: Mapping[str, int | Decimal] = field(default_factory=dict)

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
    measures: tuple[str, ...]

    def written(self, writer: DataFileWriter, key: Slice, folded: Folded) -> WrittenSlice:
        """Write the rows of a slice, read each file back, and measure it."""
        controls = {name: self.rows.value(name, units) for name, units in folded.controls.items()}
        if not folded.rows:
            return WrittenSlice(controls=controls)
        (batch,) = self.rows.of(key, folded).combine_chunks().to_batches()
        one = WrittenSlice((*writer.add(batch), *writer.finish()), controls=controls)
        held = pa.concat_tables([self._read_back(path) for path in sorted(one.paths)])
        sums = (
            exact_sum(longs(half)) for half in hashes_of(held, {name: self.rows.types[name] for name in self.content})
        )
        totals = {name: _total(held[name]) for name in self.measures}
        known = {name: self.rows.value(name, 0) if total is None else total for name, total in totals.items()}
        return replace(one, digest=Digest(held.num_rows, *sums), totals=known)

    def discard(self, one: WrittenSlice) -> None:
        """Try to delete files that no snapshot will refer to; maintenance removes the rest."""
        for path in one.paths:
            with suppress(TidemarkError, OSError):
                self.store.delete(path.removeprefix(f"{self.store.url}/"))

    def _read_back(self, path: str) -> pa.Table:
        with file_rows.opened(self.store, path.removeprefix(f"{self.store.url}/")) as file:
            return file.read(columns=list(self.rows.types))


def _total(column: pa.ChunkedArray) -> Any:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.decimal256(60, column.type.scale))
    return pc.sum(column).as_py()


ByTable = dict[str, WrittenSlice]


def write_slices(
    tables: Mapping[str, FoldedTable], slices: Iterable[tuple[Slice, Mapping[str, Folded]]]
) -> list[tuple[Slice, ByTable]]:
    """Write folds of slices, by table: a task's work. Raises TidemarkError if a file cannot be written or read."""
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(DataFileWriter(table.layout, table.store)) for name, table in tables.items()
        }
        return [
            (key, {name: tables[name].written(writers[name], key, folded) for name, folded in by_table.items()})
            for key, by_table in slices
        ]


Read = Callable[[Iterable[file_rows.SliceFile]], Iterator[pa.Table]]


def read_facts(
    store: Store, fold: SliceFold, types: Mapping[str, str], files: Iterable[file_rows.SliceFile]
) -> Iterator[pa.Table]:
    """The facts in files of refined.events; `types`: column to read -> Spark type."""
    for file in files:
        yield from map(fold.narrow, file_rows.narrow_rows(store, file.path, types, _BATCH_ROWS))


def fold_slices(
    read: Read, fold: SliceFold, tables: Mapping[str, FoldedTable], slices: Sequence[Sequence[file_rows.SliceFile]]
) -> list[tuple[Slice, int, ByTable]]:
    """Fold whole slices and write them: a task's work. Returns the slices with their numbers of rows."""
    rows: list[int] = []

    def folded() -> Iterator[tuple[Slice, dict[str, Folded]]]:
        for files in slices:
            facts = list(read(files))
            rows.append(sum(map(len, facts)))
            yield files[0].key, fold.of(facts)

    return [(key, count, one) for (key, one), count in zip(write_slices(tables, folded()), rows, strict=True)]


def divide_facts(
    read: Read, shares: Mapping[Slice, range], files: Sequence[file_rows.SliceFile]
) -> Iterator[tuple[int, bytes]]:
    """Number of a share -> facts of some of its events (`as_bytes`); `shares`: slice -> their numbers."""
    for file in files:
        for facts in read([file]):
            for share, of_share in file_rows.by_number(facts, shares_of(facts, len(shares[file.key]))):
                yield shares[file.key][share], file_rows.as_bytes(of_share)


def fold_share(
    fold: SliceFold, slices: Sequence[Slice], number: int, told: Iterable[bytes]
) -> tuple[Slice, int, dict[str, Folded]]:
    """The slice of a share, its number of rows, and its fold by table: the collect step of an exchange."""
    facts = list(map(file_rows.from_bytes, told))
    return slices[number], sum(map(len, facts)), fold.of(facts)


_SHARE, _SHARES = "_share", 16
"""Shares of each slice that only Spark can read, so that no task holds the facts of a whole slice."""


def fold_events(events: DataFrame, fold: SliceFold) -> dict[Slice, dict[str, Folded]]:
    """Slice -> key of a table -> its fold, by one query over rows that only Spark can read; facts alone are shuffled."""
    at = {"event_date": "date", "project_id": "string"}
    facts = {name: kind for fact in fold.facts for name, kind in FACTS[fact].types.items()}
    schema = ", ".join(f"{name} {kind}" for name, kind in {**at, _SHARE: "bigint", **facts}.items())
    read = events.select(*dict.fromkeys((*at, *columns_of(fold.facts))))
    shared = read.mapInArrow(partial(_with_shares, fold, [*at, _SHARE, *facts]), schema)
    folding = partial(file_rows.reduced_batches, "", "event_date", facts, partial(_fold_of, fold))
    placed = shared.repartition(*at, _SHARE).sortWithinPartitions(*at).mapInArrow(folding, "result binary")
    found: dict[Slice, dict[str, Folded]] = {}
    for row in placed.collect():
        key, by_table = pickle.loads(row["result"])  # noqa: S301 - our own tasks wrote it
        found[key] = joined([found.get(key, {}), by_table])
    return found


def _with_shares(fold: SliceFold, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        facts = fold.narrow(rows)
        made = {
            _SHARE: pa.array(shares_of(facts, _SHARES)),
            **dict(zip(facts.column_names, facts.columns, strict=True)),
        }
        yield from pa.table({name: made[name] if name in made else rows[name] for name in names}).to_batches()


def _fold_of(fold: SliceFold, file: file_rows.SliceFile, facts: Iterator[pa.Table]) -> tuple[Slice, dict[str, Folded]]:
    return file.key, fold.of(list(facts))
