"""One attempt at one derived table.

Contains: the state that building, judging and recording share.
Add here: a value two of them need.
Does not contain: doing it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resources.iceberg.swap import Publication
from resources.ledger.records import SliceRecord

from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.build.audit import Audit
from pipeline_assets.load.build.competing_rows import CompetingRows
from pipeline_assets.load.request import LoadRequest, Outcome
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.slice_difference import KeyDifference


@dataclass
class DerivedStep:
    """One attempt at one table."""

    runtime: Runtime
    request: LoadRequest
    table: Table
    base_id: int
    pins: Mapping[str, int]
    attempt: str
    decisions: Sequence[SlicePlan]
    started_at: float
    competing: CompetingRows | None = None
    """Read before the build, where slices had to be compared with their neighbours."""
    audits: dict[Slice, Audit] = field(default_factory=dict)
    keys: Mapping[Slice, KeyDifference] = field(default_factory=dict)
    """What becomes of the keys of slices, where that is known without reading them."""
    publication: Publication | None = None
    records: dict[Slice, SliceRecord] = field(default_factory=dict)
    outcomes: dict[Slice, Outcome] = field(default_factory=dict)
