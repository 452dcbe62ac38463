"""Find recovered objects of a project: by list, by time of upload, or by evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import IO, Protocol

from pipeline_assets.domain.days import Hour, deadline
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.errors import (
    LandingConflictError,
    ObjectMovedError,
    TidemarkError,
    UnreadableObjectError,
    UsageError,
)
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.gzip_lines import BadObjectError, blocks, decompress
from pipeline_assets.formats.registry import EXPORT_FORMAT
from resources.landing.move import Mover, Upload
from resources.ledger.store import Ledger


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


@dataclass(frozen=True)
class Relocation:
    """The result for one object."""

    recovered: Recovered
    refusal: TidemarkError | None = None
    """Why it was not moved; None where it was."""


def relocate(
    recovered: Sequence[Recovered],
    project_id: str,
    mover: Mover,
    grammar: ObjectKeys,
    excluded: Collection[str],
    is_claimed: Callable[[Hour], bool],
) -> Iterator[Relocation]:
    """Move objects of a project, hour by hour; yields the result for each.

    All objects of an hour are copied and compared. Then the hour's marker is written, so that a load that waits for markers
    finds whole hours. Then the sources are deleted. So a repetition only needs the remaining sources: a deleted source has
    a verified copy and a marker. If an object is refused, no source of its hour is deleted.

    `excluded`: keys of which an operator excluded a version. `is_claimed`: whether a recovery of an hour began and has not
    ended. Until its marker exists, such an hour stays, because the move's marker would call it complete.

    Raises LandingAccessError and LandingUnavailableError where landing as a whole refuses, and LedgerError where claims
    cannot be read; objects that were moved stay moved.
    """
    for (day, hour), of_hour in groupby(sorted(recovered), key=lambda one: (one.placed.arrival_date, one.placed.hour)):
        objects = list(of_hour)
        of_day, marker = Hour(day, hour), grammar.format_marker(BatchKey(Source.BACKFILL, project_id, day), hour)
        if _is_unfinished(of_day, marker, mover, is_claimed):
            yield from (Relocation(one, _claimed(one, project_id, of_day)) for one in objects)
            continue
        data = [one for one in objects if not one.placed.is_marker]
        markers = [one for one in objects if one.placed.is_marker]
        results = [_copied(one, mover, excluded) for one in data]
        if any(isinstance(copy, TidemarkError) for copy in results):
            # The sources stay, so that a repetition finds the hour and writes its marker.
            for one, copy in zip(data, results, strict=True):
                yield Relocation(one, copy if isinstance(copy, TidemarkError) else _waiting(one))
            yield from (Relocation(one, _waiting(one)) for one in markers)
            continue
        # Checked again, because a recovery may have begun during the copies, and before any marker is moved.
        if _is_unfinished(of_day, marker, mover, is_claimed):
            yield from (Relocation(one, _claimed(one, project_id, of_day)) for one in objects)
            continue
        results += [_copied(one, mover, excluded) for one in markers]
        mover.mark(marker)
        for one, copy in zip([*data, *markers], results, strict=True):
            yield Relocation(one, copy if isinstance(copy, TidemarkError) else _deleted(one, copy, mover))


def _is_unfinished(hour: Hour, marker: str, mover: Mover, is_claimed: Callable[[Hour], bool]) -> bool:
    """Whether a recovery may have written only a part of the hour; with a marker, it wrote all."""
    return is_claimed(hour) and mover.find(marker) is None


def _claimed(one: Recovered, project_id: str, hour: Hour) -> TidemarkError:
    reason = "stays where it is, because a recovery of its hour began and has not ended: a marker now would call the hour whole"
    hint = f"Run `tidemark recover --from {hour} --to {hour} --project {project_id}`, then this command again"
    return UsageError(one.placed.upload.key, reason, hint)


def _copied(one: Recovered, mover: Mover, excluded: Collection[str]) -> Upload | TidemarkError:
    source, target_key = one.placed.upload, one.placed.target_key
    if source.is_link:
        return UsageError(source.key, "is a link, and what it leads to would stay", "Move the file it leads to by hand")
    if source.key in excluded or target_key in excluded:
        reason = f"is excluded, or {target_key} is, and an exclusion names one key: the same bytes would count, or vanish, there"
        return UsageError(source.key, reason, "`tidemark include` it, move it, then exclude it by its new key")
    try:
        return mover.copy(source, target_key)
    except (LandingConflictError, ObjectMovedError, UnreadableObjectError) as error:
        return error


def _deleted(one: Recovered, copy: Upload, mover: Mover) -> TidemarkError | None:
    try:
        mover.delete(one.placed.upload, copy)
    except (ObjectMovedError, UnreadableObjectError) as error:
        return error
    return None


def _waiting(one: Recovered) -> TidemarkError:
    reason = "stays where it is, because another object of its hour could not be moved"
    return UsageError(one.placed.upload.key, reason, "Clear that one up, then run the command again")
