"""The values that the steps of a rebuild pass on: rows to stage, their audit, and decided, staged and judged slices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.request import LoadRequest, Outcome
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.keys import KeyDifference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from resources.iceberg.staging import FileChange


@dataclass(frozen=True)
class Audit:
    """The measurements of one staged slice."""

    digest: Digest
    measures: Mapping[str, float]
    """Figures that `change_is_explained` bounds."""
    figures: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]
    competing_digests: str | None = None
    """Digest of the rows on other days that share a key with the slice; None for tables without event keys."""
    is_on_two_days: bool = False
    """Whether it has duplicate keys, and all of them are shared with neighbouring days only."""


@dataclass(frozen=True)
class Build:
    """Rows to stage, and how to write and audit them."""

    rows: DataFrame | None
    """None if `write` writes them."""
    audit: Callable[[int], dict[Slice, Audit]]
    """Staged snapshot id -> one audit per slice to build, empty ones included."""
    release: Callable[[], object] = lambda: None
    """Frees what was cached between build and audit."""
    write: Callable[[], FileChange] | None = None
    """Writes the rows to files of the table without Spark's writer."""
    keys: dict[Slice, KeyDifference] = field(default_factory=dict)
    """Filled by `write`: how keys change in slices that it wrote as a difference."""


@dataclass(frozen=True)
class TablePlan:
    """One attempt at one table: the pinned inputs, and the plan of each slice."""

    runtime: Runtime
    request: LoadRequest
    table: Table
    base_id: int
    """The table's own pinned snapshot."""
    pins: Mapping[str, int]
    """Key of each upstream table -> its pinned snapshot."""
    attempt: str
    slices: Sequence[SlicePlan]
    started_at: float
    competing: CompetingRows | None = None
    """Competing rows read before the build, if slices had to be compared with their neighbours."""
    is_whole: bool = False
    """Whether all slices are written as a whole, never as a difference from the table's own snapshot."""
    built_beside: frozenset[Slice] | None = None
    """Slices with their present state in the staged snapshot, beside those to build. The present state of all others is in
    the table's own snapshot. None if it was staged on the table's own snapshot and so holds the present state of all."""

    exclusions: frozenset[tuple[str, str]] | None = None
    """As Changes keeps them."""

    @property
    def to_build(self) -> dict[Slice, SlicePlan]:
        """The slices to build, with their plans."""
        return {plan.key: plan for plan in self.slices if plan.todo is Todo.REBUILD}

    def states(self, staged_id: int, slices: Collection[Slice]) -> dict[int, frozenset[Slice]]:
        """Snapshot -> the slices to read from it for the state after publishing the staged slices."""
        wanted = frozenset(slices)
        if self.built_beside is None:
            return {staged_id: wanted}
        staged = wanted & (self.built_beside | self.to_build.keys())
        return {staged_id: staged, self.base_id: wanted - staged} if wanted - staged else {staged_id: staged}


@dataclass(frozen=True)
class StagedSlices:
    """The built slices in a staged snapshot, which is not visible to readers yet."""

    snapshot_id: int
    audits: Mapping[Slice, Audit]
    keys: Mapping[Slice, KeyDifference] = field(default_factory=dict)
    """How the keys of slices change, if that is known without reading them."""


@dataclass(frozen=True)
class JudgedSlice:
    """The record and the outcome of one slice."""

    record: SliceRecord
    outcome: Outcome
    is_changed: bool = False
    """Whether it is published: it passed, and its content differs from the published one."""
