"""A rebuild: slices computed anew beside main, reported, and swapped in once a person says so.

Contains: what is on record of a rebuild and of each of its slices, and what it would change.
Add here: another thing that a rebuild remembers.
Does not contain: columns and queries (resources/ledger/rebuilds.py), building, swapping and undoing
(operations/rebuild/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, Self

from pipeline_assets.domain.changes import KeyChange
from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice

GREEN = "green"
"""The first part of the name of a rebuild's branches, where those of runs have the run's id."""
NOT_REPORTED = "a report"
"""In place of what a slice cannot go without: nobody was shown that it goes."""


class RebuildState(StrEnum):
    """How far a rebuild is."""

    BUILDING = "building"
    """Slices of it are still to be computed; `start` goes on with it."""
    READY = "ready"
    """Its report is made: a person swaps it in or abandons it."""
    SWAPPING = "swapping"
    """A swap has begun; the same `swap` completes it."""
    SWAPPED = "swapped"
    """Main shows it."""
    ABANDONED = "abandoned"
    """Main never saw it."""
    UNDONE = "undone"
    """Main is what it was before the swap, held until it is released."""

    @property
    def is_open(self) -> bool:
        """Whether its branches are still needed."""
        return self in (RebuildState.BUILDING, RebuildState.READY, RebuildState.SWAPPING)


@dataclass(frozen=True)
class RebuildRecord:
    """What is on record of one rebuild."""

    number: int
    """What the shell calls it; given by the ledger."""
    tables: tuple[str, ...]
    """Keys, in topological order."""
    first: date
    last: date
    projects: tuple[str, ...]
    reason: str
    who: str
    """Who asked for it, as far as that is known."""
    state: RebuildState
    run_id: str | None = None
    """The run that works on it, or worked on it last."""
    started_at: str = ""
    finished_at: str | None = None
    """When it was swapped, abandoned or undone."""
    swap_after: int | None = None
    """The number of the last publication before its swap: what an undo goes back to. None before a swap began."""
    swap_runs: tuple[str, ...] = ()
    """The runs that swapped it in, more than one where the first was killed."""
    answered_by: str | None = None
    """Who swapped, abandoned or undid it last."""
    answer: str | None = None
    """Why."""

    @property
    def slices(self) -> frozenset[Slice]:
        """The days of each project."""
        return frozenset(Slice(day, name) for day in days_between(self.first, self.last) for name in self.projects)

    @property
    def branch(self) -> str:
        """The part of its branches' names that tells whose they are."""
        return f"{GREEN}_{self.number}"

    @property
    def acceptance(self) -> str:
        """Who says why, as it stays on record with each change."""
        return f"rebuild {self.number} by {self.who}: {self.reason}"

    def overlaps(self, other: RebuildRecord) -> bool:
        """Whether both are about the same slices of a table."""
        is_apart = self.last < other.first or other.last < self.first
        return not is_apart and bool({*self.tables} & {*other.tables}) and bool({*self.projects} & {*other.projects})

    def is_same(self, other: RebuildRecord) -> bool:
        """Whether both are about exactly the same slices of the same tables."""
        places = [(set(one.tables), one.first, one.last, set(one.projects)) for one in (self, other)]
        return places[0] == places[1]


@dataclass(frozen=True)
class SliceDifference:
    """What is published of a slice beside what a rebuild made of it."""

    rows: tuple[int, int]
    measures: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Measure -> published and rebuilt value; None where it is not on record, or no measure of that side."""
    keys: KeyChange | None = None
    """None where both hold the same rows, or the slice was not built."""

    def to_json(self) -> dict[str, Any]:
        """For the ledger, and for machines."""
        keys = self.keys
        return {
            "rows": list(self.rows),
            "measures": {name: list(values) for name, values in sorted(self.measures.items())},
            "keys": None
            if keys is None
            else {
                "kept": keys.kept,
                "only_rebuilt": dict(keys.added),
                "only_published": dict(keys.removed),
                "different": dict(keys.changed),
            },
        }

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
    """What the report said of a slice: what a person accepts by swapping."""

    digest: Digest
    figures: Mapping[str, float]
    goes: bool
    """Whether a swap was to take it."""

    def to_json(self) -> dict[str, Any]:
        """For the ledger."""
        return {"digest": str(self.digest), "figures": dict(self.figures), "goes": self.goes}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The inverse."""
        return cls(Digest.parse(body["digest"]), body["figures"], body["goes"])


@dataclass(frozen=True)
class RebuiltSlice:
    """One slice of a rebuild."""

    record: SliceRecord
    """What main would record of it; `file_hash` names its files in the green branch."""
    published: Digest = EMPTY
    """What main held when it was compared."""
    difference: SliceDifference | None = None
    """None where it was not built."""
    blocked_by: tuple[str, ...] = ()
    """What it shares rows with, or is built from, and what is left out; it is left out as well."""
    reported: ReportedSlice | None = None
    """None where no report was made since it was built first; written with a report alone."""

    @property
    def key(self) -> Slice:
        """Its day and project."""
        return self.record.key

    @property
    def is_built(self) -> bool:
        """Whether the green branch holds it."""
        return self.difference is not None

    @property
    def goes(self) -> bool:
        """Whether a swap takes it."""
        return self.is_built and self.record.verdict.is_good and not self.blocked_by

    @property
    def is_reported(self) -> bool:
        """Whether the report said that a swap takes it."""
        return self.reported is not None and self.reported.goes

    @property
    def is_changed(self) -> bool:
        """Whether it holds other rows than main did."""
        return self.is_built and self.record.verdict.is_good and self.record.digest != self.published

    @property
    def why_not(self) -> str:
        """Why a swap leaves it out; empty where it does not."""
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
