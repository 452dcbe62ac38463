"""A rebuild: slices built again on a branch, reported, and swapped into main by an operator's decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, Self

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice

GREEN = "green"
"""Stands for the run id in the name of a rebuild's branch."""
NOT_REPORTED = "a report"
"""Entry of `blocked_by` for a slice that no report showed."""


class RebuildState(StrEnum):
    """The state of a rebuild."""

    BUILDING = "building"
    READY = "ready"
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    ABANDONED = "abandoned"
    UNDONE = "undone"
    """Main is back to its state before the swap, and held until an operator releases it."""

    @property
    def is_open(self) -> bool:
        """Whether its branches are still needed."""
        return self in (RebuildState.BUILDING, RebuildState.READY, RebuildState.SWAPPING)


@dataclass(frozen=True)
class RebuildRecord:
    """The ledger's record of one rebuild."""

    number: int
    tables: tuple[str, ...]
    first: date
    last: date
    projects: tuple[str, ...]
    reason: str
    who: str
    state: RebuildState
    run_id: str | None = None
    started_at: str = ""
    finished_at: str | None = None
    swap_after: int | None = None
    """Last publication before the swap; an undo returns to it."""
    swap_runs: tuple[str, ...] = ()
    answered_by: str | None = None
    answer: str | None = None
    """Reason that `answered_by` gave for the last swap, abandonment or undo."""

    @property
    def slices(self) -> frozenset[Slice]:
        """Every day of the range, for each project."""
        return frozenset(Slice(day, name) for day in days_between(self.first, self.last) for name in self.projects)

    @property
    def next_of_swap(self) -> str:
        """The command that completes a partial swap."""
        return f"complete it: tidemark rebuild swap {self.number}; or take it back: tidemark rebuild undo {self.number}"

    @property
    def title(self) -> str:
        """Number, tables and days."""
        return f"rebuild {self.number} of {', '.join(self.tables)}, {self.first} to {self.last}"

    @property
    def next_step(self) -> str:
        """The commands that its state allows."""
        return {
            RebuildState.BUILDING: "go on with it: tidemark rebuild start, with the same tables and days",
            RebuildState.READY: f"answer it: tidemark rebuild swap {self.number}, or tidemark rebuild abandon {self.number}",
            RebuildState.SWAPPING: self.next_of_swap,
            RebuildState.SWAPPED: f"take it back: tidemark rebuild undo {self.number}",
            RebuildState.ABANDONED: "main never saw it",
            RebuildState.UNDONE: "its days are held until somebody releases them: tidemark release",
        }[self.state]

    @property
    def told(self) -> str:
        """One line about it."""
        return f"{self.title}: {self.state.value}; {self.next_step}"

    def refused(self, reason: str, hint: str) -> UsageError:
        """The error that its state gives."""
        return UsageError(f"rebuild {self.number}", reason, hint)

    @property
    def branch(self) -> str:
        """The part of a branch's name that identifies this rebuild."""
        return f"{GREEN}_{self.number}"

    @property
    def acceptance(self) -> str:
        """Reason recorded with each publication of the swap: number, requester, reason."""
        return f"rebuild {self.number} by {self.who}: {self.reason}"

    def overlaps(self, other: RebuildRecord) -> bool:
        """Whether both rebuild a common slice of a common table."""
        is_apart = self.last < other.first or other.last < self.first
        return not is_apart and bool({*self.tables} & {*other.tables}) and bool({*self.projects} & {*other.projects})

    def is_same(self, other: RebuildRecord) -> bool:
        """Whether both rebuild exactly the same slices of the same tables."""
        places = [(set(one.tables), one.first, one.last, set(one.projects)) for one in (self, other)]
        return places[0] == places[1]


@dataclass(frozen=True)
class SliceDifference:
    """Published against rebuilt content of a slice."""

    rows: tuple[int, int]
    measures: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Measure -> (published, rebuilt); None = not on record."""
    keys: KeyChange | None = None
    """None where both hold the same rows, or the slice was not built."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for the ledger and for output."""
        one, keys = self.keys, None
        if one is not None:
            sides = {"only_rebuilt": one.added, "only_published": one.removed, "different": one.changed}
            keys = {"kept": one.kept, **{name: dict(causes) for name, causes in sides.items()}}
        measures = {name: list(values) for name, values in sorted(self.measures.items())}
        return {"rows": list(self.rows), "measures": measures, "keys": keys}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The inverse."""
        keys = body["keys"]
        return cls(
            (body["rows"][0], body["rows"][1]),
            {name: (old, new) for name, (old, new) in body["measures"].items()},
            keys and KeyChange(keys["kept"], keys["only_rebuilt"], keys["only_published"], keys["different"]),
        )


@dataclass(frozen=True)
class ReportedSlice:
    """A slice as the report showed it: a swap accepts this content."""

    digest: Digest
    figures: Mapping[str, float]
    goes: bool

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for the ledger."""
        return {"digest": str(self.digest), "figures": dict(self.figures), "goes": self.goes}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(Digest.parse(body["digest"]), body["figures"], body["goes"])


@dataclass(frozen=True)
class RebuiltSlice:
    """One slice of a rebuild."""

    record: SliceRecord
    """The record for main; `file_hash` names files on the green branch."""
    published: Digest = EMPTY
    """Main's content at the time of the comparison."""
    difference: SliceDifference | None = None
    blocked_by: tuple[str, ...] = ()
    """Slices outside the swap that this one depends on: it shares rows with them, or is built from them."""
    reported: ReportedSlice | None = None

    @property
    def key(self) -> Slice:
        """Day and project."""
        return self.record.key

    @property
    def is_built(self) -> bool:
        """Whether the green branch holds it."""
        return self.difference is not None

    @property
    def goes(self) -> bool:
        """Whether a swap includes it."""
        return self.is_built and self.record.verdict.is_good and not self.blocked_by

    @property
    def is_reported(self) -> bool:
        """Whether the report included it in the swap."""
        return self.reported is not None and self.reported.goes

    @property
    def is_changed(self) -> bool:
        """Whether its rows differ from main's."""
        return self.is_built and self.record.verdict.is_good and self.record.digest != self.published

    @property
    def why_not(self) -> str:
        """Why a swap leaves it out, or an empty text."""
        if self.goes:
            return ""
        if NOT_REPORTED in self.blocked_by:
            return "was not in the report; start the rebuild again to report it"
        if self.blocked_by:
            return f"cannot go without {', '.join(self.blocked_by)}, left out as well"
        return self.record.reason or self.record.verdict.value


def measure_texts(one: RebuiltSlice) -> list[str]:
    """`revenue 12 -> 15`, for each measure that differs."""

    def text(value: float | None) -> str:
        return "not known" if value is None else f"{value:,.12g}"

    values = one.difference.measures if one.difference is not None else {}
    return [f"{name} {text(old)} -> {text(new)}" for name, (old, new) in values.items() if old != new]
