"""Find recovered objects of a project: by list, by time of upload, or by evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.split.doubles import find_doubles
from pipeline_assets.operations.split.evidence import Selection, by_evidence, by_list, by_upload
from pipeline_assets.operations.split.prefix import Placed, place, read_prefix
from resources.landing.move import Mover, Upload
from resources.ledger.store import Ledger

_NOWHEN = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Search:
    """The operator's request."""

    project_id: str
    keys: tuple[str, ...] | None = None
    """Exactly these objects; None for all."""
    uploaded_after: datetime | None = None
    uploaded_before: datetime | None = None
    """Aware; both inclusive."""
    first_day: date | None = None
    last_day: date | None = None
    """Arrival days, both inclusive."""


def find(search: Search, mover: Mover, settings: Settings, say: Callable[[str], None]) -> Selection:
    """The recovered objects; reads contents only where neither a list nor a time is given.

    Raises LandingAccessError and LandingUnavailableError where landing cannot be listed or read.
    """
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    folder = Source.REGULAR.prefix(search.project_id)
    listing = read_prefix(mover.uploads(folder), search.project_id, grammar, search.first_day, search.last_day)
    say(f"{folder}/ holds {len(listing.deliveries):,} deliveries and {len(listing.markers):,} markers of these days")
    if search.keys is not None:
        gone = [key for key in search.keys if key not in listing.by_key and key not in listing.unrecognized]
        return by_list(
            listing, search.keys, [key for key in gone if _was_moved(key, search.project_id, mover, grammar)]
        )
    if search.uploaded_after is not None or search.uploaded_before is not None:
        return by_upload(listing, search.uploaded_after, search.uploaded_before)
    late = by_evidence(listing, {}, settings)
    known = {one.placed for one in late.recovered}
    doubles = find_doubles(listing.deliveries, known, mover, settings, say)
    found = by_evidence(listing, doubles.reasons, settings)
    if not doubles.unread:
        return found
    told = f"{len(doubles.unread)} objects cannot be read and were compared with none: {few(doubles.unread)}"
    return replace(found, notes=(*found.notes, told))


def _was_moved(key: str, project_id: str, mover: Mover, grammar: ObjectKeys) -> bool:
    placed = place(Upload(key, "", 0, _NOWHEN), project_id, grammar)
    return isinstance(placed, Placed) and mover.find(placed.target_key) is not None


def excluded_keys(ledger: Ledger, project_id: str) -> frozenset[str]:
    """Keys of either prefix of which an operator excluded a version."""
    standing = ledger.interventions.all_exclusions([project_id])
    return frozenset(one.object_key for one in standing if one.lifted_at is None)


def parse_time(option: str, text: str) -> datetime:
    """An aware time from an ISO 8601 day or time, UTC by default; raises UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(option, f"{text!r} is no time", "Write 2026-02-02 or 2026-02-02T10:00, in UTC") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys of a list, one per line, without blank lines and lines that begin with `#`; raises UsageError if none is left."""
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise UsageError("--keys", "the list names no object", "Write one key a line, as landing names it")
    return keys
