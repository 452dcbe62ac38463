"""The vendor's Export API archive: a zip of hourly gzip files, validated before use."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple, cast

from pipeline_assets.domain.days import Hour, HourRange
from pipeline_assets.domain.deliveries import Delivery, QuarantineReason
from pipeline_assets.domain.errors import ExportContentError
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.gzip_lines import BadObjectError, measure

_AGAIN = "Recover these hours again; if it stays, ask the vendor what it exports for them"
MOST_TOTAL_BYTES = 64 * 1024**3
"""Limit for all members of one archive, decompressed."""
MOST_RATIO = 200
"""Limit for a member's decompressed size, as a multiple of its stored size."""
_RATIO_BYTES = 64 * 1024
"""Smaller members count as this large, because the ratio of a few bytes means nothing."""
_MOST_DIRECTORY_BYTES = 16 * 1024**2
"""Limit for the zip's directory, which is read at once: room for 100,000 files, where a day has a few hundred."""
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_READ_FAILURES = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(EOFError, NotImplementedError, RuntimeError, OSError, ValueError),
)


class Member(NamedTuple):
    """One hourly file in an archive, read through to its end once."""

    name: str
    hour: Hour
    shard: int
    size_bytes: int
    content_sha256: str


class Archive(NamedTuple):
    """The content of an archive whose members all have allowed names."""

    members: Mapping[Hour, tuple[Member, ...]]
    bad_hours: Mapping[Hour, ExportContentError]
    """Hour -> why one of its files cannot be used; then none is."""


def read_archive(
    file: IO[bytes], grammar: ObjectKeys, project_id: str, hours: HourRange, max_member_bytes: int
) -> Archive:
    """Read every member to its end once, keeping nothing; raises ExportContentError if the archive as a whole is unusable.

    It is if it is no zip; if a name is wrong, repeated, or of another project or hour; or if the content is too large.
    """
    subject = f"export of {project_id}, {hours}"
    members: dict[Hour, list[Member]] = {}
    bad_hours: dict[Hour, ExportContentError] = {}
    places: set[tuple[Hour, int]] = set()
    room = MOST_TOTAL_BYTES
    with _opened(subject, file) as archive:
        for info in archive.infolist():
            if info.filename == f"{project_id}/" and info.file_size == 0:
                continue
            delivery = _delivery(subject, grammar, project_id, info)
            hour = Hour(delivery.batch.arrival_date, delivery.hour)
            if not hours.first <= hour <= hours.last:
                reason = f"holds {info.filename}, of an hour that was not asked for"
                raise ExportContentError(subject, reason, _AGAIN)
            if (hour, delivery.shard) in places:
                raise ExportContentError(subject, f"holds {info.filename} twice", _AGAIN)
            places.add((hour, delivery.shard))
            most, too_much, hint = _bound(info, max_member_bytes, room)
            try:
                size, content, sha256 = _measured(archive, info, most)
            except BadObjectError as error:
                if error.reason is QuarantineReason.OBJECT_TOO_LARGE:
                    reason = f"member {info.filename} decompresses to {too_much}; nothing of it was written"
                    raise ExportContentError(subject, reason, hint) from None
                reason = f"member {info.filename} of {subject} is not whole: {error}"
                bad_hours[hour] = ExportContentError(f"{project_id}, {hour}", reason, _AGAIN)
            else:
                room -= content
                members.setdefault(hour, []).append(Member(info.filename, hour, delivery.shard, size, sha256))
    whole = {hour: tuple(sorted(found, key=lambda one: one.shard)) for hour, found in members.items()}
    return Archive({hour: found for hour, found in whole.items() if hour not in bad_hours}, bad_hours)


@contextmanager
def opened_member(file: IO[bytes], member: Member) -> Iterator[IO[bytes]]:
    """The gzip file of a member, in an archive that was read."""
    with zipfile.ZipFile(file) as archive, archive.open(member.name) as stored:
        yield stored


@contextmanager
def _opened(subject: str, file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(cast("IO[bytes]", _BoundedReads(file, _MOST_DIRECTORY_BYTES)))
    except _TooMuchAtOnceError as error:
        reason = (
            f"lists its files in {error.size:,} bytes, at most {_MOST_DIRECTORY_BYTES:,}; nothing of it was written"
        )
        raise ExportContentError(subject, reason, "Ask the vendor what it exports for these hours") from None
    except _READ_FAILURES as error:
        raise ExportContentError(subject, f"the archive is cut or damaged ({error})", _AGAIN) from None
    with archive:
        yield archive


class _TooMuchAtOnceError(Exception):
    """A read beyond the bound. No OSError, which zipfile takes for the end of a file."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class _BoundedReads:
    """A file with a bound on each read, because zipfile trusts the directory's length in one of several records."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most = file, most
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1, /) -> bytes:
        if size > self._most:
            raise _TooMuchAtOnceError(size)
        found = self._file.read(size if size >= 0 else self._most + 1)
        if len(found) > self._most:
            raise _TooMuchAtOnceError(len(found))
        return found


def _delivery(subject: str, grammar: ObjectKeys, project_id: str, info: zipfile.ZipInfo) -> Delivery:
    # The stored name: zipfile's own one has separators replaced, and is cut at a NUL.
    name = info.orig_filename
    parsed = grammar.parse(Source.REGULAR, project_id, name, "", info.file_size)
    if name == info.filename and isinstance(parsed, Delivery):
        return parsed
    parts = name.replace("\\", "/").split("/")
    if ".." in parts or parts[0] in ("", "..") or ":" in parts[0]:
        reason = f"holds {name!r}, a name that leads out of the archive; nothing of it was written"
    elif parts[0] != project_id:
        reason = f"holds {name!r}, which is not of project {project_id}"
    else:
        detail = getattr(parsed, "detail", "no hourly file of events")
        reason = f"holds {name!r}: {detail}"
    hint = "Check that the keys are those of this project; else ask the vendor what it exports"
    raise ExportContentError(subject, reason, hint)


def _bound(info: zipfile.ZipInfo, max_member_bytes: int, room: int) -> tuple[int, str, str]:
    """The most bytes that a member may decompress to; the error and the hint for more."""
    ask, stored = "ask the vendor what it exports", f"{info.compress_size:,} bytes it is stored in"
    genuine = f"If it is genuine, raise TIDEMARK_MAX_OBJECT_BYTES; else {ask}"
    left = f"more than the {room:,} bytes that are left of {MOST_TOTAL_BYTES:,} for one answer"
    bounds = (
        (
            max(info.compress_size, _RATIO_BYTES) * MOST_RATIO,
            f"more than {MOST_RATIO} times the {stored}",
            ask.capitalize(),
        ),
        (max_member_bytes, f"more than {max_member_bytes:,} bytes", genuine),
        (room, left, "Recover fewer hours at a time"),
    )
    return min(bounds, key=lambda bound: bound[0])


def _measured(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> tuple[int, int, str]:
    if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
        raise BadObjectError(
            QuarantineReason.NOT_GZIP, "it is encrypted, or packed in a way that the vendor never used"
        )
    # Zipfile reads no more of a member than its header says, and checks that.
    if info.file_size > most:
        raise BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, "unpacks to more than is allowed")
    try:
        with archive.open(info) as stored:
            size, sha256 = measure(stored, most)
            if stored.read(1):
                raise BadObjectError(QuarantineReason.TRAILING_GARBAGE, "bytes follow the last gzip member")
    except _READ_FAILURES as error:
        raise BadObjectError(QuarantineReason.CRC_ERROR, str(error) or type(error).__name__) from None
    return info.file_size, size, sha256
