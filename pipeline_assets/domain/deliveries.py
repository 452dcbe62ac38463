"""What landing holds: deliveries, markers, batches, and everything that is neither.

Contains: the frozen values that listing produces and the load path consumes.
Add here: facts about objects in landing.
Does not contain: the grammar of keys (formats/), listing and reading
(resources/landing/store.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from pipeline_assets.domain.slices import ALL_PROJECTS, Source

NOT_READABLE = "not_readable"
"""`error` of an object that is listed and cannot be read: nothing is known of its content, and every load tries again."""


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
    """Under what an exclusion names an object of a dimension, which belongs to no export: the day, and no project.

    The source says nothing there; it is one that every version of Tidemark can read back.
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
    """The exporter says an hour is complete; it may close an hour, never freezes it."""

    batch: BatchKey
    hour: int
    key: str


class Oddity(StrEnum):
    """Why an object below a project's prefix is neither delivery nor marker."""

    MERGED_IDS = "merged_ids"
    """The vendor's merged Amplitude IDs file, `-{org}_{date}_{hour}.json.gz`: known, not an event export."""
    UNKNOWN_NAME = "unknown_name"
    """The name does not follow the grammar."""
    WRONG_PREFIX = "wrong_prefix"
    """A well-formed name of another project or source than the folder it lies in."""
    LINK = "link"
    """A link that is not followed: it leads out of landing, to a folder, or nowhere."""
    UNLISTED = "unlisted"
    """A folder below a project's that cannot be listed; nothing in it would be a delivery."""


@dataclass(frozen=True, order=True)
class UnrecognizedObject:
    """An object that is listed and reported, never loaded."""

    key: str
    oddity: Oddity
    detail: str


@dataclass(frozen=True)
class Listing:
    """What landing holds for one source, a set of projects and a range of arrival days."""

    deliveries: tuple[Delivery, ...] = ()
    markers: tuple[Marker, ...] = ()
    odd_objects: tuple[UnrecognizedObject, ...] = ()
    arrival_days: dict[str, frozenset[date]] = field(default_factory=dict)
    """Project -> arrival days met of deliveries and markers under the source's prefix; among them the first, wherever it lies."""
    strays: tuple[Delivery, ...] = ()
    """Deliveries that arrived outside of the days that anybody will ask for; where these were named."""

    @classmethod
    def joined(cls, parts: Sequence[Listing]) -> Listing:
        """Listings of one source and range as one; no project may be in two of them."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            tuple(sorted(delivery for part in parts for delivery in part.deliveries)),
            tuple(sorted(marker for part in parts for marker in part.markers)),
            tuple(sorted(odd for part in parts for odd in part.odd_objects)),
            {project: days for part in parts for project, days in part.arrival_days.items()},
            tuple(sorted(stray for part in parts for stray in part.strays)),
        )
