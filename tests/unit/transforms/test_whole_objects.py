"""An object that is no export, or has a cut last line, is refused whole; bad vendor lines never refuse their object."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tarfile
from typing import Any

import pytest

from pipeline_assets.transforms.parse import ObjectWork
from tests.support.builders import PROJECT, an_event
from tests.support.export_api import zipped
from tests.support.read_objects import DAY, Objects, a_share, read

MAX_LINE_BYTES = 100_000
EVENTS = [json.dumps(an_event(city="Köln"), ensure_ascii=False).encode() for _ in range(40)]
TEXT = b"".join(line + b"\n" for line in EVENTS)


def summary_of(text: bytes, *, parts: int = 1, max_line_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """A task's summary of an object with this text; of one part, if there are several."""
    body = gzip.compress(text, mtime=0)
    work = ObjectWork(Objects({"an object": body}), 1 << 24, max_line_bytes)
    told = read(work, [a_share("an object", len(body), parts=parts)])
    (summary,) = told.summaries
    refused = [one["reason"] for one in told.refused if one["line_number"] is None]
    assert refused == ([summary["error"]] if summary["error"] else [])
    if summary["error"]:
        assert not told.rows, "nothing of a refused object is a row"
        assert (summary["lines"], summary["rows"], summary["quarantined"]) == (0, 0, 0)
    return summary


def a_tar() -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        member = tarfile.TarInfo("events.json")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return into.getvalue()


def lines_of(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


_PROPERTIES = {"event_time": 1, "app": 2}
TRACK = {"anonymousId": "a", "event": "Opened", "properties": _PROPERTIES, "timestamp": "t", "userId": "u"}
OTHERS = {
    "Segment": TRACK,
    "Mixpanel": {"event": "Opened", "properties": {"time": 1, "distinct_id": "a", "$insert_id": "i"}},
    "PostHog": {"uuid": "u", "event": "$pageview", "distinct_id": "a", "timestamp": "t", "properties": {}},
    "GA4": {"event_date": "20260202", "event_timestamp": 1, "event_name": "x", "user_id": "u", "platform": "WEB"},
    "AppsFlyer": {"event_time": f"{DAY} 05:00:00.000", "event_name": "af_open", "platform": "ios", "idfa": "i"},
    "Snowplow": {"app_id": "a", "platform": "web", "event_id": "e", "user_id": "u", "collector_tstamp": "t"},
    "merged IDs": {"scope": 1, "merge_time": 1, "merge_server_time": 1, "amplitude_id": 1, "merged_amplitude_id": 2},
}
PRETTY = json.dumps(json.loads(EVENTS[0]), indent=2).encode()
NO_EXPORTS = {
    "a gzip": (gzip.compress(TEXT, mtime=0), "another gzip inside"),
    "a zip": (zipped([("events.json", TEXT)]), "a zip archive"),
    "bzip2": (bz2.compress(TEXT), "bzip2 inside"),
    "Parquet": (b"PAR1\x15\x04\n\n\xffPAR1", "Parquet"),
    "HTML": (b"\r\n<!DOCTYPE html>\n<html><body>403\n</body></html>\n", "HTML"),
    "XML": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "XML"),
    "an array on one line": (b"[" + b",".join(EVENTS) + b"]", "a JSON array"),
    "an array of one event": (b"[" + EVENTS[0] + b"]\n", "a JSON array"),
    "an array with an event a line": (b"[\n" + b",\n".join(EVENTS) + b"\n]\n", "a JSON array"),
    "an array that begins with an event": (b"[" + b",\n".join(EVENTS) + b"]", "a JSON array"),
    "an array that is written out": (json.dumps([json.loads(EVENTS[0])], indent=2).encode(), "a JSON array"),
    "an object written out": (PRETTY + b"\n", "one object spans several lines"),
    "a page of an API": (lines_of({"data": [json.loads(EVENTS[0])], "next": None}), "no event of this vendor"),
    "an error": (lines_of({"error": "expired", "code": 401}), "no event of this vendor"),
    "UTF-16": (TEXT.decode().encode("utf-16"), "UTF-16"),
    "UTF-16 without a mark": (TEXT.decode().encode("utf-16-le"), "UTF-16"),
    "UTF-16, the other way": (TEXT.decode().encode("utf-16-be"), "UTF-16"),
    "UTF-32": (TEXT.decode().encode("utf-32"), "UTF-32"),
    "Latin-1": (TEXT.decode().encode("latin-1"), "not UTF-8"),
    "CSV": (b"event_time,event_type,app\n2026-02-02 05:00:00,open,10001\n", "CSV"),
    "words": (b"Access denied\n", "text that is no JSON"),
    "zeros": (b"\0" * 5000, "zero bytes"),
    "a tar": (a_tar(), "a tar archive"),
    "one bad line": (b"{\n", "no line is whole JSON"),
    "lines that are too long": ((EVENTS[0][:-1] + b',"x":"' + b"x" * 200_000 + b'"}\n') * 2, "TIDEMARK_MAX_LINE_BYTES"),
    **{f"lines of {name}": (lines_of(line, line), "event_time") for name, line in OTHERS.items()},
}


@pytest.mark.parametrize("name", NO_EXPORTS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "marked"])
def test_an_object_without_an_event_of_the_vendor_is_refused_by_its_look(name: str, mark: bytes) -> None:
    text, look = NO_EXPORTS[name]
    if mark and (not text.isascii() or text.startswith((b"\0", b"PK"))):
        return
    found = summary_of(mark + text)
    assert (found["error"], look in found["error_detail"]) == ("not_an_export", True), found["error_detail"]


def test_every_part_of_a_large_object_sees_what_it_is() -> None:
    assert summary_of(NO_EXPORTS["a gzip"][0], parts=3)["error"] == "not_an_export"
    assert summary_of(TEXT[:-30], parts=3)["error"] == "cut_off"


@pytest.mark.parametrize("size", [1, 40, len(EVENTS[-1]) - 1, len(EVENTS[-1])])
@pytest.mark.parametrize("end", [b"", b"\r", b" \t"], ids=["", "CR", "blank"])
def test_a_cut_last_line_refuses_its_object(size: int, end: bytes) -> None:
    found = summary_of(TEXT[: -size - 1] + end)
    is_whole = size == len(EVENTS[-1])
    assert found["error"] == (None if is_whole else "cut_off")
    assert is_whole or "ends at byte" in found["error_detail"]


def test_a_cut_that_is_longer_than_a_line_may_be_is_one_too() -> None:
    cut = b'{"event_time":"' + b"x" * 300_000
    assert summary_of(TEXT + cut)["error"] == "cut_off"
    # A whole line of that length is the line's own fault.
    found = summary_of(TEXT + cut + b'"}')
    assert (found["error"], found["quarantined"]) == (None, 1)


TIMELESS = json.dumps(an_event(event_time=None)).encode()
ODD = {
    "no event_time": (TIMELESS, "event_time_missing"),
    "no such key": (lines_of({"app": int(PROJECT), "event_type": "open"}).strip(), "event_time_missing"),
    "a time that is none": (json.dumps(an_event(event_time="soon")).encode(), "event_time_unreadable"),
    "another project": (json.dumps(an_event(app=7)).encode(), "project_mismatch"),
    "bytes that are not UTF-8": (EVENTS[0][:-1] + b',"city":"\xff"}', "invalid_utf8"),
    "no JSON": (EVENTS[0][:-1] + b',"x":NaN}', "bad_json"),
    "too long": (EVENTS[0][:-1] + b',"x":"' + b"x" * 200_000 + b'"}', "line_too_long"),
    "a tar's sign in its text": (TIMELESS[:-1] + b',"x":' + b" " * 400 + b'"ustar"}', "event_time_missing"),
    "a lone surrogate, no event_time": (TIMELESS[:-1] + b',"mood":"\\ud83d"}', "event_time_missing"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"], ids=["", "LF", "CRLF"])
def test_an_hour_of_one_line_of_the_vendor_is_never_refused_for_it(name: str, end: bytes) -> None:
    line, reason = ODD[name]
    found = summary_of(line + end)
    assert (found["error"], found["lines"], found["quarantined"]) == (None, 1, 1)
    assert json.loads(found["line_reasons"]) == {reason: 1}


@pytest.mark.parametrize(
    "bad", [b"{", b"<html>", b"null", b"[1]", b"\xff\xfe", lines_of(TRACK).strip(), b"[" * 5000], ids=range(7)
)
def test_a_bad_line_beside_one_of_the_vendor_costs_that_line_only(bad: bytes) -> None:
    # An unclosed array in the first line makes the object an array.
    texts = [EVENTS[0] + b"\n" + bad + b"\n", bad + b"\n" + EVENTS[0] + b"\n"]
    for text in texts[: 1 if bad.startswith(b"[[") else 2]:
        found = summary_of(text)
        assert (found["error"], found["rows"], found["quarantined"]) == (None, 1, 1)


@pytest.mark.parametrize("text", [b"", b"\n", b"\n \r\n\t", b"\xef\xbb\xbf", b" " * 300_000], ids=range(5))
def test_an_object_without_a_line_is_an_hour_without_events(text: bytes) -> None:
    found = summary_of(text)
    assert (found["error"], found["rows"], found["quarantined"]) == (None, 0, 0)


@pytest.mark.parametrize("last", [EVENTS[1], b"\xef\xbb\xbf" + EVENTS[1], b'{"app":1,"city":"K\xf6ln"}', b"[1]", b"7"])
def test_a_last_line_without_a_break_is_whole_if_its_json_is(last: bytes) -> None:
    assert summary_of(EVENTS[0] + b"\n" + last)["error"] is None
