"""Which objects of a regular prefix were recovered, and the evidence: rules over a listing, without reading contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
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


AFTER_MARKER = timedelta(hours=1)
"""A regular object is never this much later than its hour's marker: an exporter writes both within minutes."""
ORDINARY_DELAY = timedelta(hours=3)
"""A regular object comes within this time after the end of its hour; the vendor's exports are ready within two hours."""
_FEW = 50
"""A person can check this many objects; with more, upload times that speak against most of them are not believed."""


@dataclass(frozen=True, order=True)
class Recovered:
    """An object to be moved, and why."""

    placed: Placed
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """The selected objects, and messages for the operator."""

    recovered: tuple[Recovered, ...]
    refusals: tuple[UsageError, ...] = ()
    """Objects that the operator named but that cannot be moved."""
    notes: tuple[str, ...] = ()


def by_list(listing: PrefixListing, keys: Sequence[str], moved: Iterable[str]) -> Selection:
    """The objects that the operator names; `moved`: named objects that already lie under the backfill grammar."""
    known, done = listing.by_key, set(moved)
    recovered: list[Recovered] = []
    refusals: list[UsageError] = []
    for key in dict.fromkeys(keys):
        if key in known:
            recovered.append(Recovered(known[key], ("named in the list",)))
        elif key in listing.unrecognized:
            odd = listing.unrecognized[key]
            reason = f"is not moved: {odd.oddity.value}, {odd.detail}"
            refusals.append(UsageError(key, reason, "Rename it by the grammar, or take it off the list"))
        elif key not in done:
            reason = "is no object of the project's regular prefix and these days"
            refusals.append(UsageError(key, reason, "Copy its key as landing names it, or take it off the list"))
    notes = (f"{len(done)} of the list were moved before",) if done else ()
    return Selection(tuple(sorted(recovered)), tuple(refusals), notes)


def by_upload(listing: PrefixListing, after: datetime | None, before: datetime | None) -> Selection:
    """The objects uploaded in a time range, except those that came as promptly as regular ones."""
    recovered: list[Recovered] = []
    ordinary = 0
    for placed in (*listing.deliveries, *listing.misnamed):
        uploaded_at = placed.upload.uploaded_at
        if (after is not None and uploaded_at < after) or (before is not None and uploaded_at > before):
            continue
        delay = uploaded_at - placed.hour_ended_at
        if delay <= ORDINARY_DELAY and not placed.is_named_backfill:
            ordinary += 1
            continue
        told = f"uploaded {_told(uploaded_at)}, {_length(delay)} after its hour" if delay > timedelta(0) else "uploaded"
        recovered.append(Recovered(placed, (f"{told}, in the range that was named",)))
    hours = int(ORDINARY_DELAY.total_seconds() // 3600)
    came = f"{ordinary} objects of that range came within {hours} h of their hour"
    said = f"{came}, as regular ones do: they stay; --keys moves them"
    return Selection(tuple(sorted(recovered)), notes=(said,) if ordinary else ())


def by_evidence(listing: PrefixListing, doubles: Mapping[Placed, str], settings: Settings) -> Selection:
    """The objects whose name, upload time or content shows that they were recovered."""
    late = late_uploads(listing, settings)
    notes: tuple[str, ...] = ()
    if len(listing.deliveries) > _FEW and len(late) * 2 > len(listing.deliveries):
        notes = (
            f"{len(late):,} of {len(listing.deliveries):,} objects were written long after their hours: this landing was copied, "
            "so times of upload say nothing here; name the objects with --keys",
        )
        late = {}
    reasons: dict[Placed, tuple[str, ...]] = dict.fromkeys(listing.misnamed, ("named as a recovery",))
    for found in (late, doubles):
        for placed, reason in found.items():
            reasons[placed] = (*reasons.get(placed, ()), reason)
    return Selection(tuple(sorted(Recovered(placed, said) for placed, said in reasons.items())), notes=notes)


def late_uploads(listing: PrefixListing, settings: Settings) -> dict[Placed, str]:
    """Object -> how much later it came than its hour's marker or, without one, than its day's deadline, in words."""
    late: dict[Placed, str] = {}
    for placed in listing.deliveries:
        uploaded_at = placed.upload.uploaded_at
        marker = listing.markers.get((placed.arrival_date, placed.hour))
        if marker is not None:
            delay = uploaded_at - marker.upload.uploaded_at
            if delay > AFTER_MARKER:
                late[placed] = f"uploaded {_told(uploaded_at)}, {_length(delay)} after the marker of its hour"
        elif uploaded_at > (closed_at := deadline(placed.arrival_date, settings)):
            delay = uploaded_at - closed_at
            late[placed] = (
                f"uploaded {_told(uploaded_at)}, {_length(delay)} after the deadline of its day, which has no marker of its hour"
            )
    return late


def _told(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _length(delay: timedelta) -> str:
    hours = delay.total_seconds() / 3600
    if hours < 1:
        return f"{delay.total_seconds() / 60:.0f} min"
    return f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"
