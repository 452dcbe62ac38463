"""The objects below a project's regular prefix, sorted by name, and the key of each as a recovery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from resources.landing.move import Upload


@dataclass(frozen=True, order=True)
class Placed:
    """One object whose name tells its hour."""

    arrival_date: date
    hour: int
    """UTC, 0 to 23."""
    is_marker: bool
    upload: Upload
    target_key: str
    """Its key under the backfill grammar."""
    is_named_backfill: bool = False
    """Whether it has a recovery's name among regular objects; no load reads it there."""

    @property
    def hour_ended_at(self) -> datetime:
        """The end of the hour in its name."""
        return datetime.combine(self.arrival_date, time(self.hour), UTC) + timedelta(hours=1)


@dataclass(frozen=True)
class PrefixListing:
    """A project's regular prefix, or some arrival days of it."""

    deliveries: tuple[Placed, ...]
    """Deliveries with regular names, by day and hour."""
    misnamed: tuple[Placed, ...]
    """Deliveries and markers with a recovery's name."""
    markers: Mapping[tuple[date, int], Placed]
    unrecognized: Mapping[str, UnrecognizedObject]
    """Key -> why it cannot be moved."""

    @property
    def by_key(self) -> dict[str, Placed]:
        """Key -> object, for all objects that can be moved."""
        return {placed.upload.key: placed for placed in (*self.deliveries, *self.misnamed, *self.markers.values())}


def read_prefix(
    uploads: Iterable[Upload],
    project_id: str,
    grammar: ObjectKeys,
    first: date | None = None,
    last: date | None = None,
) -> PrefixListing:
    """Sort a listing by the meaning of its keys; `first` and `last` bound the arrival days, both inclusive."""
    deliveries: list[Placed] = []
    misnamed: list[Placed] = []
    markers: dict[tuple[date, int], Placed] = {}
    unrecognized: dict[str, UnrecognizedObject] = {}
    for upload in uploads:
        placed = place(upload, project_id, grammar)
        if isinstance(placed, UnrecognizedObject):
            unrecognized[upload.key] = placed
        elif (first is None or placed.arrival_date >= first) and (last is None or placed.arrival_date <= last):
            if placed.is_named_backfill:
                misnamed.append(placed)
            elif placed.is_marker:
                markers[placed.arrival_date, placed.hour] = placed
            else:
                deliveries.append(placed)
    return PrefixListing(tuple(sorted(deliveries)), tuple(sorted(misnamed)), markers, unrecognized)


def place(upload: Upload, project_id: str, grammar: ObjectKeys) -> Placed | UnrecognizedObject:
    """Classify one object of the regular prefix by its key alone."""
    parsed = grammar.parse(Source.REGULAR, project_id, upload.key, upload.etag, upload.size_bytes)
    is_named_backfill = False
    if isinstance(parsed, UnrecognizedObject) and parsed.oddity is Oddity.WRONG_PREFIX:
        folder = Source.BACKFILL.prefix(project_id)
        name = upload.key.rpartition("/")[2]
        # Only this project's recoveries are recognized; names of other projects are not.
        if name.startswith(folder):
            there = grammar.parse(Source.BACKFILL, project_id, f"{folder}/{name}", upload.etag, upload.size_bytes)
            parsed, is_named_backfill = (there, True) if not isinstance(there, UnrecognizedObject) else (parsed, False)
    if isinstance(parsed, UnrecognizedObject):
        return parsed
    batch = BatchKey(Source.BACKFILL, project_id, parsed.batch.arrival_date)
    is_marker = isinstance(parsed, Marker)
    target_key = (
        grammar.format_delivery(batch, parsed.hour, parsed.shard)
        if isinstance(parsed, Delivery)
        else grammar.format_marker(batch, parsed.hour)
    )
    return Placed(batch.arrival_date, parsed.hour, is_marker, upload, target_key, is_named_backfill)
