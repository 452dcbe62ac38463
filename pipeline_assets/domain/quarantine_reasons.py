"""Why a line or object is quarantined.

Contains: the names.
Add here: a new reason, with its line in CHANGELOG and docs/bad-inputs.md.
Does not contain: detecting them.
"""

from enum import StrEnum


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
    NOT_AN_EXPORT = "not_an_export"
    """No line is a JSON object with the exporter's fields; the detail says what the object looks like."""
    CUT_OFF = "cut_off"
    """The last line has no line break and is no whole JSON: the text was cut before it was compressed."""
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
