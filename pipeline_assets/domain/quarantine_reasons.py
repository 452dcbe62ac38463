"""Why a line or object is quarantined.

Contains: the names.
Add here: a new reason, with its line in CHANGELOG and docs/bad-inputs.md.
Does not contain: detecting them.
"""

from collections.abc import Mapping
from enum import StrEnum

from pipeline_assets.domain.identity import LOST_UNREAD

UNREADABLE = "unreadable_values_"
"""Before a column: counted like a reason, but of values that are null in rows that were kept."""


class QuarantineReason(StrEnum):
    """The values of the column `reason` in raw.quarantine."""

    EMPTY_OBJECT = "empty_object"
    """Zero bytes: a valid empty export is an empty gzip."""
    TRUNCATED_GZIP = "truncated_gzip"
    """The stream ends before its end mark."""
    NOT_GZIP = "not_gzip"
    """No gzip header, or a broken deflate stream."""
    CRC_ERROR = "crc_error"
    """Decompressed bytes do not match the recorded sum."""
    TRAILING_GARBAGE = "trailing_garbage"
    """Bytes that are no gzip member follow the last one."""
    OBJECT_TOO_LARGE = "object_too_large"
    """Decompresses beyond the bound."""
    BAD_JSON = "bad_json"
    """The line is not JSON."""
    NOT_AN_OBJECT = "not_an_object"
    """The line is JSON, but not an object."""
    INVALID_UTF8 = "invalid_utf8"
    """The line holds bytes that are not UTF-8."""
    TOO_DEEP = "too_deep"
    """Nested beyond what a parser follows."""
    LINE_TOO_LONG = "line_too_long"
    """Longer than the bound."""
    VALUE_OUT_OF_RANGE = "value_out_of_range"
    """An integer beyond 64 bits."""
    VALUE_UNREADABLE = "value_unreadable"
    """A value that does not read as its column's type without loss."""
    PROJECT_MISMATCH = "project_mismatch"
    """`app` names another project than the object."""
    EVENT_TIME_MISSING = "event_time_missing"
    """No `event_time`, so no day to file the event in."""
    EVENT_TIME_UNREADABLE = "event_time_unreadable"
    """`event_time` does not read as a time."""
    EVENT_TIME_IN_FUTURE = "event_time_in_future"
    """More than a day after the arrival day."""


def unreadable_values(counts: Mapping[str, float]) -> str:
    """What counts by reason, or figures of a batch or slice, tell of values that could not be read; empty if nothing."""
    if LOST_UNREAD in counts:
        return (
            f"{counts[LOST_UNREAD]:,.0f} rows lost to unequal ones by a time that could not be read: tidemark explain"
        )
    columns = sorted(name for name in counts if name.startswith(UNREADABLE))
    told = " and ".join(f"{counts[name]:,.0f} values of {name.removeprefix(UNREADABLE)}" for name in columns)
    return told and f"{told} could not be read and are null; their text is kept in _extra"
