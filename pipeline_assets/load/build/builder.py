"""The interface of a builder: how slices of a kind of table are built, compared and shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark.sql import DataFrame

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.step import Build, StagedSlices, TablePlan
from pipeline_assets.load.file_tasks import Place
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.key_changes import row_contents, with_keys
from pipeline_assets.transforms.keys import Contents, NamedContents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TableT = TypeVar("TableT", bound=Table)


@dataclass(frozen=True)
class Proposal:
    """A slice as it would be built now; it is neither staged nor published."""

    rows: DataFrame
    published_near: DataFrame
    """event_date, project_id, `_key_a`, `_key_b` of the slices that it may exchange rows with, as published."""
    proposed_near: DataFrame
    """The same columns of the same slices, as they would be built."""


@dataclass(frozen=True)
class Inputs:
    """What a slice is built from: of each upstream table the rows on all days that the slice needs."""

    runtime: Runtime
    rows: Callable[[str], DataFrame]
    """Key of an upstream table -> its rows."""
    places: Callable[[str], Sequence[Place]]
    """Key of an upstream table -> where tasks find the same rows."""

    def __call__(self, table: str) -> DataFrame:
        """The rows of an upstream table."""
        return self.rows(table)


class Builder(ABC, Generic[TableT]):
    """Builds the slices of one table; each kind has a subclass."""

    def __init__(self, table: TableT) -> None:
        """`table` must be of the builder's kind."""
        self.table = table

    @abstractmethod
    def build(self, plan: TablePlan) -> Build:
        """The rows of `plan.to_build` from the pinned snapshots, and their audit once they are staged."""

    @abstractmethod
    def proposed(
        self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool
    ) -> AbstractContextManager[Proposal]:
        """Build a slice without staging it. `heads`: snapshots of the table and of its upstream tables.

        `on_published`: whether derived upstream tables are read as published; otherwise they are built from raw first. The rows
        are cached until the context ends.
        """

    @abstractmethod
    def rows_from(self, settings: Settings, key: Slice, inputs: Inputs) -> DataFrame:
        """The rows that these settings produce from these inputs for a slice; rows of other days may be included.

        Nothing is written, so a replay needs only files that still exist.
        """

    @abstractmethod
    def contents(self, rows: DataFrame) -> DataFrame:
        """event_date, project_id, `_key_a`, `_key_b`, `_hash_a`, `_hash_b`: the key and the content hash of each row."""

    @abstractmethod
    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The table's rows plus `_key_a`, `_key_b`, as in `contents`."""

    @property
    @abstractmethod
    def key_contents(self) -> Contents:
        """What tasks read as `contents`."""

    @property
    @abstractmethod
    def naming_columns(self) -> tuple[str, ...]:
        """Columns by which a user recognizes a row."""

    def competing_rows(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """Rows that compete with rows of other days; called only for kinds whose slices exchange rows."""
        raise NotImplementedError(f"{self.table.kind.name} tables exchange no rows between days")

    def links(self, plan: TablePlan, staged: StagedSlices) -> set[tuple[Slice, Slice]]:  # noqa: ARG002 - most have none
        """Pairs of slices that must be published together, or rows would be lost or doubled; none for most kinds."""
        return set()

    def key_changes(self, plan: TablePlan, staged: StagedSlices) -> dict[Slice, KeyChange]:  # noqa: ARG002 - most have none
        """Bounded slice -> how its keys change; empty for kinds that bound only measures."""
        return {}


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, cached because they are counted, compared and sampled."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


class NamedRowsBuilder(Builder[TableT], ABC):
    """A builder that derives keys and contents of rows from `naming_columns`."""

    def contents(self, rows: DataFrame) -> DataFrame:
        """Keys from the naming columns; hashes over all content columns."""
        return row_contents(rows, self.naming_columns, self.table.content_columns)

    @property
    def key_contents(self) -> Contents:
        """The same, by tasks."""
        types = {column.name: column.type for column in self.table.columns}
        names = (("project_id", *self.naming_columns), self.table.content_columns)
        return NamedContents(*({name: types[name] for name in of_kind} for of_kind in names))

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The rows plus keys from the naming columns."""
        return with_keys(rows, self.naming_columns)

    @contextmanager
    def alone(self, rows: DataFrame) -> Iterator[Proposal]:
        """A proposal without neighbours, because no other slice exchanges rows with it."""
        with kept(rows) as built:
            nowhere = self.contents(built).limit(0).select("event_date", "project_id", "_key_a", "_key_b")
            yield Proposal(built, nowhere, nowhere)
