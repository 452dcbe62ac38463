"""Slices, the hash of a row, digests and verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

ROW_HASH_VERSION = 3
"""Incremented when hashed columns or their encoding change; hashes of different versions cannot be compared.

A row's hash: 128 bits of SHA-256 over `version;numbers;texts`. A number per column: `-` for null, a text's length in
bytes, a double's bits, else the value. An event's hash covers the hash of its meaning and the columns of transport."""
NULL = "-"
NAN_BITS = 0x7FF8000000000000
MEANING = {"_meaning_a": "bigint", "_meaning_b": "bigint"}
"""Columns by which an event's hash covers its meaning -> Spark type."""


def is_text(kind: str) -> bool:
    """Whether a Spark type is hashed as text; raises ValueError for a type without encoding."""
    if kind.startswith("decimal("):
        # Arrow writes small decimals with more than six places with an exponent.
        if scale_of(kind) <= 6:
            return True
    elif kind in ("string", "binary"):
        return True
    elif kind in ("bigint", "int", "boolean", "date", "timestamp", "double"):
        return False
    msg = f"rows with a column of type {kind} have no hash"
    raise ValueError(msg)


def scale_of(kind: str) -> int:
    """The decimal places of a type such as `decimal(38,6)`."""
    return int(kind.rstrip(")").partition(",")[2])


_MASK = (1 << 128) - 1
UNMEASURABLE = 0
"""Version of digests that equal no sound rows': of a false stored hash, or a sum over several versions."""


@dataclass(frozen=True, order=True)
class Slice:
    """One project's rows of one event day (UTC) in one table: the unit of audit, publication and record."""

    event_date: date
    project_id: str

    def __str__(self) -> str:
        """Render as `2026-02-02/10001`."""
        return f"{self.event_date.isoformat()}/{self.project_id}"


ALL_PROJECTS = "all"
"""Stands for the project in slices of dimensions; real project ids are numbers."""


def widen(days: Iterable[date], by: int) -> set[date]:
    """The days, and `by` days before and after each."""
    return {day + timedelta(days=shift) for day in days for shift in range(-by, by + 1)}


def neighbourhood(slices: Iterable[Slice], days: int) -> set[Slice]:
    """The slices, and those of the same project at most `days` days away."""
    return {Slice(day, project) for project, own in days_by_project(slices).items() for day in widen(own, days)}


def days_by_project(slices: Iterable[Slice]) -> dict[str, set[date]]:
    """Project -> its days among these slices."""
    days: dict[str, set[date]] = {}
    for key in slices:
        days.setdefault(key.project_id, set()).add(key.event_date)
    return days


@dataclass(frozen=True)
class Digest:
    """Order-independent content hash: the number of rows and two sums, one per half of the rows' 128-bit hashes.

    Additive: the digest of a union is the sum of the digests. Sums wrap at 128 bits, which no table reaches. Digests of
    different hash versions are never equal, except that of no rows.
    """

    rows: int = 0
    sum_a: int = 0
    sum_b: int = 0
    version: int = ROW_HASH_VERSION

    def __post_init__(self) -> None:
        """Give the empty digest the current version."""
        if not (self.rows or self.sum_a or self.sum_b):
            object.__setattr__(self, "version", ROW_HASH_VERSION)

    def __add__(self, other: Digest) -> Digest:
        """Digest of the union of disjoint sets of rows; of different versions, one that equals no measured digest."""
        parts = [digest.version for digest in (self, other) if digest != Digest()]
        version = parts[0] if len(set(parts)) == 1 else UNMEASURABLE if parts else ROW_HASH_VERSION
        return Digest(self.rows + other.rows, self.sum_a + other.sum_a, self.sum_b + other.sum_b, version)

    def __str__(self) -> str:
        """Text for the ledger: `hversion:rows:hex:hex`; no rows are `0:0:0`, and version 1 has no prefix."""
        text = f"{self.rows}:{self.sum_a & _MASK:x}:{self.sum_b & _MASK:x}"
        return text if self.version == 1 or self == Digest() else f"h{self.version}:{text}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        """The inverse of `str`; raises ValueError for any other text."""
        *named, rows, sum_a, sum_b = text.split(":")
        version = int(named[0].removeprefix("h")) if named else 1
        return cls(int(rows), _signed(int(sum_a, 16)), _signed(int(sum_b, 16)), version)


def _signed(value: int) -> int:
    return value - (1 << 128) if value >> 127 else value


EMPTY = Digest()


class Verdict(StrEnum):
    """The result of the last run that evaluated a slice."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    """Inputs or recomputed content equal what is published; nothing was committed."""
    REFUSED = "refused"
    """A check failed on the staged content; the old state stays."""
    WAITING = "waiting"
    """An input is refused, held or not there yet; the old state stays."""
    HELD = "held"
    """An operator rolled it back and has not released it; the old state stays."""

    @property
    def is_good(self) -> bool:
        """Whether it is published or unchanged."""
        return self in (Verdict.PUBLISHED, Verdict.UNCHANGED)


class BatchVerdict(StrEnum):
    """The result of loading one batch."""

    ACCEPTED = "accepted"
    """Its rows are in raw, or nothing was delivered and nothing was required."""
    REFUSED = "refused"
    """`delivery_reconciles` failed; raw keeps what was accepted before."""
    WAITING = "waiting"
    MOVED = "moved"
    """Objects changed while they were read; nothing was loaded, and the next run tries again."""


class Source(StrEnum):
    """The two kinds of export; they are not combined before refinement (law 5)."""

    REGULAR = "regular"
    """The vendor's hourly export, below `{project}/`."""
    BACKFILL = "backfill"
    """Manual recoveries, below `{project}-backfill/`."""

    def prefix(self, project_id: str) -> str:
        """The top-level folder in landing of this source's objects of a project."""
        return project_id if self is Source.REGULAR else f"{project_id}-backfill"

    @property
    def other(self) -> Source:
        """The other kind."""
        return Source.BACKFILL if self is Source.REGULAR else Source.REGULAR
