"""Find recovered objects among a project's regular ones, by list, upload time or evidence, and move them to backfill keys."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import IO

from pipeline_assets.domain import errors
from pipeline_assets.domain.days import Hour, deadline
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.gzip_lines import BadObjectError, blocks, decompress
from pipeline_assets.formats.registry import EXPORT_FORMAT
from resources.failpoints import Failpoint, failpoint
from resources.landing.bucket import Listed
from resources.landing.store import LandingStore

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
    """One object of a project's regular prefix whose name gives its hour."""

    arrival_date: date
    hour: int
    is_marker: bool
    upload: Listed
    target_key: str
    is_named_backfill: bool = False
    """Whether a recovery's name lies among regular objects, where no load reads it."""
    evidence: tuple[str, ...] = ()
    """Why it is to be moved."""


@dataclass(frozen=True)
class Selection:
    """The objects to move, and messages for the operator."""

    recovered: tuple[Placed, ...]
    refusals: tuple[errors.UsageError, ...] = ()
    notes: tuple[str, ...] = ()


def find(
    project_id: str,
    landing: LandingStore,
    settings: Settings,
    say: Callable[[str], None],
    *,
    keys: Sequence[str] | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    first: date | None = None,
    last: date | None = None,
) -> Selection:
    """The recovered objects, by these keys, by the (aware) time of upload, or else by evidence, for which contents are read.

    `first`, `last`: arrival days. All bounds are inclusive. Raises landing's errors.
    """
    grammar, folder = EXPORT_FORMAT.keys(settings.marker_pattern), Source.REGULAR.prefix(project_id)
    objects, unrecognized = read_prefix(landing.list_folder(folder), project_id, grammar, first, last)
    regular = [one for one in objects if not one.is_named_backfill]
    markers = sum(one.is_marker for one in regular)
    say(f"{folder}/ holds {len(regular) - markers:,} deliveries and {markers:,} markers of these days")
    if keys is not None:
        return _by_list(objects, unrecognized, keys, project_id, landing, grammar)
    if after is not None or before is not None:
        return _by_upload(objects, after, before)
    known = {one.upload.key for one in by_evidence(objects, {}, settings).recovered}
    doubles, unread = find_doubles(objects, known, landing, settings, say)
    found = by_evidence(objects, doubles, settings)
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
) -> tuple[list[Placed], dict[str, UnrecognizedObject]]:
    """Objects of these arrival days, both inclusive, ascending; and the objects whose names give no hour, by key."""
    objects: list[Placed] = []
    unrecognized: dict[str, UnrecognizedObject] = {}
    for upload in listed:
        if upload.oddity or upload.key.endswith("/"):
            continue
        placed = _placed(upload, project_id, grammar)
        if isinstance(placed, UnrecognizedObject):
            unrecognized[upload.key] = placed
        elif (first or date.min) <= placed.arrival_date <= (last or date.max):
            objects.append(placed)
    return sorted(objects), unrecognized


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
    batch, hour = BatchKey(Source.BACKFILL, project_id, parsed.batch.arrival_date), parsed.hour
    if isinstance(parsed, Delivery):
        target_key = grammar.format_delivery(batch, hour, parsed.shard)
    else:
        target_key = grammar.format_marker(batch, hour)
    return Placed(batch.arrival_date, hour, isinstance(parsed, Marker), upload, target_key, is_named_backfill)


def _by_list(
    objects: Iterable[Placed],
    unrecognized: Mapping[str, UnrecognizedObject],
    keys: Sequence[str],
    project_id: str,
    landing: LandingStore,
    grammar: ObjectKeys,
) -> Selection:
    known, moved = {one.upload.key: one for one in objects}, 0
    recovered: list[Placed] = []
    refusals: list[errors.UsageError] = []
    for key in dict.fromkeys(keys):
        odd, placed = unrecognized.get(key), _placed(Listed(key, "", 0), project_id, grammar)
        if key in known:
            recovered.append(replace(known[key], evidence=("named in the list",)))
        elif odd is not None:
            reason = f"is not moved: {odd.oddity.value}, {odd.detail}"
            refusals.append(errors.UsageError(key, reason, "Rename it by the grammar, or take it off the list"))
        elif isinstance(placed, Placed) and landing.find(placed.target_key) is not None:
            moved += 1
        else:
            reason = "is no object of the project's regular prefix and these days"
            refusals.append(errors.UsageError(key, reason, "Copy its key as landing names it, or take it off the list"))
    notes = (f"{moved} of the list were moved before",) if moved else ()
    return Selection(tuple(sorted(recovered)), tuple(refusals), notes)


def _by_upload(objects: Iterable[Placed], after: datetime | None, before: datetime | None) -> Selection:
    recovered: list[Placed] = []
    ordinary = 0
    for placed in (one for one in objects if one.is_named_backfill or not one.is_marker):
        uploaded_at = placed.upload.uploaded_at
        if (after is not None and uploaded_at < after) or (before is not None and uploaded_at > before):
            continue
        delay = uploaded_at - Hour(placed.arrival_date, placed.hour).end
        if delay <= ORDINARY_DELAY and not placed.is_named_backfill:
            ordinary += 1
            continue
        came = _came(uploaded_at, delay, "its hour") if delay > timedelta(0) else "uploaded"
        recovered.append(replace(placed, evidence=(f"{came}, in the range that was named",)))
    note = (
        f"{ordinary} objects of that range came within {ORDINARY_DELAY // timedelta(hours=1)} h of their hour, as regular "
        "ones do: they stay; --keys moves them"
    )
    return Selection(tuple(recovered), notes=(note,) if ordinary else ())


def by_evidence(objects: Sequence[Placed], doubles: Mapping[Placed, str], settings: Settings) -> Selection:
    """The objects whose name, upload time or content shows that they were recovered."""
    late = late_uploads(objects, settings)
    count = sum(not one.is_marker and not one.is_named_backfill for one in objects)
    notes: tuple[str, ...] = ()
    if count > _FEW and len(late) * 2 > count:
        notes = (
            f"{len(late):,} of {count:,} objects were written long after their hours: this landing was copied, "
            "so times of upload say nothing here; name the objects with --keys",
        )
        late = {}
    named = {one: "named as a recovery" for one in objects if one.is_named_backfill}
    every = [(one, tuple(by[one] for by in (named, late, doubles) if one in by)) for one in objects]
    return Selection(tuple(replace(one, evidence=evidence) for one, evidence in every if evidence), notes=notes)


def late_uploads(objects: Sequence[Placed], settings: Settings) -> dict[Placed, str]:
    """Object -> how much later it came than its hour's marker or, without one, than its day's deadline, in words."""
    late: dict[Placed, str] = {}
    regular = [one for one in objects if not one.is_named_backfill]
    markers = {(one.arrival_date, one.hour): one.upload.uploaded_at for one in regular if one.is_marker}
    for placed in (one for one in regular if not one.is_marker):
        uploaded_at, marked_at = placed.upload.uploaded_at, markers.get((placed.arrival_date, placed.hour))
        since, than = (
            deadline(placed.arrival_date, settings),
            "the deadline of its day, which has no marker of its hour",
        )
        if marked_at is not None:
            since, than = marked_at, "the marker of its hour"
        if uploaded_at - since > (timedelta(0) if marked_at is None else AFTER_MARKER):
            late[placed] = _came(uploaded_at, uploaded_at - since, than)
    return late


def _came(uploaded_at: datetime, delay: timedelta, after: str) -> str:
    hours = delay.total_seconds() / 3600
    length = f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"
    return f"uploaded {uploaded_at:%Y-%m-%d %H:%M UTC}, {length} after {after}"


def find_doubles(
    objects: Iterable[Placed],
    known: Collection[str],
    landing: LandingStore,
    settings: Settings,
    say: Callable[[str], None],
) -> tuple[dict[Placed, str], list[str]]:
    """Object -> the earlier upload of its hour that it repeats, in words; and the keys of objects that cannot be read.

    Doubles and recovered objects (`known` keys) never serve as originals, so the result does not depend on earlier moves.
    Memory holds a number for each event of one hour.
    """
    reasons: dict[Placed, str] = {}
    unread: list[str] = []
    regular = sorted(one for one in objects if not one.is_marker and not one.is_named_backfill)
    for (day, hour), of_hour in groupby(regular, key=lambda one: (one.arrival_date, one.hour)):
        originals: dict[Placed, set[int]] = {}
        uploads = sorted(of_hour, key=lambda one: (one.upload.uploaded_at, one.upload.key))
        if len(uploads) > 1:
            say(f"comparing the events of {len(uploads)} objects of {day}, hour {hour}")
        for placed in uploads if len(uploads) > 1 else ():
            try:
                events = set(_events(landing, placed, settings))
            except (BadObjectError, errors.UnreadableObjectError, errors.ObjectMovedError):
                unread.append(placed.upload.key)
                continue
            shares = {one: (len(events & kept), min(len(events), len(kept))) for one, kept in originals.items()}
            doubled = [one for one, (count, of) in shares.items() if count >= max(_LEAST_EVENTS, _SHARE * of)]
            if doubled:
                best = max(doubled, key=lambda one: shares[one][0] / shares[one][1])
                held = f"{shares[best][0]:,} of its {len(events):,} events are among the {len(originals[best]):,}"
                reasons[placed] = f"{held} of {best.upload.key}"
            elif placed.upload.key not in known:
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


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys of a list, one per line, without blank lines and lines that begin with `#`; raises UsageError if none is left."""
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise errors.UsageError("--keys", "the list names no object", "Write one key a line, as landing names it")
    return keys


def relocate(
    recovered: Sequence[Placed],
    project_id: str,
    landing: LandingStore,
    grammar: ObjectKeys,
    excluded: Collection[str],
    is_claimed: Callable[[Hour], bool],
) -> Iterator[tuple[Placed, errors.TidemarkError | None]]:
    """Move objects of a project, hour by hour; yields each, and why it stays.

    Copy and compare all objects of an hour, write its marker, then delete the sources: loads find whole hours, and a repetition
    needs only the remaining sources. A refused object keeps all sources of its hour. `excluded`: keys with an excluded version.
    `is_claimed`: whether a recovery of an hour has not ended; such an hour stays until its marker exists. Raises
    LandingAccessError, LandingUnavailableError and LedgerError; moved objects stay moved.
    """
    for (day, hour), of_hour in groupby(sorted(recovered), key=lambda one: (one.arrival_date, one.hour)):
        objects, at = list(of_hour), Hour(day, hour)
        marker = grammar.format_marker(BatchKey(Source.BACKFILL, project_id, day), hour)
        copies: dict[Placed, Listed] = {}
        refused: dict[Placed, errors.TidemarkError] = {}
        reason, hint = "", ""
        # A recovery may begin during the copies, so the claim is read again after the data.
        for of_kind in ([one for one in objects if one.is_marker is kind] for kind in (False, True)):
            if is_claimed(at) and landing.find(marker) is None:
                reason = "a recovery of its hour began and has not ended: a marker now would call the hour whole"
                hint = f"Run `tidemark recover --from {at} --to {at} --project {project_id}`, then this command again"
                refused = {}
                break
            for one in of_kind:
                copy = _copied(one, landing, excluded)
                if isinstance(copy, errors.TidemarkError):
                    refused[one] = copy
                else:
                    copies[one] = copy
            if any(not one.is_marker for one in refused):
                reason = "another object of its hour could not be moved"
                hint = "Clear that one up, then run the command again"
                break
        else:
            _mark(landing, marker)
        for one in objects:
            stays = errors.UsageError(one.upload.key, f"stays where it is, because {reason}", hint) if reason else None
            yield one, refused.get(one) or stays or _deleted(one, copies[one], landing)


def _copied(one: Placed, landing: LandingStore, excluded: Collection[str]) -> Listed | errors.TidemarkError:
    """A copy that is equal byte for byte, made unless it exists; or why there is none."""
    source, target_key = one.upload, one.target_key
    if source.is_link:
        return errors.UsageError(
            source.key, "is a link, and what it leads to would stay", "Move the file it leads to by hand"
        )
    if source.key in excluded or target_key in excluded:
        reason = f"is excluded, or {target_key} is, and an exclusion names one key: the same bytes would count, or vanish, there"
        return errors.UsageError(source.key, reason, "`tidemark include` it, move it, then exclude it by its new key")
    try:
        with landing.open(source.key, source.etag) as content:
            sha256, size = _hash(content), content.tell()
            content.seek(0)
            if landing.find(target_key) is None and landing.create(target_key, content):
                failpoint(Failpoint.AFTER_COPY, source.key)
        copy = landing.find(target_key)
        if copy is None:
            return errors.ObjectMovedError(
                target_key, "was deleted while it was compared", "Run the same command again"
            )
        with landing.open(target_key, copy.etag) as content:
            is_equal = (_hash(content), copy.size_bytes) == (sha256, size)
    except (errors.ObjectMovedError, errors.UnreadableObjectError) as error:
        return error
    if not is_equal:
        return errors.LandingConflictError(
            source.key,
            f"{target_key} is there already with other bytes ({copy.size_bytes:,} instead of {size:,} bytes)",
            "Compare the two and delete the wrong one, or give one another number behind `#`; then run the command again",
        )
    failpoint(Failpoint.AFTER_VERIFY, source.key)
    return copy


def _mark(landing: LandingStore, marker: str) -> None:
    if landing.find(marker) is None and not landing.create(marker, io.BytesIO()) and landing.find(marker) is None:
        raise errors.ObjectMovedError(marker, "was not written, so nothing was deleted", "Run the same command again")
    failpoint(Failpoint.AFTER_MARKER, marker)


def _deleted(one: Placed, copy: Listed, landing: LandingStore) -> errors.TidemarkError | None:
    source, again = one.upload, "Run the same command again"
    try:
        if landing.find(copy.key) != copy:
            return errors.ObjectMovedError(
                copy.key, "was changed or deleted after it was compared, so its source stays", again
            )
        if not landing.delete(source):
            reason = f"was overwritten after it was copied to {copy.key}, so it stays"
            return errors.ObjectMovedError(source.key, reason, f"{again}, and compare the two")
    except errors.UnreadableObjectError as error:
        return error
    failpoint(Failpoint.AFTER_DELETE, source.key)
    return None


def _hash(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := content.read(_READ_BYTES):
        digest.update(part)
    return digest.hexdigest()
