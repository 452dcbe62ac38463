"""Landing's objects of a dimension, without those that an operator excluded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.records import Exclusion, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Source
from pipeline_assets.formats.snapshot_lines import SnapshotPart, folder_of, parse_name

if TYPE_CHECKING:
    from resources.landing.bucket import Listed
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


_READ_BYTES = 1024**2
Exclusions = Mapping[str, tuple[Exclusion, ...]]


def exclusions_of_dimensions(ledger: Ledger) -> dict[str, tuple[Exclusion, ...]]:
    """Exclusions of objects of all dimensions."""
    return ledger.interventions.exclusions(Source.REGULAR, [ALL_PROJECTS], date.min, date.max)


def versions_of(exclusions: Mapping[str, Sequence[Exclusion]]) -> frozenset[tuple[str, str]]:
    """(object, etag) of each exclusion."""
    return frozenset((key, one.etag) for key, own in exclusions.items() for one in own)


def by_version(exclusions: Exclusions, entry: Listed) -> str | None:
    """Why a listed object is excluded, by its etag alone; None if it is not."""
    return next((one.reason for one in exclusions.get(entry.key, ()) if one.names(entry.etag, None)), None)


def by_bytes(
    exclusions: dict[str, tuple[Exclusion, ...]], landing: LandingStore, ledger: Ledger, run_id: str, entry: Listed
) -> str | None:
    """The same, also for excluded bytes under another etag, which are recorded and added to `exclusions`."""
    told, own = by_version(exclusions, entry), exclusions.get(entry.key, ())
    if told is not None or not any(one.sha256 is not None for one in own):
        return told
    try:
        sha256 = sha256_of(landing, entry.key, entry.etag)
    except TidemarkError:
        return None
    same = [one for one in own if one.sha256 == sha256]
    if not same:
        return None
    exclusions[entry.key] = (*own, replace(same[-1], etag=entry.etag))
    ledger.interventions.exclude(exclusions[entry.key][-1:], run_id)
    return same[-1].reason


def sha256_of(landing: LandingStore, key: str, etag: str) -> str:
    """The sha256 of an object's bytes; raises the errors of opening."""
    with landing.open(key, etag) as content:
        digest = hashlib.sha256()
        while part := content.read(_READ_BYTES):
            digest.update(part)
        return digest.hexdigest()


def is_ruled_out(exclusions: Exclusions | None, record: SliceRecord | None) -> bool:
    """Whether a published slice was read from an excluded version."""
    delivered = record.input_state.delivered if record is not None and record.input_state is not None else None
    if delivered is None or exclusions is None:
        return False
    key, etag, *_ = [*delivered.split(" "), "", ""]
    return any(one.names(etag, None) for one in exclusions.get(key, ()))


MOST_NAMED = 20


@dataclass(frozen=True)
class SnapshotListing:
    """Landing's objects of one dimension."""

    days: Mapping[date, SnapshotDelivery] = field(default_factory=dict)
    """Day -> its snapshot; days with only a marker are left out."""
    odd: tuple[str, ...] = ()
    excluded: Mapping[date, str] = field(default_factory=dict)
    """Day with an excluded object -> why; another object may remain."""
    exclusions: Exclusions = field(default_factory=dict)

    def days_within(self, first: date, last: date) -> list[date]:
        """Days that can be loaded, ascending; others do not show when the dimension began."""
        return sorted(day for day in self.days if first <= day <= last)


def list_snapshots(
    landing: LandingStore, dimension: str, why_excluded: Callable[[Listed], str | None] = lambda _: None
) -> SnapshotListing:
    """Every snapshot of a dimension that is not excluded; raises the errors of listing."""
    excluded: dict[date, str] = {}
    objects: dict[date, list[Listed]] = {}
    marked: set[date] = set()
    odd: list[str] = []
    for entry in landing.list_folder(folder_of(dimension)):
        if entry.key.endswith("/") and entry.size_bytes == 0:
            # A bucket's placeholder for a folder.
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
    """Log objects that are not loaded, by name up to a limit. `calendar`: first and last day that can be loaded."""
    within = set(listing.days_within(*calendar))
    beyond = [one.key for day, one in sorted(listing.days.items()) if day not in within]
    where = f"lies outside of the calendar ({calendar[0]} to {calendar[1]})"
    odd = [*(f"{text} is not loaded" for text in listing.odd), *(f"{key} {where} and is not loaded" for key in beyond)]
    log_some(odd, table, "objects are not loaded", log)


def log_some(lines: Sequence[str], table: str, others: str, log: Callable[[str], None]) -> None:
    """Log up to 20 lines about a table, and the number of the rest, which `others` describes."""
    for line in lines[:MOST_NAMED]:
        log(f"{table}: {line}")
    if len(lines) > MOST_NAMED:
        log(f"{table}: and {len(lines) - MOST_NAMED:,} more {others}")
