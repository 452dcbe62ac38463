"""Find objects of a prefix that repeat an earlier one: with the same bytes, or with half of its events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Protocol

from pipeline_assets.domain.errors import ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats.gzip_lines import BadObjectError, blocks, decompress
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.split.prefix import Placed
from resources.landing.move import Upload

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
            if first is not placed and _holds_events(reader, placed, settings):
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
    for place, placed in enumerate(objects):
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
            owners.setdefault(event, place)
        counts = counts + Counter({place: len(events)})


def _events(reader: ObjectReader, placed: Placed, settings: Settings) -> Iterator[int]:
    with (
        reader.open(placed.upload.key, placed.upload.etag) as stored,
        decompress(stored, settings.max_object_bytes) as text,
    ):
        for block in blocks(text, _BLOCK_LINES, _BLOCK_BYTES, settings.max_line_bytes):
            for line in block.lines:
                if line and (number := EXPORT_FORMAT.event_number(line)) is not None:
                    yield number


def _holds_events(reader: ObjectReader, placed: Placed, settings: Settings) -> bool:
    """Whether the object holds any event: exports of silent hours all have the same bytes."""
    return next(_events(reader, placed, settings), None) is not None


def _by_upload(placed: Placed) -> tuple[object, ...]:
    return placed.upload.uploaded_at, placed.arrival_date, placed.hour, placed.upload.key


@contextmanager
def _naming_unread(found: Doubles, placed: Placed) -> Iterator[None]:
    """Record an unreadable object instead of comparing it; an unreachable landing still ends the comparison."""
    try:
        yield
    except (BadObjectError, UnreadableObjectError, ObjectMovedError):
        found.unread.append(placed.upload.key)
