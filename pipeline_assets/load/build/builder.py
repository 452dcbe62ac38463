"""What a kind of table answers with rows at hand: how its slices are built, compared and shown.

Contains: what every builder must answer.
Add here: another question that differs between kinds.
Does not contain: which kind has which builder (builders.py), and what a kind answers without rows (tables/kinds.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.build.audit import Build
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.build.step import StagedSlices, TablePlan
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TableT = TypeVar("TableT", bound=Table)


@dataclass(frozen=True)
class Proposal:
    """A slice as it would be built now, published nowhere."""

    rows: DataFrame
    published_near: DataFrame
    """event_date, project_id, `_key_a`, `_key_b` of the slices it may exchange rows with, as they are published."""
    proposed_near: DataFrame
    """The same as they would be built."""


class Builder(ABC, Generic[TableT]):
    """The builder of one table, as its kind builds tables."""

    def __init__(self, table: TableT) -> None:
        """Of a table of the kind."""
        self.table = table

    @abstractmethod
    def build(self, plan: TablePlan) -> Build:
        """Rows of `plan.to_build` from the pinned snapshots, and how they are audited once they are staged."""

    @abstractmethod
    def proposed(
        self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool
    ) -> AbstractContextManager[Proposal]:
        """A slice built without being staged. `heads`: snapshots of the table and of all that it is built from.

        `on_published`: from its upstream tables as they are published, where those are derived as well; else from what they
        would be. Rows are kept until the context ends.
        """

    @abstractmethod
    def rows_from(self, settings: Settings, key: Slice, inputs: Callable[[str], DataFrame]) -> DataFrame:
        """A slice's rows as these settings make them of these inputs; rows of other days may be among them.

        `inputs`: key of an upstream table -> its rows on all days that the slice is built from. Nothing is written, so a replay
        needs no more than files that are kept.
        """

    @abstractmethod
    def contents(self, rows: DataFrame) -> DataFrame:
        """event_date, project_id, `_key_a`, `_key_b`, `_hash_a`, `_hash_b` of the table's rows: what names each, what it says."""

    @abstractmethod
    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The table's rows plus `_key_a`, `_key_b` as `contents` has them."""

    @property
    @abstractmethod
    def naming_columns(self) -> tuple[str, ...]:
        """Columns that tell a person which row is shown."""

    def competing_rows(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """Rows that may win or lose against those of other days; asked of kinds whose slices exchange rows alone."""
        raise NotImplementedError(f"{self.table.kind.name} tables exchange no rows between days")

    def links(self, plan: TablePlan, staged: StagedSlices) -> set[tuple[Slice, Slice]]:  # noqa: ARG002 - most have none
        """Pairs of slices of which publishing one without the other would lose or double rows; none for most kinds."""
        return set()

    def key_changes(self, plan: TablePlan, staged: StagedSlices) -> dict[Slice, KeyChange]:  # noqa: ARG002 - most have none
        """Slice -> what becomes of its keys, of the bounded slices; none for kinds that bound measures alone."""
        return {}


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, computed once: they are counted, compared and sampled."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()
