"""Which objects of a regular prefix were recovered, and the evidence: rules over a listing, without reading contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.operations.split.prefix import Placed, PrefixListing

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
