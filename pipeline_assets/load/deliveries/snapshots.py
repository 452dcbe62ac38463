"""The snapshots of a dimension that landing holds, day by day."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.formats.snapshot_lines import SnapshotPart, folder_of, parse_name
from pipeline_assets.load.deliveries.snapshot_exclusions import Exclusions

if TYPE_CHECKING:
    from resources.landing.place import Listed
    from resources.landing.store import LandingStore

_MOST_NAMED = 20


@dataclass(frozen=True)
class SnapshotListing:
    """What landing holds of one dimension."""

    days: Mapping[date, SnapshotDelivery] = field(default_factory=dict)
    """Day -> its snapshot; a day of which there is but a marker is left out."""
    odd: tuple[str, ...] = ()
    """Objects that are no part of a snapshot."""
    excluded: Mapping[date, str] = field(default_factory=dict)
    """Day of which an operator excluded an object -> why; it may hold another one beside."""
    exclusions: Exclusions = field(default_factory=dict)
    """All that stood when landing was listed for a load."""

    def days_within(self, first: date, last: date) -> list[date]:
        """Those that can be loaded, ascending; a name outside of them says nothing of when the dimension began."""
        return sorted(day for day in self.days if first <= day <= last)


def list_snapshots(
    landing: LandingStore, dimension: str, why_excluded: Callable[[Listed], str | None] = lambda _: None
) -> SnapshotListing:
    """Every snapshot of a dimension but excluded ones; raises what listing raises.

    Two names a day: years of them are a few requests.
    """
    excluded: dict[date, str] = {}
    objects: dict[date, list[Listed]] = {}
    marked: set[date] = set()
    odd: list[str] = []
    for entry in landing.list_folder(folder_of(dimension)):
        if entry.key.endswith("/") and entry.size_bytes == 0:
            # A folder's placeholder in a bucket.
            continue
        named = None if entry.oddity else parse_name(dimension, entry.key)
        if named is None:
            odd.append(f"{entry.key} ({entry.oddity or 'is called neither DAY.csv, DAY.jsonl nor DAY_complete'})")
        elif named[1] is SnapshotPart.MARKER:
            marked.add(named[0])
        elif (reason := why_excluded(entry)) is not None:
            excluded[named[0]] = reason
        else:
            objects.setdefault(named[0], []).append(entry)
    days = {}
    for day, found in objects.items():
        one, *others = sorted(found)
        days[day] = SnapshotDelivery(
            one.key, one.etag, one.size_bytes, day in marked, tuple(f"{o.key} {o.etag}" for o in others)
        )
    return SnapshotListing(days, tuple(sorted(odd)), excluded)


def log_odd_objects(
    listing: SnapshotListing, table: str, calendar: tuple[date, date], log: Callable[[str], None]
) -> None:
    """Name what lies there and is not loaded; a folder of strangers is counted.

    `calendar`: the first and the last day that can be loaded.
    """
    within = set(listing.days_within(*calendar))
    beyond = [one.key for day, one in sorted(listing.days.items()) if day not in within]
    where = f"lies outside of the calendar ({calendar[0]} to {calendar[1]})"
    odd = [*(f"{text} is not loaded" for text in listing.odd), *(f"{key} {where} and is not loaded" for key in beyond)]
    for text in odd[:_MOST_NAMED]:
        log(f"{table}: {text}")
    if len(odd) > _MOST_NAMED:
        log(f"{table}: and {len(odd) - _MOST_NAMED:,} more objects are not loaded")
