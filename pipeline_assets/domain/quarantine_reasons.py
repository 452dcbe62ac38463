"""Why a line or object is quarantined: its name, its words, and the sentence that load, status and health page show."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pipeline_assets.domain.identity import LOST_UNREAD
from pipeline_assets.domain.plain_text import few

UNREADABLE = "unreadable_values_"
"""Before a column: counted like a reason, but of values that are null in rows that were kept."""


class QuarantineReason(StrEnum):
    """The values of the column `reason` in raw.quarantine; a new one needs its line in CHANGELOG and docs/bad-inputs.md."""

    words: str

    def __new__(cls, name: str, words: str) -> QuarantineReason:
        """Make a value from its name; `{column}` in the words stands for the column of the value."""
        reason = str.__new__(cls, name)
        reason._value_, reason.words = name, words
        return reason

    # Of a whole object.
    EMPTY_OBJECT = "empty_object", "no bytes, where a valid empty export is an empty gzip"
    TRUNCATED_GZIP = "truncated_gzip", "a gzip that ends before its end mark"
    NOT_GZIP = "not_gzip", "no gzip header, or a broken deflate stream"
    CRC_ERROR = "crc_error", "a gzip with another checksum"
    TRAILING_GARBAGE = "trailing_garbage", "bytes that are no gzip member behind the last one"
    OBJECT_TOO_LARGE = "object_too_large", "more decompressed bytes than TIDEMARK_MAX_OBJECT_BYTES"
    NOT_AN_EXPORT = "not_an_export", "no line is a JSON object with this vendor's fields"
    CUT_OFF = "cut_off", "the last line breaks off: the text was cut before it was compressed"
    # Of a line.
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
    """The words of a reason as lines are counted by it: its name, with `:column` where the reason tells none."""
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
    """What counts by reason, or figures of a batch or slice, tell of values that could not be read; empty if nothing."""
    if LOST_UNREAD in counts:
        return (
            f"{counts[LOST_UNREAD]:,.0f} rows lost to unequal ones by a time that could not be read: tidemark explain"
        )
    columns = sorted(name for name in counts if name.startswith(UNREADABLE))
    told = " and ".join(f"{counts[name]:,.0f} values of {name.removeprefix(UNREADABLE)}" for name in columns)
    return told and f"{told} could not be read and are null; their text is kept in _extra"
