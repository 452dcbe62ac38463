"""Find recovered objects among a project's regular ones, by list, upload time or evidence, and move them to backfill keys."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import IO, NamedTuple

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
from resources.failpoints import Failpoint, failpoint
from resources.landing.place import Listed
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

AFTER_MARKER = timedelta(hours=1)
"""A regular object is never this much later than its hour's marker: an exporter writes both within minutes."""
ORDINARY_DELAY = timedelta(hours=3)
"""A regular object comes within this time after its hour ends: the vendor exports within two hours."""
_FEW = 50
"""An operator can check this many objects; with more, late uploads of most of them count as a copied landing."""
_SHARE = 0.5
_LEAST_EVENTS = 3
"""In a quiet hour, one event that the vendor repeats may be half of an object, so fewer shared events do not count."""
_BLOCK_LINES, _BLOCK_BYTES = 4096, 4 * 1024**2
_READ_BYTES = 1024**2


@dataclass(frozen=True, order=True)
class Placed:
    """One object whose name gives its hour."""

    arrival_date: date
    hour: int
    is_marker: bool
    upload: Listed
    target_key: str
    is_named_backfill: bool = False
    """Whether a recovery's name lies among regular objects, where no load reads it."""


@dataclass(frozen=True)
class PrefixListing:
    """A project's regular prefix, or some arrival days of it."""

    deliveries: tuple[Placed, ...]
    misnamed: tuple[Placed, ...]
    markers: Mapping[tuple[date, int], Placed]
    unrecognized: Mapping[str, UnrecognizedObject]

    @property
    def by_key(self) -> dict[str, Placed]:
        """Key -> object, for all objects that can be moved."""
        return {placed.upload.key: placed for placed in (*self.deliveries, *self.misnamed, *self.markers.values())}


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
    notes: tuple[str, ...] = ()


class Relocation(NamedTuple):
    """The result for one object."""

    recovered: Recovered
    refusal: TidemarkError | None = None


@dataclass(frozen=True)
class Search:
    """The operator's request."""

    project_id: str
    keys: tuple[str, ...] | None = None
    uploaded_after: datetime | None = None
    uploaded_before: datetime | None = None
    """Aware; both inclusive."""
    first_day: date | None = None
    last_day: date | None = None
    """Arrival days, both inclusive."""


def find(search: Search, landing: LandingStore, settings: Settings, say: Callable[[str], None]) -> Selection:
    """The recovered objects; reads contents only where neither a list nor a time is given. Raises landing's errors."""
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    folder = Source.REGULAR.prefix(search.project_id)
    listing = read_prefix(landing.list_folder(folder), search.project_id, grammar, search.first_day, search.last_day)
    say(f"{folder}/ holds {len(listing.deliveries):,} deliveries and {len(listing.markers):,} markers of these days")
    if search.keys is not None:
        return _by_list(listing, search.keys, search.project_id, landing, grammar)
    if search.uploaded_after is not None or search.uploaded_before is not None:
        return _by_upload(listing, search.uploaded_after, search.uploaded_before)
    known = {one.placed for one in by_evidence(listing, {}, settings).recovered}
    doubles, unread = find_doubles(listing.deliveries, known, landing, settings, say)
    found = by_evidence(listing, doubles, settings)
    if not unread:
        return found
    note = f"{len(unread)} objects cannot be read and were compared with none: {few(unread)}"
    return replace(found, notes=(*found.notes, note))


def read_prefix(
    listed: Iterable[Listed],
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
    for upload in listed:
        if upload.oddity or upload.key.endswith("/"):
            continue
        placed = _placed(upload, project_id, grammar)
        if isinstance(placed, UnrecognizedObject):
            unrecognized[upload.key] = placed
        elif (first or date.min) <= placed.arrival_date <= (last or date.max):
            if placed.is_named_backfill:
                misnamed.append(placed)
            elif placed.is_marker:
                markers[placed.arrival_date, placed.hour] = placed
            else:
                deliveries.append(placed)
    return PrefixListing(tuple(sorted(deliveries)), tuple(sorted(misnamed)), markers, unrecognized)


def _placed(upload: Listed, project_id: str, grammar: ObjectKeys) -> Placed | UnrecognizedObject:
    parsed = grammar.parse(Source.REGULAR, project_id, upload.key, upload.etag, upload.size_bytes)
    is_named_backfill = False
    if isinstance(parsed, UnrecognizedObject) and parsed.oddity is Oddity.WRONG_PREFIX:
        folder, name = Source.BACKFILL.prefix(project_id), upload.key.rpartition("/")[2]
        if name.startswith(folder):
            there = grammar.parse(Source.BACKFILL, project_id, f"{folder}/{name}", upload.etag, upload.size_bytes)
            parsed, is_named_backfill = (there, True) if not isinstance(there, UnrecognizedObject) else (parsed, False)
    if isinstance(parsed, UnrecognizedObject):
        return parsed
    batch = BatchKey(Source.BACKFILL, project_id, parsed.batch.arrival_date)
    target_key = (
        grammar.format_delivery(batch, parsed.hour, parsed.shard)
        if isinstance(parsed, Delivery)
        else grammar.format_marker(batch, parsed.hour)
    )
    is_marker = isinstance(parsed, Marker)
    return Placed(batch.arrival_date, parsed.hour, is_marker, upload, target_key, is_named_backfill)


def _by_list(
    listing: PrefixListing, keys: Sequence[str], project_id: str, landing: LandingStore, grammar: ObjectKeys
) -> Selection:
    known, moved = listing.by_key, 0
    recovered: list[Recovered] = []
    refusals: list[UsageError] = []
    for key in dict.fromkeys(keys):
        if key in known:
            recovered.append(Recovered(known[key], ("named in the list",)))
            continue
        odd = listing.unrecognized.get(key)
        placed = _placed(Listed(key, "", 0), project_id, grammar)
        if odd is not None:
            reason = f"is not moved: {odd.oddity.value}, {odd.detail}"
            refusals.append(UsageError(key, reason, "Rename it by the grammar, or take it off the list"))
        elif isinstance(placed, Placed) and landing.find(placed.target_key) is not None:
            moved += 1
        else:
            reason = "is no object of the project's regular prefix and these days"
            refusals.append(UsageError(key, reason, "Copy its key as landing names it, or take it off the list"))
    notes = (f"{moved} of the list were moved before",) if moved else ()
    return Selection(tuple(sorted(recovered)), tuple(refusals), notes)


def _by_upload(listing: PrefixListing, after: datetime | None, before: datetime | None) -> Selection:
    recovered: list[Recovered] = []
    ordinary = 0
    for placed in (*listing.deliveries, *listing.misnamed):
        uploaded_at = placed.upload.uploaded_at
        if (after is not None and uploaded_at < after) or (before is not None and uploaded_at > before):
            continue
        delay = uploaded_at - datetime.combine(placed.arrival_date, time(placed.hour), UTC) - timedelta(hours=1)
        if delay <= ORDINARY_DELAY and not placed.is_named_backfill:
            ordinary += 1
            continue
        came = _came(uploaded_at, delay, "its hour") if delay > timedelta(0) else "uploaded"
        recovered.append(Recovered(placed, (f"{came}, in the range that was named",)))
    hours = ORDINARY_DELAY // timedelta(hours=1)
    note = (
        f"{ordinary} objects of that range came within {hours} h of their hour, as regular ones do: they stay; "
        "--keys moves them"
    )
    return Selection(tuple(sorted(recovered)), notes=(note,) if ordinary else ())


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
        uploaded_at, closed_at = placed.upload.uploaded_at, deadline(placed.arrival_date, settings)
        marker = listing.markers.get((placed.arrival_date, placed.hour))
        if marker is not None:
            delay = uploaded_at - marker.upload.uploaded_at
            if delay > AFTER_MARKER:
                late[placed] = _came(uploaded_at, delay, "the marker of its hour")
        elif uploaded_at > closed_at:
            late[placed] = _came(
                uploaded_at, uploaded_at - closed_at, "the deadline of its day, which has no marker of its hour"
            )
    return late


def _came(uploaded_at: datetime, delay: timedelta, after: str) -> str:
    hours = delay.total_seconds() / 3600
    length = f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"
    return f"uploaded {uploaded_at:%Y-%m-%d %H:%M UTC}, {length} after {after}"


def find_doubles(
    objects: Iterable[Placed],
    known: Collection[Placed],
    landing: LandingStore,
    settings: Settings,
    say: Callable[[str], None],
) -> tuple[dict[Placed, str], list[str]]:
    """Object -> the earlier upload of its hour that it repeats, in words; and the keys of objects that cannot be read.

    Doubles and `known` recovered objects never serve as originals, so the result does not depend on earlier moves. Memory holds a
    number for each event of one hour.
    """
    reasons: dict[Placed, str] = {}
    unread: list[str] = []
    for (day, hour), of_hour in groupby(sorted(objects), key=lambda one: (one.arrival_date, one.hour)):
        originals: dict[Placed, set[int]] = {}
        uploads = sorted(of_hour, key=lambda one: (one.upload.uploaded_at, one.upload.key))
        if len(uploads) > 1:
            say(f"comparing the events of {len(uploads)} objects of {day}, hour {hour}")
        for placed in uploads if len(uploads) > 1 else ():
            try:
                events = set(_events(landing, placed, settings))
            except (BadObjectError, UnreadableObjectError, ObjectMovedError):
                unread.append(placed.upload.key)
                continue
            shares = {one: (len(events & kept), min(len(events), len(kept))) for one, kept in originals.items()}
            doubled = [one for one, (count, of) in shares.items() if count >= max(_LEAST_EVENTS, _SHARE * of)]
            if doubled:
                best = max(doubled, key=lambda one: shares[one][0] / shares[one][1])
                held = f"{shares[best][0]:,} of its {len(events):,} events are among the {len(originals[best]):,}"
                reasons[placed] = f"{held} of {best.upload.key}"
            elif placed not in known:
                originals[placed] = events
    return reasons, unread


def _events(landing: LandingStore, placed: Placed, settings: Settings) -> Iterator[int]:
    with (
        landing.open(placed.upload.key, placed.upload.etag) as stored,
        decompress(stored, settings.max_object_bytes) as text,
    ):
        for block in blocks(text, _BLOCK_LINES, _BLOCK_BYTES, settings.max_line_bytes):
            for line in block.lines:
                if line and (number := EXPORT_FORMAT.event_number(line)) is not None:
                    yield number


def excluded_keys(ledger: Ledger, project_id: str) -> frozenset[str]:
    """Keys of either prefix of which an operator excluded a version."""
    return frozenset(
        one.object_key for one in ledger.interventions.all_exclusions([project_id]) if one.lifted_at is None
    )


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys of a list, one per line, without blank lines and lines that begin with `#`; raises UsageError if none is left."""
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise UsageError("--keys", "the list names no object", "Write one key a line, as landing names it")
    return keys


def relocate(
    recovered: Sequence[Recovered],
    project_id: str,
    landing: LandingStore,
    grammar: ObjectKeys,
    excluded: Collection[str],
    is_claimed: Callable[[Hour], bool],
) -> Iterator[Relocation]:
    """Move objects of a project, hour by hour; yields the result for each.

    Copy and compare all objects of an hour, write its marker, then delete the sources: loads find whole hours, and a repetition
    needs only the remaining sources. A refused object keeps all sources of its hour. `excluded`: keys with an excluded version.
    `is_claimed`: whether a recovery of an hour has not ended; such an hour stays until its marker exists. Raises
    LandingAccessError, LandingUnavailableError and LedgerError; moved objects stay moved.
    """
    for (day, hour), of_hour in groupby(sorted(recovered), key=lambda one: (one.placed.arrival_date, one.placed.hour)):
        objects = list(of_hour)
        at, marker = Hour(day, hour), grammar.format_marker(BatchKey(Source.BACKFILL, project_id, day), hour)
        copies: dict[Recovered, Listed | TidemarkError] = {}
        # A recovery may begin during the copies, so the claim is read again after the data.
        for of_kind in ([one for one in objects if one.placed.is_marker is kind] for kind in (False, True)):
            if is_claimed(at) and landing.find(marker) is None:
                copies = {one: _claimed(one, project_id, at) for one in objects}
                break
            copies |= {one: _copied(one, landing, excluded) for one in of_kind}
            if any(isinstance(copy, TidemarkError) and not one.placed.is_marker for one, copy in copies.items()):
                refused = {one: copy for one, copy in copies.items() if isinstance(copy, TidemarkError)}
                copies = {one: refused.get(one, _waiting(one)) for one in objects}
                break
        else:
            _mark(landing, marker)
        for one, copy in copies.items():
            yield Relocation(one, copy if isinstance(copy, TidemarkError) else _deleted(one, copy, landing))


def _claimed(one: Recovered, project_id: str, hour: Hour) -> TidemarkError:
    reason = "stays where it is, because a recovery of its hour began and has not ended: a marker now would call the hour whole"
    hint = f"Run `tidemark recover --from {hour} --to {hour} --project {project_id}`, then this command again"
    return UsageError(one.placed.upload.key, reason, hint)


def _waiting(one: Recovered) -> TidemarkError:
    reason = "stays where it is, because another object of its hour could not be moved"
    return UsageError(one.placed.upload.key, reason, "Clear that one up, then run the command again")


def _copied(one: Recovered, landing: LandingStore, excluded: Collection[str]) -> Listed | TidemarkError:
    """A copy that is equal byte for byte, made unless it exists; or why there is none."""
    source, target_key = one.placed.upload, one.placed.target_key
    if source.is_link:
        return UsageError(source.key, "is a link, and what it leads to would stay", "Move the file it leads to by hand")
    if source.key in excluded or target_key in excluded:
        reason = f"is excluded, or {target_key} is, and an exclusion names one key: the same bytes would count, or vanish, there"
        return UsageError(source.key, reason, "`tidemark include` it, move it, then exclude it by its new key")
    try:
        with landing.open(source.key, source.etag) as content:
            sha256, size = _hash(content), content.tell()
            content.seek(0)
            if landing.find(target_key) is None and landing.create(target_key, content):
                failpoint(Failpoint.AFTER_COPY, source.key)
        copy = landing.find(target_key)
        if copy is None:
            return ObjectMovedError(target_key, "was deleted while it was compared", "Run the same command again")
        with landing.open(target_key, copy.etag) as content:
            is_equal = (_hash(content), copy.size_bytes) == (sha256, size)
    except (ObjectMovedError, UnreadableObjectError) as error:
        return error
    if not is_equal:
        return LandingConflictError(
            source.key,
            f"{target_key} is there already with other bytes ({copy.size_bytes:,} instead of {size:,} bytes)",
            "Compare the two and delete the wrong one, or give one another number behind `#`; then run the command again",
        )
    failpoint(Failpoint.AFTER_VERIFY, source.key)
    return copy


def _mark(landing: LandingStore, marker: str) -> None:
    if landing.find(marker) is None and not landing.create(marker, io.BytesIO()) and landing.find(marker) is None:
        raise ObjectMovedError(marker, "was not written, so nothing was deleted", "Run the same command again")
    failpoint(Failpoint.AFTER_MARKER, marker)


def _deleted(one: Recovered, copy: Listed, landing: LandingStore) -> TidemarkError | None:
    source, again = one.placed.upload, "Run the same command again"
    try:
        if landing.find(copy.key) != copy:
            return ObjectMovedError(
                copy.key, "was changed or deleted after it was compared, so its source stays", again
            )
        if not landing.delete(source):
            reason = f"was overwritten after it was copied to {copy.key}, so it stays"
            return ObjectMovedError(source.key, reason, f"{again}, and compare the two")
    except UnreadableObjectError as error:
        return error
    failpoint(Failpoint.AFTER_DELETE, source.key)
    return None


def _hash(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := content.read(_READ_BYTES):
        digest.update(part)
    return digest.hexdigest()
