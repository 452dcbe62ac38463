"""The objects of landing: deliveries, markers, batches, oddities, and the reasons for quarantine."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from pipeline_assets.domain.identity import LOST_UNREAD
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import ALL_PROJECTS, Source

NOT_READABLE = "not_readable"
"""`error` of an object that is listed but cannot be read; every load tries again."""


@dataclass(frozen=True, order=True)
class BatchKey:
    """The deliveries of one source and project that arrived on one UTC day: the unit of acceptance."""

    source: Source
    project_id: str
    arrival_date: date

    def __str__(self) -> str:
        """Render as `regular/10001/2026-02-02`."""
        return f"{self.source.value}/{self.project_id}/{self.arrival_date.isoformat()}"


def dimension_batch(day: date) -> BatchKey:
    """The batch under which an exclusion records an object of a dimension; its source has no meaning."""
    return BatchKey(Source.REGULAR, ALL_PROJECTS, day)


@dataclass(frozen=True, order=True)
class Delivery:
    """One version of one object in landing: the unit of parsing."""

    batch: BatchKey
    hour: int
    """UTC hour in the object's name, 0 to 23."""
    shard: int
    key: str
    """Full key below the landing root."""
    etag: str
    size_bytes: int


@dataclass(frozen=True, order=True)
class Marker:
    """The exporter's statement that an hour is complete; later objects of that hour are still loaded."""

    batch: BatchKey
    hour: int
    key: str


class Oddity(StrEnum):
    """Why an object below a project's prefix is neither a delivery nor a marker."""

    MERGED_IDS = "merged_ids"
    """The vendor's merged Amplitude IDs file, `-{org}_{date}_{hour}.json.gz`."""
    UNKNOWN_NAME = "unknown_name"
    WRONG_PREFIX = "wrong_prefix"
    LINK = "link"
    """A link out of landing, to a folder, or to nothing; links are not followed."""
    UNLISTED = "unlisted"
    """A subfolder that cannot be listed; deliveries never lie in subfolders."""


@dataclass(frozen=True, order=True)
class UnrecognizedObject:
    """An object that is listed and reported but never loaded."""

    key: str
    oddity: Oddity
    detail: str
    batch: BatchKey | None = None
    """Set where the name begins as that of an hour with events."""
    hour: int = 0


RENAME = "Give these objects the vendor's names (`#n.json.gz` behind the hour), or move them out of landing"


def unplaced_hours(
    odd_objects: Iterable[UnrecognizedObject], deliveries: Container[str]
) -> dict[BatchKey, dict[str, int]]:
    """Batch -> object -> hour, of unplaced objects named as an hour's, without those that extend a delivery's name."""
    found: dict[BatchKey, dict[str, int]] = {}
    for odd in odd_objects:
        name, end, _ = odd.key.partition(".json.gz")
        if odd.batch is not None and f"{name}{end}" not in deliveries:
            found.setdefault(odd.batch, {})[odd.key] = odd.hour
    return found


@dataclass(frozen=True)
class Listing:
    """The objects of landing for one source, a set of projects and a range of arrival days."""

    deliveries: tuple[Delivery, ...] = ()
    markers: tuple[Marker, ...] = ()
    odd_objects: tuple[UnrecognizedObject, ...] = ()
    arrival_days: dict[str, frozenset[date]] = field(default_factory=dict)
    """Project -> arrival days of deliveries and markers under the source's prefix; includes the first one."""
    strays: tuple[Delivery, ...] = ()
    """Deliveries outside the days that any load will request; empty unless the caller named those days."""

    @classmethod
    def joined(cls, parts: Sequence[Listing]) -> Listing:
        """Several listings of one source and range as one; no project may be in two of them."""
        if len(parts) == 1:
            return parts[0]
        names = ("deliveries", "markers", "odd_objects", "strays")
        lists = {name: tuple(sorted(one for part in parts for one in getattr(part, name))) for name in names}
        return cls(
            arrival_days={project: days for part in parts for project, days in part.arrival_days.items()}, **lists
        )


UNREADABLE = "unreadable_values_"
"""Before a column: counts values that are null in kept rows."""


class QuarantineReason(StrEnum):
    """Values of `reason` in raw.quarantine; a new one needs its line in CHANGELOG and docs/bad-inputs.md."""

    words: str

    def __new__(cls, name: str, words: str) -> QuarantineReason:
        """Make a value from its name; `{column}` in the words stands for the value's column."""
        reason = str.__new__(cls, name)
        reason._value_, reason.words = name, words
        return reason

    EMPTY_OBJECT = "empty_object", "no bytes, where a valid empty export is an empty gzip"
    TRUNCATED_GZIP = "truncated_gzip", "a gzip that ends before its end mark"
    NOT_GZIP = "not_gzip", "no gzip header, or a broken deflate stream"
    CRC_ERROR = "crc_error", "a gzip with another checksum"
    TRAILING_GARBAGE = "trailing_garbage", "bytes that are no gzip member behind the last one"
    OBJECT_TOO_LARGE = "object_too_large", "more decompressed bytes than TIDEMARK_MAX_OBJECT_BYTES"
    NOT_AN_EXPORT = "not_an_export", "no line is a JSON object with this vendor's fields"
    CUT_OFF = "cut_off", "the last line breaks off: the text was cut before it was compressed"
    BAD_JSON = "bad_json", "the line is not JSON"
    NOT_AN_OBJECT = "not_an_object", "the line is JSON, but not an object"
    INVALID_UTF8 = "invalid_utf8", "the line is not UTF-8"
    TOO_DEEP = "too_deep", "the line is nested beyond what a parser follows"
    LINE_TOO_LONG = "line_too_long", "the line is longer than TIDEMARK_MAX_LINE_BYTES"
    VALUE_OUT_OF_RANGE = "value_out_of_range", "{column} is beyond 64 bits"
    VALUE_UNREADABLE = "value_unreadable", "{column} is unreadable"
    PROJECT_MISMATCH = "project_mismatch", "app names another project than the object"
    EVENT_TIME_MISSING = "event_time_missing", "event_time is missing"
    EVENT_TIME_UNREADABLE = "event_time_unreadable", "event_time is unreadable"
    EVENT_TIME_IN_FUTURE = "event_time_in_future", "event_time is more than a day after the arrival day"


def in_words(reason: str) -> str:
    """The words of a reason; without words its name, with `:column`."""
    name, _, column = reason.partition(":")
    known = next((one for one in QuarantineReason if one.value == name), None)
    return reason if known is None else known.words.format(column=column or "a value")


def describe_quarantined(lines: int, where: str, reasons: Mapping[str, int]) -> str:
    """`3 lines quarantined in KEY: event_time is missing (2), app is unreadable (1)`; most frequent reasons first."""
    of_lines = [one for one in reasons.items() if not one[0].startswith(UNREADABLE)]
    counted = sorted(of_lines, key=lambda one: (-one[1], one[0]))
    told = few([f"{in_words(reason)} ({count:,})" for reason, count in counted]) or "raw.quarantine has the reasons"
    return f"{lines:,} line{'' if lines == 1 else 's'} quarantined in {where}: {told}"


def unreadable_values(counts: Mapping[str, float]) -> str:
    """A text on unreadable values from counts by reason, or figures of a batch or slice; empty if there are none."""
    if LOST_UNREAD in counts:
        return (
            f"{counts[LOST_UNREAD]:,.0f} rows lost to unequal ones by a time that could not be read: tidemark explain"
        )
    columns = sorted(name for name in counts if name.startswith(UNREADABLE))
    told = " and ".join(f"{counts[name]:,.0f} values of {name.removeprefix(UNREADABLE)}" for name in columns)
    return told and f"{told} could not be read and are null; their text is kept in _extra"


@dataclass(frozen=True, order=True)
class SnapshotDelivery:
    """One day's snapshot of a dimension, as listed in landing."""

    key: str
    etag: str
    size_bytes: int
    is_marked: bool
    others: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The text that an input state keeps: if it changes, the snapshot is read again."""
        return " ".join([self.key, self.etag, str(self.size_bytes), *self.others])
