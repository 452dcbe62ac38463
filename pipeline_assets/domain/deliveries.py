"""The objects of landing: deliveries, markers, batches, and objects that are neither."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from pipeline_assets.domain.slices import ALL_PROJECTS, Source

NOT_READABLE = "not_readable"
"""`error` of an object that is listed but cannot be read: its content is unknown, and every load tries again."""


@dataclass(frozen=True, order=True)
class BatchKey:
    """The deliveries of one source and project that arrived on one UTC day: the unit of acceptance."""

    source: Source
    project_id: str
    arrival_date: date

    def __str__(self) -> str:
        """Render as `regular/10001/2026-02-02`."""
        return f"{self.source.value}/{self.project_id}/{self.arrival_date.isoformat()}"


def dimension_batch(day: date) -> BatchKey:
    """The batch under which an exclusion records an object of a dimension: its day, and no project.

    The source has no meaning there; it is a value that every version of Tidemark can read.
    """
    return BatchKey(Source.REGULAR, ALL_PROJECTS, day)


@dataclass(frozen=True, order=True)
class Delivery:
    """One version of one object in landing: the unit of parsing."""

    batch: BatchKey
    hour: int
    """UTC hour in the object's name, 0 to 23."""
    shard: int
    key: str
    """Full key below the landing root."""
    etag: str
    size_bytes: int


@dataclass(frozen=True, order=True)
class Marker:
    """The exporter's statement that an hour is complete; later objects of that hour are still loaded."""

    batch: BatchKey
    hour: int
    key: str


class Oddity(StrEnum):
    """Why an object below a project's prefix is neither a delivery nor a marker."""

    MERGED_IDS = "merged_ids"
    """The vendor's merged Amplitude IDs file, `-{org}_{date}_{hour}.json.gz`: known, not an event export."""
    UNKNOWN_NAME = "unknown_name"
    """The name does not follow the grammar."""
    WRONG_PREFIX = "wrong_prefix"
    """A well-formed name, but of another project or source than its folder."""
    LINK = "link"
    """A link that is not followed: it leads out of landing, to a folder, or nowhere."""
    UNLISTED = "unlisted"
    """A subfolder of a project's folder that cannot be listed; deliveries never lie in subfolders."""


@dataclass(frozen=True, order=True)
class UnrecognizedObject:
    """An object that is listed and reported but never loaded."""

    key: str
    oddity: Oddity
    detail: str
    batch: BatchKey | None = None
    """Set where the name begins as that of an hour with events, although no load can tell which object of it this is."""
    hour: int = 0


RENAME = "Give these objects the vendor's names (`#n.json.gz` behind the hour), or move them out of landing"


def unplaced_hours(
    odd_objects: Iterable[UnrecognizedObject], deliveries: Container[str]
) -> dict[BatchKey, dict[str, int]]:
    """Batch -> object -> hour, of objects that are an hour's by their names and cannot be placed: their hours are not complete.

    A name that only goes on after that of a delivery, such as a checksum's or an upload's, is none.
    """
    found: dict[BatchKey, dict[str, int]] = {}
    for odd in odd_objects:
        name, end, _ = odd.key.partition(".json.gz")
        if odd.batch is not None and f"{name}{end}" not in deliveries:
            found.setdefault(odd.batch, {})[odd.key] = odd.hour
    return found


@dataclass(frozen=True)
class Listing:
    """The objects of landing for one source, a set of projects and a range of arrival days."""

    deliveries: tuple[Delivery, ...] = ()
    markers: tuple[Marker, ...] = ()
    odd_objects: tuple[UnrecognizedObject, ...] = ()
    arrival_days: dict[str, frozenset[date]] = field(default_factory=dict)
    """Project -> arrival days of the deliveries and markers under the source's prefix; always includes the first one."""
    strays: tuple[Delivery, ...] = ()
    """Deliveries outside the days that any load will request; empty unless the caller named those days."""

    @classmethod
    def joined(cls, parts: Sequence[Listing]) -> Listing:
        """Several listings of one source and range as one; no project may be in two of them."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            tuple(sorted(delivery for part in parts for delivery in part.deliveries)),
            tuple(sorted(marker for part in parts for marker in part.markers)),
            tuple(sorted(odd for part in parts for odd in part.odd_objects)),
            {project: days for part in parts for project, days in part.arrival_days.items()},
            tuple(sorted(stray for part in parts for stray in part.strays)),
        )
