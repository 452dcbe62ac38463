"""Why a line or object is quarantined, by name and in words.

Contains: the names, their words, and the sentence that load, status and health page show.
Add here: a new reason, with its line in CHANGELOG and docs/bad-inputs.md.
Does not contain: detecting them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pipeline_assets.domain.plain_text import few


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


_WORDS = {
    QuarantineReason.EMPTY_OBJECT: "no bytes",
    QuarantineReason.TRUNCATED_GZIP: "a truncated gzip",
    QuarantineReason.NOT_GZIP: "no gzip",
    QuarantineReason.CRC_ERROR: "a gzip with another checksum",
    QuarantineReason.TRAILING_GARBAGE: "bytes behind the last gzip member",
    QuarantineReason.OBJECT_TOO_LARGE: "more bytes than TIDEMARK_MAX_OBJECT_BYTES",
    QuarantineReason.NOT_AN_EXPORT: "no event of this vendor",
    QuarantineReason.CUT_OFF: "the last line breaks off",
    QuarantineReason.BAD_JSON: "the line is no JSON",
    QuarantineReason.NOT_AN_OBJECT: "the line is no JSON object",
    QuarantineReason.INVALID_UTF8: "the line is not UTF-8",
    QuarantineReason.TOO_DEEP: "the line is nested too deep",
    QuarantineReason.LINE_TOO_LONG: "the line is longer than TIDEMARK_MAX_LINE_BYTES",
    QuarantineReason.VALUE_OUT_OF_RANGE: "{column} is beyond 64 bits",
    QuarantineReason.VALUE_UNREADABLE: "{column} is unreadable",
    QuarantineReason.PROJECT_MISMATCH: "app names another project",
    QuarantineReason.EVENT_TIME_MISSING: "event_time is missing",
    QuarantineReason.EVENT_TIME_UNREADABLE: "event_time is unreadable",
    QuarantineReason.EVENT_TIME_IN_FUTURE: "event_time is in the future",
}


def in_words(reason: str) -> str:
    """The words of a reason as lines are counted by it: its name, with `:column` where the reason tells none."""
    name, _, column = reason.partition(":")
    words = _WORDS.get(QuarantineReason(name)) if name in {*QuarantineReason} else None
    return reason if words is None else words.format(column=column or "a value")


def describe_quarantined(lines: int, where: str, reasons: Mapping[str, int]) -> str:
    """`3 lines quarantined in KEY: event_time is missing (2), app is unreadable (1)`; most frequent reasons first."""
    counted = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    told = few([f"{in_words(reason)} ({count:,})" for reason, count in counted]) or "raw.quarantine has the reasons"
    return f"{lines:,} line{'' if lines == 1 else 's'} quarantined in {where}: {told}"
