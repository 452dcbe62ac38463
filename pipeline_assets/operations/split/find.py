"""Find recovered objects of a project: by list, by time of upload, or by evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import IO, Protocol

from pipeline_assets.domain.errors import ObjectMovedError, UnreadableObjectError, UsageError
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.gzip_lines import BadObjectError, blocks, decompress
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.split.evidence import (
    Placed,
    Selection,
    by_evidence,
    by_list,
    by_upload,
    place,
    read_prefix,
)
from resources.landing.move import Mover, Upload
from resources.ledger.store import Ledger

MOST_EVENTS_A_DAY = 500_000
"""On days with more events, only those with the lowest hashes are compared: the same share of every object."""
_SHARE = 0.5
"""Shared events that make a double, as a share of the smaller object: the vendor repeats a few events, a recovery an hour."""
_LEAST_EVENTS = 3
"""The fewest shared events that count: in a quiet hour, one event repeated by the vendor may be half of an object."""
_HASHES = 1 << 64
_BLOCK_LINES, _BLOCK_BYTES = 4096, 4 * 1024**2


class ObjectReader(Protocol):
    """Reads the listed version of an object."""

    def open(self, key: str, etag: str) -> IO[bytes]:
        """A stream of its bytes, which the caller closes."""

    def sha256(self, upload: Upload) -> str:
        """The hash of its bytes."""


@dataclass
class Doubles:
    """The result of a comparison."""

    reasons: dict[Placed, str] = field(default_factory=dict)
    """Object -> which earlier object it repeats, in words."""
    unread: list[str] = field(default_factory=list)
    """Objects whose content could not be compared."""


def find_doubles(
    objects: Sequence[Placed],
    known: Collection[Placed],
    reader: ObjectReader,
    settings: Settings,
    say: Callable[[str], None],
) -> Doubles:
    """Compare each object with earlier uploads of the project; `known`: objects already identified as recovered.

    Bytes are compared within the whole prefix, events within an arrival day: an event's file hour is the hour of its upload,
    which a repeated export keeps. Doubles and known objects are compared with others, but never serve as originals, so the
    result does not depend on which doubles were moved already. Each object that shares its day is read once, and those that
    share their size twice; memory holds `MOST_EVENTS_A_DAY` numbers.
    """
    found = Doubles()
    sizes = Counter(placed.upload.size_bytes for placed in objects)
    kept_bytes: dict[str, Placed] = {}
    by_day: dict[date, list[Placed]] = defaultdict(list)
    for placed in objects:
        by_day[placed.arrival_date].append(placed)
    ordered = sorted((p for p in objects if sizes[p.upload.size_bytes] > 1), key=_by_upload)
    for placed in ordered:
        with _naming_unread(found, placed):
            sha256 = reader.sha256(placed.upload)
            first = kept_bytes.get(sha256, placed) if placed in known else kept_bytes.setdefault(sha256, placed)
            # Exports of silent hours all have the same bytes.
            if first is not placed and next(_events(reader, placed, settings), None) is not None:
                found.reasons[placed] = f"the same bytes as {first.upload.key}"
    for day, of_day in sorted(by_day.items()):
        compared = [p for p in sorted(of_day, key=_by_upload) if p not in found.reasons]
        if len(compared) > 1:
            say(f"comparing the events of {len(compared)} objects of {day}")
            _compare_day(compared, known, reader, settings, found)
    return found


def _compare_day(
    objects: Sequence[Placed], known: Collection[Placed], reader: ObjectReader, settings: Settings, found: Doubles
) -> None:
    owners: dict[int, int] = {}
    """Event -> the original object that holds it."""
    counts: Counter[int] = Counter()
    """Original object -> number of its compared events."""
    limit = _HASHES
    for position, placed in enumerate(objects):
        events: set[int] = set()
        with _naming_unread(found, placed):
            for number in _events(reader, placed, settings):
                if number < limit:
                    events.add(number)
                while len(owners) + len(events) > MOST_EVENTS_A_DAY:
                    limit //= 2
                    owners = {event: owner for event, owner in owners.items() if event < limit}
                    counts = Counter(owners.values())
                    events = {event for event in events if event < limit}
        shared = Counter(owners[event] for event in events if event in owners)
        best = max(shared, key=lambda kept: (shared[kept] / min(len(events), counts[kept]), -kept), default=None)
        least = _LEAST_EVENTS if best is None else max(_LEAST_EVENTS, _SHARE * min(len(events), counts[best]))
        if best is not None and shared[best] >= least:
            of_sample = "" if limit == _HASHES else " of a sample"
            held = f"{shared[best]:,} of its {len(events):,} events{of_sample} are among the {counts[best]:,}"
            found.reasons[placed] = f"{held} of {objects[best].upload.key}"
        if placed in found.reasons or placed in known:
            continue
        for event in events:
            owners.setdefault(event, position)
        counts = counts + Counter({position: len(events)})


def _events(reader: ObjectReader, placed: Placed, settings: Settings) -> Iterator[int]:
    with (
        reader.open(placed.upload.key, placed.upload.etag) as stored,
        decompress(stored, settings.max_object_bytes) as text,
    ):
        for block in blocks(text, _BLOCK_LINES, _BLOCK_BYTES, settings.max_line_bytes):
            for line in block.lines:
                if line and (number := EXPORT_FORMAT.event_number(line)) is not None:
                    yield number


def _by_upload(placed: Placed) -> tuple[object, ...]:
    return placed.upload.uploaded_at, placed.arrival_date, placed.hour, placed.upload.key


@contextmanager
def _naming_unread(found: Doubles, placed: Placed) -> Iterator[None]:
    """Record an unreadable object instead of comparing it; an unreachable landing still ends the comparison."""
    try:
        yield
    except (BadObjectError, UnreadableObjectError, ObjectMovedError):
        found.unread.append(placed.upload.key)


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
