"""The values that the steps of a rebuild hand over: what was decided, staged and judged.

Contains: one frozen value for each step.
Add here: a value that a later step needs.
Does not contain: the steps (rebuild.py, verdicts.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.build.audit import Audit
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.request import LoadRequest, Outcome
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.slice_difference import KeyDifference


@dataclass(frozen=True)
class TablePlan:
    """One attempt at one table: what it is built from, and what is done about each of its slices."""

    runtime: Runtime
    request: LoadRequest
    table: Table
    base_id: int
    """The table's own snapshot."""
    pins: Mapping[str, int]
    """Key of each upstream table -> its snapshot."""
    attempt: str
    slices: Sequence[SlicePlan]
    started_at: float
    competing: CompetingRows | None = None
    """Read before the build, where slices had to be compared with their neighbours."""
    is_whole: bool = False
    """Whether slices are written whole, and never as their difference from what the table's own snapshot holds."""
    built_beside: frozenset[Slice] | None = None
    """Slices that the staged snapshot holds as they are now, beside those to build: of all others it holds older states, and
    the table's own snapshot the present ones. None where it was staged on the table's own, so that it holds all."""

    exclusions: frozenset[tuple[str, str]] | None = None
    """As Changes keeps them."""

    @property
    def to_build(self) -> dict[Slice, SlicePlan]:
        """The slices that are built."""
        return {plan.key: plan for plan in self.slices if plan.todo is Todo.REBUILD}

    def states(self, staged_id: int, slices: Collection[Slice]) -> dict[int, frozenset[Slice]]:
        """Snapshot -> those of these slices that it holds as they are once what was staged is published."""
        wanted = frozenset(slices)
        if self.built_beside is None:
            return {staged_id: wanted}
        staged = wanted & (self.built_beside | self.to_build.keys())
        return {staged_id: staged, self.base_id: wanted - staged} if wanted - staged else {staged_id: staged}


@dataclass(frozen=True)
class StagedSlices:
    """The slices that were built, as they lie in a staged snapshot that nobody reads yet."""

    snapshot_id: int
    audits: Mapping[Slice, Audit]
    keys: Mapping[Slice, KeyDifference] = field(default_factory=dict)
    """What becomes of the keys of slices, where that is known without reading them."""


@dataclass(frozen=True)
class JudgedSlice:
    """What is recorded and reported of one slice."""

    record: SliceRecord
    outcome: Outcome
    is_changed: bool = False
    """Whether it is published: it passed, and its content is not what is published already."""
