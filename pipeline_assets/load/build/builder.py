"""The interface of a builder, and the values between the steps of a rebuild."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark.sql import Column, DataFrame

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.file_tasks import Place
from pipeline_assets.load.runtime import LoadRequest, Outcome, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, row_contents, with_keys, with_row_hashes
from pipeline_assets.transforms.keys import Contents, KeyDifference, named_contents
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class Audit:
    """The measurements of one staged slice."""

    digest: Digest
    measures: Mapping[str, float]
    figures: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]
    competing_digests: str | None = None
    """Digest of rows on other days that share a key with the slice; None without event keys."""
    is_on_two_days: bool = False
    """Whether it has duplicate keys, all shared with neighbouring days only."""


@dataclass(frozen=True)
class Build:
    """How to write slices to a branch, and to audit them there."""

    write: Callable[[str], None]
    """Replaces exactly the slices to build; takes the branch's name in SQL."""
    audit: Callable[[int], dict[Slice, Audit]]
    """Staged snapshot id -> one audit per slice to build, empty ones included."""
    release: Callable[[], object] = lambda: None
    keys: Mapping[Slice, KeyDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class TablePlan:
    """One attempt at one table: the pinned inputs, and the plan of each slice."""

    runtime: Runtime
    request: LoadRequest
    table: Table
    base_id: int
    pins: Mapping[str, int]
    attempt: str
    slices: Sequence[SlicePlan]
    started_at: float
    competing: CompetingRows | None = None
    is_whole: bool = False
    built_beside: frozenset[Slice] | None = None
    """Slices up to date in the staged snapshot beside those to build; None: all of them."""

    @property
    def to_build(self) -> dict[Slice, SlicePlan]:
        """The slices to build, with their plans."""
        return {plan.key: plan for plan in self.slices if plan.todo is Todo.REBUILD}

    def write(self, rows: DataFrame) -> Callable[[str], None]:
        """Writes these rows over the slices to build of a branch."""
        return lambda target: self.runtime.lakehouse.replace_slices(self.table, target, self.to_build.keys(), rows)

    def measured(
        self, snapshot_id: int, *figures: Column, marked: Callable[[DataFrame], DataFrame] = lambda rows: rows
    ) -> dict[Slice, dict[str, Any]]:
        """Slice -> figures of its staged rows, with `digest`, if it has rows; `marked` adds columns that the figures need."""
        staged = self.runtime.lakehouse.read(self.table, snapshot_id).where(slices_condition(self.table, self.to_build))
        hashed = with_row_hashes(marked(staged), self.table.content_columns).groupBy(*self.table.partition_columns)
        rows = [row.asDict() for row in hashed.agg(*digest_aggregates(), *figures).collect()]
        return {Slice(row[self.table.day_column], row["project_id"]): {**row, "digest": digest_of(row)} for row in rows}

    def states(self, staged_id: int, slices: Collection[Slice]) -> dict[int, frozenset[Slice]]:
        """Snapshot -> the slices to read from it for the state after publishing the staged slices."""
        wanted = frozenset(slices)
        if self.built_beside is None:
            return {staged_id: wanted}
        staged = wanted & (self.built_beside | self.to_build.keys())
        return {staged_id: staged, self.base_id: wanted - staged} if wanted - staged else {staged_id: staged}


@dataclass(frozen=True)
class StagedSlices:
    """The built slices in a staged snapshot that readers do not see yet."""

    snapshot_id: int
    audits: Mapping[Slice, Audit]
    keys: Mapping[Slice, KeyDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class JudgedSlice:
    """The record and the outcome of one slice."""

    record: SliceRecord
    outcome: Outcome
    is_changed: bool = False


TableT = TypeVar("TableT", bound=Table)


@dataclass(frozen=True)
class Proposal:
    """A slice as a build would give it now; neither staged nor published."""

    rows: DataFrame
    published_near: DataFrame
    """event_date, project_id, `_key_a`, `_key_b` of the published slices that it may exchange rows with."""
    proposed_near: DataFrame


@dataclass(frozen=True)
class Inputs:
    """The inputs of a slice: the rows of each upstream table on all days that it needs."""

    runtime: Runtime
    rows: Callable[[str], DataFrame]
    places: Callable[[str], Sequence[Place]]

    def __call__(self, table: str) -> DataFrame:
        """The rows of an upstream table."""
        return self.rows(table)


class Builder(ABC, Generic[TableT]):
    """Builds the slices of one table; each kind has a subclass."""

    def __init__(self, table: TableT) -> None:
        self.table = table

    @abstractmethod
    def build(self, plan: TablePlan) -> Build:
        """The rows of `plan.to_build` from the pinned snapshots, and their audit once they are staged."""

    @abstractmethod
    def rows_now(self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool) -> DataFrame:
        """The rows of a slice as `proposed` tells them."""

    @abstractmethod
    def rows_from(self, settings: Settings, key: Slice, inputs: Inputs) -> DataFrame:
        """The rows that these settings and inputs give for a slice, maybe with other days'; writes nothing."""

    @property
    @abstractmethod
    def naming_columns(self) -> tuple[str, ...]:
        """Columns by which a user recognizes a row; by default, keys are made from them."""

    @contextmanager
    def proposed(
        self, runtime: Runtime, key: Slice, heads: Mapping[str, int], *, on_published: bool
    ) -> Iterator[Proposal]:
        """Build a slice from these heads without staging it; rows are cached until the context ends.

        `on_published`: read derived upstream tables as published, or else build them from raw first.
        """
        with kept(self.rows_now(runtime, key, heads, on_published=on_published)) as rows:
            nowhere = self.contents(rows).limit(0).select("event_date", "project_id", "_key_a", "_key_b")
            yield Proposal(rows, nowhere, nowhere)

    def contents(self, rows: DataFrame) -> DataFrame:
        """event_date, project_id, `_key_a`, `_key_b`, `_hash_a`, `_hash_b`: the key and the content hash of each row."""
        return row_contents(rows, self.naming_columns, self.table.content_columns)

    def with_keys(self, rows: DataFrame) -> DataFrame:
        """The table's rows plus `_key_a`, `_key_b`, as in `contents`."""
        return with_keys(rows, self.naming_columns)

    @property
    def key_contents(self) -> Contents:
        """The form of `contents` for tasks."""
        types = {column.name: column.type for column in self.table.columns}
        names = (("project_id", *self.naming_columns), self.table.content_columns)
        return named_contents(*({name: types[name] for name in of_kind} for of_kind in names))

    def competing_rows(self, runtime: Runtime, pins: Mapping[str, int], slices: Collection[Slice]) -> CompetingRows:
        """Competing rows; only for kinds whose slices exchange rows."""
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
