"""One attempt at one derived table.

Lives here: the state that building, judging and recording share. Put here: a value two of them need. Keep out: doing it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resources.lakehouse import Publication
from resources.ledger_records import SliceRecord

from pipeline_assets.domain.slices import Slice
from pipeline_assets.load_path.derived.build import Audit
from pipeline_assets.load_path.derived.contention import Contention
from pipeline_assets.load_path.request import LoadRequest, Outcome, Workbench
from pipeline_assets.load_path.standing import Decision
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.slice_difference import KeyDifference


@dataclass
class DerivedStep:
    """One attempt at one table."""

    bench: Workbench
    request: LoadRequest
    table: Table
    base_id: int
    pins: Mapping[str, int]
    attempt: str
    decisions: Sequence[Decision]
    started_at: float
    contention: Contention | None = None
    """Read before the build, where slices had to be compared with their neighbours."""
    audits: dict[Slice, Audit] = field(default_factory=dict)
    keys: Mapping[Slice, KeyDifference] = field(default_factory=dict)
    """What becomes of the keys of slices, where that is known without reading them."""
    publication: Publication | None = None
    records: dict[Slice, SliceRecord] = field(default_factory=dict)
    outcomes: dict[Slice, Outcome] = field(default_factory=dict)
