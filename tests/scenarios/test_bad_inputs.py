"""Every bad input ends as the table says: its line, its object, its batch, and all other days."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.status import day_statuses
from tests.support.builders import PROJECT, Outcome, Pipeline, a_pipeline, an_event, events_on

pytestmark = pytest.mark.slow
DOCUMENT = Path(__file__).parents[2] / "docs" / "bad-inputs.md"
MAX_LINE_BYTES = 100_000
MAX_OBJECT_BYTES = 1 << 20
DERIVED = ("refined/events", "aggregates/daily_revenue", "aggregates/event_counts", "aggregates/active_users")
Files = Mapping[str, bytes]
"""Path below the project's folder -> bytes; the first is the bad one."""


class LineFate(StrEnum):
    READ = "read"
    QUARANTINED = "quarantined"
    BLANK = "counted as blank"
    NOT_READ = "none is read"
    NONE = "–"


class ObjectFate(StrEnum):
    READ = "read"
    READ_WITHOUT = "all other lines are read"
    QUARANTINED = "quarantined whole"
    NOT_LOADED = "not loaded; the run's log names it"
    NONE = "–"


class BatchFate(StrEnum):
    """The fate of everything that arrived for the project on that day, and of the day itself."""

    ACCEPTED = "accepted, the day is published"
    REFUSED = "refused, the day keeps its old state"
    WAITING = "waits, the day keeps its old state"


class OtherDays(StrEnum):
    COMPLETE = "complete"
    PROVISIONAL = "complete; those up to 3 days before stay provisional"
    ITSELF_PROVISIONAL = "complete; the day itself stays provisional"


NOTHING = "Nothing."
MERGED_IDS = "Nothing; users whom only this file merges count twice, since their events bring no `merged_amplitude_id`."
CORRECT = "Look at `raw.quarantine`; to have the event, have the hour exported again with the line corrected."
OTHER_HOURS = "Recover the other hours (`tidemark recover --refused --load`), or `--accept-missing REASON`."
EXPORT_AGAIN = "Have the vendor export the hour again under the same name, or recover the day with a backfill export."


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    build: Callable[[date], Files]
    line: LineFate = LineFate.READ
    object: ObjectFate = ObjectFate.READ
    batch: BatchFate = BatchFate.ACCEPTED
    other_days: OtherDays = OtherDays.COMPLETE
    reasons: Mapping[int | None, str] = field(default_factory=dict)
    """Line number -> reason in raw.quarantine; None is the whole object."""
    raw_lines: tuple[int, ...] = ()
    """Lines of the bad object that are rows in raw."""
    stored: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Line number -> column -> value in raw."""
    refined_rows: int | None = None
    """Rows of the object in the published day, where not every row is an event."""
    blank_lines: int = 0
    has_neighbour: bool = True
    """Whether another object of the same arrival day holds two good lines."""
    refusal: str = ""
    """The batch's reason, beside the object's name."""
    unread: str = ""
    """Status text about values that could not be read."""
    keeps: str = ""
    """How the line is kept, for the document."""
    hint: str = NOTHING
    is_short: bool = False
    """Whether the day lacks hours, because the project's exporter writes markers."""


BLANK_IDS = "`$insert_id` and `uuid` are empty or blank"
NEIGHBOUR_ROWS = 2
PLAIN_ROWS = 7


def _name(day: date, *, hour: int = 10, shard: str = "#1", project: str = PROJECT) -> str:
    return f"{project}_{day}_{hour}{shard}.json.gz"


def _good(day: date, number: int = 1, **changes: Any) -> bytes:
    plain = {
        "insert_id": f"good-{day}-{number}",
        "uuid": f"uuid-{day}-{number}",
        "device_id": f"d{number}",
        "event_time": f"{day} 10:00:00.{number:06d}",
        "server_upload_time": f"{day} 10:00:05.000000",
        "processed_time": f"{day} 10:00:09.000000",
        "event_properties": {"$revenue": 2.5, "currency": "EUR"},
    }
    return json.dumps(an_event(**plain | changes)).encode()


def _holding(day: date, key: str, text: str | bytes) -> bytes:
    """A good line with one value of exactly this JSON text."""
    raw = text if isinstance(text, bytes) else text.encode()
    return _good(day, 2, **{key: "@@"}).replace(b'"@@"', raw)


def _with_member(day: date, *members: str) -> bytes:
    return _good(day, 2)[:-1] + ("," + ",".join(members) + "}").encode()


def _body(*lines: bytes) -> bytes:
    return gzip.compress(b"\n".join(lines) + b"\n", mtime=0)


def _between(odd: Callable[[date], bytes]) -> Callable[[date], Files]:
    """The bad line is line 2, between two good ones."""
    return lambda day: {_name(day): _body(_good(day, 1), odd(day), _good(day, 3))}


def _object(body: Callable[[bytes], bytes]) -> Callable[[date], Files]:
    return lambda day: {_name(day): body(_body(*(_good(day, number) for number in (1, 2, 3))))}


def _a_refused_line(name: str, odd: Callable[[date], bytes], reason: str, hint: str = CORRECT) -> Case:
    return Case(
        name=name, build=_between(odd), line=LineFate.QUARANTINED, object=ObjectFate.READ_WITHOUT, reasons={2: reason},
        raw_lines=(1, 3), hint=hint,
    )  # fmt: skip


def _a_line_read(name: str, odd: Callable[[date], bytes], keeps: str, hint: str = NOTHING, **columns: Any) -> Case:
    return Case(name=name, build=_between(odd), raw_lines=(1, 2, 3), stored={2: columns}, keeps=keeps, hint=hint)


def _a_value_unread(name: str, column: str, text: str) -> Case:
    """An event stays where neither its key, nor its day, nor its first rank rests on the value."""
    line = _a_line_read(
        name, lambda day: _holding(day, column, text), "the value is null, its text goes to `_extra`, byte for byte",
        "Nothing; `tidemark status` counts such values by column.",
        **{column: None, "_extra": f'{{"{column}":{text}}}'},
    )  # fmt: skip
    return replace(line, unread=f"1 values of {column} could not be read and are null; their text is kept in _extra")


def _a_refused_object(name: str, build: Callable[[date], Files], reason: str, hint: str = EXPORT_AGAIN) -> Case:
    return Case(
        name=name, build=build, line=LineFate.NOT_READ, object=ObjectFate.QUARANTINED, batch=BatchFate.REFUSED,
        other_days=OtherDays.PROVISIONAL, reasons={None: reason}, hint=hint,
        refusal=f"unreadable objects: 1, first {{key}}: {reason}",
    )  # fmt: skip


def _an_event_sent_twice(name: str, keeps: str, **nulls: None) -> Case:
    """Line 2 twice: whichever identity is left must still find that it is one event."""
    return Case(
        name=name, build=lambda day: {_name(day): _body(_good(day, 1), *[_good(day, 2, **nulls)] * 2)},
        raw_lines=(1, 2, 3), refined_rows=2, stored={2: dict(nulls), 3: dict(nulls)}, keeps=keeps,
    )  # fmt: skip


def _files_that_are_none(name: str, names: Callable[[date], list[str]], hint: str) -> Case:
    """Good bytes under a wrong name: only the name keeps them out."""
    return Case(
        name=name, build=lambda day: {file: _body(_good(day, number)) for number, file in enumerate(names(day), 1)},
        line=LineFate.NOT_READ, object=ObjectFate.NOT_LOADED, hint=hint,
    )  # fmt: skip


def _marker(day: date, hour: int) -> str:
    return f"{PROJECT}_{day}_{hour}_complete"


def _flip(body: bytes, place: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :]


LONG_NAME = "n" * 256
BOM = b"\xef\xbb\xbf"

OBJECT_CASES = [
    _a_refused_object("Truncated gzip", _object(lambda body: body[: len(body) // 2]), "truncated_gzip"),
    _a_refused_object("Zero bytes", _object(lambda _: b""), "empty_object"),
    _a_refused_object("Not gzip (plain JSON lines)", _object(gzip.decompress), "not_gzip"),
    _a_refused_object("CRC error", _object(lambda body: _flip(body, len(body) - 6)), "crc_error"),
    _a_refused_object("Garbage behind the last gzip member", _object(lambda body: body + b"garbage"), "trailing_garbage"),
    _a_refused_object(
        "Decompression bomb, beyond `max_object_bytes`",
        lambda day: {_name(day): _body(_good(day)) + gzip.compress(b" " * (16 * MAX_OBJECT_BYTES), mtime=0)}, "object_too_large",
        "If the object is genuine, raise `TIDEMARK_MAX_OBJECT_BYTES` and load the day again; else as for any unreadable object.",
    ),
    _a_refused_object(
        "No export: another gzip inside, a JSON array, HTML, UTF-16, Parquet, CSV, zip, another vendor's lines",
        _object(lambda body: gzip.compress(body, mtime=0)), "not_an_export",
    ),
    _a_refused_object(
        "Text that was cut within its last line, before it was compressed",
        _object(lambda body: gzip.compress(gzip.decompress(body)[:-9], mtime=0)), "cut_off",
    ),
    Case(
        name="A quiet hour with one odd event", build=lambda day: {_name(day): _body(_good(day, 1, event_time=None))},
        line=LineFate.QUARANTINED, object=ObjectFate.READ_WITHOUT, reasons={1: "event_time_missing"}, hint=CORRECT,
    ),
    Case(
        name="gzip of several members",
        build=lambda day: {_name(day): _body(_good(day, 1), _good(day, 2)) + _body(_good(day, 3, city="Köln"))},
        raw_lines=(1, 2, 3), stored={1: {"city": None}, 3: {"city": "Köln"}}, keeps="all members",
    ),
    Case(
        name="gzip padded with zero bytes", build=_object(lambda body: body + b"\0" * 512), raw_lines=(1, 2, 3),
        keeps="as without the padding",
    ),
    Case(
        name="Valid gzip without a line", build=lambda day: {_name(day): gzip.compress(b"", mtime=0)}, line=LineFate.NONE,
        keeps="an hour without events",
    ),
]  # fmt: skip

LINE_CASES = [
    _a_refused_line("Bad JSON", lambda day: _good(day, 2)[:-30], "bad_json"),
    _a_refused_line("Array instead of an object", lambda day: b"[" + _good(day, 2) + b"]", "not_an_object"),
    Case(
        name="Blank lines",
        build=lambda day: {_name(day): _body(_good(day, 1), b"", b" \t", _good(day, 4))},
        line=LineFate.BLANK, raw_lines=(1, 4), blank_lines=2,
    ),
    Case(
        name="Lines that end in CR LF, the last one in nothing",
        build=lambda day: {_name(day): gzip.compress(_good(day, 1) + b"\r\n" + _good(day, 2), mtime=0)},
        raw_lines=(1, 2), keeps="without the line ends",
    ),
    Case(
        name="Byte order mark at the start",
        build=lambda day: {_name(day): _body(BOM + _good(day, 1), b"{", _good(day, 3))},
        # The broken line shows that places count from the mark.
        reasons={2: "bad_json"}, raw_lines=(1, 3), stored={1: {"device_id": "d1"}}, keeps="the mark is skipped",
    ),
    _a_refused_line("Byte order mark inside (files put together)", lambda day: BOM + _good(day, 2), "bad_json"),
    _a_refused_line("Invalid UTF-8 in a string", lambda day: _holding(day, "city", b'"K\xf6ln"'), "invalid_utf8"),
    _a_refused_line(
        "Invalid UTF-8 in a property bag", lambda day: _holding(day, "event_properties", b'{"city": "K\xf6ln"}'),
        "invalid_utf8",
    ),
    _a_line_read(
        "Lone surrogate (half an emoji)",
        lambda day: _good(day, 2, city="a\ud83d", event_properties={"text": "b\ud83d"}, mood="c\ud83d"),
        "replaced by U+FFFD in a text column, kept as delivered in property bags and `_extra`",
        city="a\N{REPLACEMENT CHARACTER}", event_properties=r'{"text": "b\ud83d"}', _extra=r'{"mood":"c\ud83d"}',
    ),
    _a_line_read(
        r"NUL character (`\u0000`) in a string", lambda day: _good(day, 2, city="a\0b", event_properties={"text": "\0"}),
        "kept", city="a\0b", event_properties=r'{"text": "\u0000"}',
    ),
    _a_value_unread("Integer beyond 64 bits", "event_id", str(2**63)),
    _a_line_read("`1.0` for an integer", lambda day: _holding(day, "event_id", "1.0"), "as 1", event_id=1),
    _a_line_read('`"12"` for an integer', lambda day: _holding(day, "event_id", '"12"'), "as 12", event_id=12),
    _a_value_unread("`1.5` for an integer", "event_id", "1.5"),
    _a_value_unread("Colons in the date of a time", "processed_time", '"2026:02:02 06:00:00.047099"'),
    _a_line_read(
        "Empty text", lambda day: _good(day, 2, city="", processed_time="", event_id="", paying="", location_lat=""),
        "kept in a text column, null in one of times, numbers or booleans",
        city="", processed_time=None, event_id=None, paying=None, location_lat=None, _extra=None,
    ),
    _a_line_read(
        "A time in nanoseconds", lambda day: _good(day, 2, client_event_time="2026-02-02T10:00:00.123456789Z"),
        "cut at microseconds", client_event_time=datetime(2026, 2, 2, 10, 0, 0, 123_456), _extra=None,
    ),
    _a_refused_line(
        "`server_upload_time` is no time", lambda day: _good(day, 2, server_upload_time="yesterday"), "value_unreadable"
    ),
    _a_refused_line("`app` beyond 64 bits", lambda day: _holding(day, "app", str(2**63)), "value_out_of_range"),
    _a_refused_line(
        "Nested thousands deep",
        lambda day: _holding(day, "event_properties", '{"a":' + "[" * 20_000 + "]" * 20_000 + "}"), "too_deep",
    ),
    _a_line_read(
        "A key twice in one object",
        lambda day: _holding(day, "city", '"first"')[:-1]
        + b',"city":"last","event_properties":{"a":1,"a":2},"colour":1,"colour":2}',
        "the last one counts; a property bag keeps both", city="last", event_properties='{"a":1,"a":2}',
        _extra='{"colour":2}',
    ),
    _a_line_read(
        "A property bag as JSON text", lambda day: _good(day, 2, event_properties=r'{"a": "\u00fc", "b": "{}"}'),
        "as the bag that the text holds", event_properties=r'{"a": "\u00fc", "b": "{}"}',
    ),
    _a_line_read(
        "Keys that differ in case", lambda day: _good(day, 2, city="a", City="b", CITY="c", event_properties={"k": 1, "K": 2}),
        "the known spelling fills the column, the others go to `_extra`", city="a", _extra='{"CITY":"c","City":"b"}',
        event_properties='{"k": 1, "K": 2}',
    ),
    _a_line_read(
        "Dotted keys", lambda day: _good(day, 2, **{"city.name": "b", "event_properties": {"a.b": 1}}),
        "one key with a dot, never a path", city=None, _extra='{"city.name":"b"}', event_properties='{"a.b": 1}',
    ),
    _a_line_read(
        "A 56th key", lambda day: _with_member(day, '"mood": { "is" : 1.0 }'), "the key goes to `_extra`, byte for byte",
        "Nothing; `_extra` shows what the vendor added.", _extra='{"mood":{ "is" : 1.0 }}',
    ),
    _a_refused_line(
        "Very long line, beyond `max_line_bytes`", lambda day: _good(day, 2, city="x" * MAX_LINE_BYTES), "line_too_long",
        "If the line is genuine, raise `TIDEMARK_MAX_LINE_BYTES` and load the day again.",
    ),
    _a_line_read(
        "Names of 256 characters", lambda day: _good(day, 2, event_type=LONG_NAME, event_properties={LONG_NAME: 1}),
        "whole", event_type=LONG_NAME, event_properties=f'{{"{LONG_NAME}": 1}}',
    ),
    _a_refused_line(
        "`app` names another project", lambda day: _good(day, 2, app=10002), "project_mismatch",
        "Have the vendor correct the export's project; events of the other project come with its own export.",
    ),
    _a_refused_line("`event_time` is missing or null", lambda day: _good(day, 2, event_time=None), "event_time_missing"),
    _a_refused_line(
        "`event_time` is no time", lambda day: _good(day, 2, event_time="yesterday"), "event_time_unreadable"
    ),
    _a_refused_line(
        "`event_time` lies before 1900 (a client's zero)",
        lambda day: _good(day, 2, event_time="0001-01-01T00:00:00Z"), "event_time_unreadable",
    ),
    _a_refused_line(
        "`event_time` lies more than a day after the arrival day",
        lambda day: _good(day, 2, event_time=f"{day + timedelta(days=2)} 00:00:00.000000"), "event_time_in_future",
    ),
    _an_event_sent_twice("`$insert_id` is null", "`uuid` tells events apart", insert_id=None),
    _an_event_sent_twice("`uuid` is null", "`$insert_id` tells events apart", uuid=None),
    _an_event_sent_twice("`$insert_id` and `uuid` are null", "equal content is one event", insert_id=None, uuid=None),
    Case(
        name=BLANK_IDS,
        build=lambda day: {_name(day): _body(
            _good(day, 1), _good(day, 2, insert_id="", uuid=" "), _good(day, 3, insert_id="", uuid=" ", device_id="d2"),
        )},
        raw_lines=(1, 2, 3), stored={2: {"insert_id": "", "uuid": " "}, 3: {"insert_id": "", "uuid": " "}},
        keeps="neither is an id; equal content is one event, and `rows_with_blank_id` counts",
    ),
    _an_event_sent_twice("`device_id` is null", "null is a device like any other", device_id=None),
    Case(
        name="More than 10 bad lines and more than 0.1 % of the batch",
        build=lambda day: {_name(day): _body(*[b"{"] * 11, _good(day, 12))},
        line=LineFate.QUARANTINED, object=ObjectFate.READ_WITHOUT, batch=BatchFate.REFUSED,
        other_days=OtherDays.PROVISIONAL, reasons=dict.fromkeys(range(1, 12), "bad_json"),
        refusal="11 of 14 lines are quarantined",
        hint="Have the export corrected, or raise `TIDEMARK_MAX_QUARANTINED_SHARE` or `_LINES`.",
    ),
]  # fmt: skip

NAME_CASES = [
    _files_that_are_none(
        "Unknown object name",
        lambda day: [
            f"{_name(day, hour=11)}.tmp", f"{PROJECT}_{day}_24#1.json.gz", f"{PROJECT}_{day.year}-02-30_10#1.json.gz",
            "notes.txt", f"archive/{_name(day)}",
        ],
        "If it is an export, give it the vendor's name, directly in the project's folder.",
    ),
    replace(
        _files_that_are_none(
            "Name that is cut or changed behind the hour",
            lambda day: [f"{PROJECT}_{day}_10", f"{PROJECT}_{day}_9#1.json", f"{PROJECT}_{day}_8#x.json.gz"],
            "Give it the vendor's name; else recover the hour, or accept that it is lost, with a reason.",
        ),
        other_days=OtherDays.ITSELF_PROVISIONAL,
        is_short=True,
    ),
    Case(
        name="`#` written as `%23` by a copier, beside the export itself",
        build=lambda day: dict.fromkeys((_name(day, shard="%231"), _name(day)), _body(_good(day, 1), _good(day, 2))),
        raw_lines=(1, 2), keeps="as `#`; an event that both hold counts once",
    ),
    _files_that_are_none(
        "Name of another project", lambda day: [_name(day, project="10002")], "Move it to its own project's folder."
    ),
    _files_that_are_none("Merged-ids file", lambda day: [f"-9876_{day}_10.json.gz"], MERGED_IDS),
    Case(
        name="Export named without `#n`", build=lambda day: {_name(day, shard=""): _body(_good(day))}, raw_lines=(1,),
        keeps="as any export of that hour",
    ),
    Case(
        name="Marker of an hour without data", build=lambda day: {_marker(day, 10): b""}, line=LineFate.NONE,
        object=ObjectFate.NONE, is_short=True, hint=OTHER_HOURS,
        keeps="an hour without events; the hours that never came keep the day provisional",
    ),
    Case(
        name="24 markers, no data", build=lambda day: {_marker(day, hour): b"" for hour in range(24)},
        line=LineFate.NONE, object=ObjectFate.NONE, has_neighbour=False, keeps="a day without events",
    ),
    Case(
        name="Fewer than 24 markers, no data, the deadline has passed",
        build=lambda day: {_marker(day, hour): b"" for hour in range(23)}, line=LineFate.NONE, object=ObjectFate.NONE,
        batch=BatchFate.REFUSED, other_days=OtherDays.PROVISIONAL, has_neighbour=False,
        refusal="no delivery of either source, and the deadline has passed",
        hint="Have the vendor export the day again; a day that truly has no events needs its 24 markers, "
        "or `--accept-missing REASON`.",
    ),
    Case(
        name="Data without markers, the deadline has passed", build=_object(lambda body: body), raw_lines=(1, 2, 3),
        is_short=True, hint=OTHER_HOURS,
        keeps="the day is provisional where the project wrote a marker in the last `redelivery_horizon_days`, else final",
    ),
    # The two last days are still open when the landing is loaded.
    Case(
        name="Data without markers, before the deadline", build=_object(lambda body: body), raw_lines=(1, 2, 3),
        other_days=OtherDays.PROVISIONAL, keeps="the day is provisional too",
    ),
    Case(
        name="No data and no markers, before the deadline", build=lambda _: {}, line=LineFate.NONE, object=ObjectFate.NONE,
        batch=BatchFate.WAITING, other_days=OtherDays.PROVISIONAL, has_neighbour=False, refusal="nothing is delivered yet",
        hint="Nothing; the next load takes it up.",
    ),
]  # fmt: skip

CASES = [*OBJECT_CASES, *LINE_CASES, *NAME_CASES]
IN_A_BUCKET = _files_that_are_none(
    "Key with `//` (in a bucket)", lambda day: [f"/{_name(day)}"], "Copy the object to a key without the empty segment."
)
EMPTY_LANDING = Case(
    name="Project's folder missing or empty", build=lambda _: {}, line=LineFate.NONE, object=ObjectFate.NONE,
    batch=BatchFate.REFUSED, other_days=OtherDays.PROVISIONAL, has_neighbour=False,
    refusal="no delivery at all, and the deadline has passed",
    hint="Check `TIDEMARK_LANDING_URL` and `TIDEMARK_PROJECTS`; have the vendor export the day again.",
)  # fmt: skip


FIRST_DAY = date(2026, 2, 2)
CASE_DAYS: dict[str, date] = {}
PLAIN_DAYS: list[date] = []


def _spread_over_days() -> None:
    """Every case has its own arrival day; every third day before the two open ones is plain."""
    day = FIRST_DAY
    for place, case in enumerate(CASES):
        if place % 2 == 0 and place < len(CASES) - 1:
            PLAIN_DAYS.append(day)
            day += timedelta(days=1)
        CASE_DAYS[case.name] = day
        day += timedelta(days=1)


_spread_over_days()
LAST_DAY = CASE_DAYS[CASES[-1].name]
NOW = datetime.combine(LAST_DAY + timedelta(days=1), time(12), UTC)


class Found:
    def __init__(self, p: Pipeline, run: Outcome) -> None:
        self.pipeline, self.run = p, run
        self.raw, self.quarantine, self.refined = (
            p.rows(table) for table in ("raw/regular_events", "raw/quarantine", "refined/events")
        )
        self.log = "\n".join(entry.user_message for entry in p.instance.all_logs(run.run_id))

    def raw_rows(self, key: str) -> dict[int, dict[str, Any]]:
        rows = [row for row in self.raw if row["_object_key"] == key]
        assert len({row["_line_number"] for row in rows}) == len(rows)
        return {row["_line_number"]: row for row in rows}

    def refined_rows(self, day: date) -> int:
        return sum(row["event_date"] == day for row in self.refined)


def _put(p: Pipeline, day: date, files: Files) -> None:
    for name, body in files.items():
        path = p.landing / PROJECT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def _files(case: Case, day: date) -> dict[str, bytes]:
    neighbour = {_name(day, hour=11): _body(_good(day, 101), _good(day, 102))} if case.has_neighbour else {}
    return {**case.build(day), **neighbour}


@pytest.fixture(scope="module")
def bad_landing(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """One load of all cases and the plain days between them."""
    folder = tmp_path_factory.mktemp("bad_inputs")
    with a_pipeline(
        spark, folder, local_bytes=0, max_line_bytes=MAX_LINE_BYTES, max_object_bytes=MAX_OBJECT_BYTES
    ) as p:
        for case in CASES:
            _put(p, CASE_DAYS[case.name], _files(case, CASE_DAYS[case.name]))
        for day in PLAIN_DAYS:
            p.deliver(day, events_on(day, PLAIN_ROWS))
        p.now = NOW
        yield Found(p, p.run(FIRST_DAY, LAST_DAY))


def _assert_quarantined_as_said(found: Found, case: Case, key: str, body: bytes) -> None:
    rows = [row for row in found.quarantine if row["object_key"] == key]
    assert {row["line_number"]: row["reason"] for row in rows} == case.reasons
    assert len(rows) == len(case.reasons)
    for row in rows:
        if row["line_number"] is None:
            bad = body
            assert row["byte_offset"] == 0
        else:
            text = gzip.decompress(body)
            bad = text.split(b"\n")[row["line_number"] - 1]
            assert text[row["byte_offset"] : row["byte_offset"] + row["byte_length"]] == bad
        assert row["byte_length"] == len(bad)
        assert bytes(row["sample"]) == bad[:512]
        assert row["is_batch_accepted"] == (case.batch is BatchFate.ACCEPTED)
        assert row["detail"]


def _assert_fate(found: Found, case: Case, day: date) -> None:
    p = found.pipeline
    files = _files(case, day)
    name, body = next(iter(files.items()), ("", b""))
    key = f"{PROJECT}/{name}"
    is_accepted = case.batch is BatchFate.ACCEPTED

    _assert_quarantined_as_said(found, case, key, body)
    rows = found.raw_rows(key)
    assert tuple(sorted(rows)) == (case.raw_lines if is_accepted else ())
    for number, columns in case.stored.items():
        assert {column: rows[number][column] for column in columns} == columns
    recorded = p.ledger.deliveries(Source.REGULAR, [PROJECT], day, day, is_accepted=is_accepted)
    is_delivery = case.object not in (ObjectFate.NONE, ObjectFate.NOT_LOADED)
    assert (key in recorded) == is_delivery
    if is_delivery:
        assert recorded[key].blank == case.blank_lines
        assert recorded[key].is_accepted == is_accepted
        assert recorded[key].error == case.reasons.get(None)
        assert recorded[key].quarantined == sum(number is not None for number in case.reasons)
    if case.object is ObjectFate.NOT_LOADED:
        for file in case.build(day):
            assert f"{PROJECT}/{file} is not loaded" in found.log
            assert not found.raw_rows(f"{PROJECT}/{file}")

    batch = p.batch(day)
    verdicts = {BatchFate.ACCEPTED: "accepted", BatchFate.REFUSED: "refused", BatchFate.WAITING: "waiting"}
    assert batch.verdict.value == verdicts[case.batch]
    assert case.refusal.replace("{key}", key) in (batch.reason or "")
    (shown,) = (
        s for s in day_statuses(p.ledger, [PROJECT], [day], [Source.REGULAR]) if s.table == "raw/regular_events"
    )
    assert [said for said in shown.reasons if "_extra" in said] == (
        [f"{PROJECT}: {case.unread}"] if case.unread else []
    )
    assert is_accepted == (batch.hint is None)
    if is_accepted and case.line is LineFate.QUARANTINED:
        assert f"1 line quarantined in {key}: " in (batch.reason or "")
    elif is_accepted and not case.reasons:
        assert batch.reason is None
    assert (batch.is_closed and batch.partial_hours is not None) == case.is_short
    neighbours = NEIGHBOUR_ROWS if case.has_neighbour else 0
    own = len(case.raw_lines) if case.refined_rows is None else case.refined_rows
    of_case = sum(len(found.raw_rows(f"{PROJECT}/{file}")) for file in case.build(day))
    assert found.refined_rows(day) == (own + neighbours if is_accepted else 0)
    assert sum(row["_arrival_date"] == day for row in found.raw) == (of_case + neighbours if is_accepted else 0)
    for table in DERIVED:
        good = "published" if own + neighbours else "unchanged"
        assert p.verdict(table, day) == (good if is_accepted else "waiting"), table
    told = re.findall(rf"{day} raw/regular_events {PROJECT} (\w+)", found.run.failure())
    assert told == ([verdicts[case.batch]] if case.batch is BatchFate.REFUSED else [])


def test_a_day_says_how_many_of_its_events_have_no_id(bad_landing: Found) -> None:
    day = CASE_DAYS[BLANK_IDS]
    shown = bad_landing.run.metadata("refined/events", day)
    assert (shown["rows_without_id"], shown["rows_with_blank_id"]) == (2, 2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_input_ends_as_the_table_says(bad_landing: Found, case: Case) -> None:
    _assert_fate(bad_landing, case, CASE_DAYS[case.name])


def test_all_other_days_are_published_and_count_exactly(bad_landing: Found) -> None:
    p = bad_landing.pipeline
    raw = Counter(row["event_date"] for row in bad_landing.raw)
    refined = Counter(row["event_date"] for row in bad_landing.refined)
    counted: Counter[date] = Counter()
    for row in p.rows("aggregates/event_counts"):
        counted[row["event_date"]] += row["events"]
    for day in PLAIN_DAYS:
        assert raw[day] == refined[day] == counted[day] == PLAIN_ROWS
        assert {p.verdict(table, day) for table in DERIVED} == {"published"}
        assert str(day) not in bad_landing.run.failure()
    assert set(raw) == set(refined) == set(counted)
    assert set(raw) <= {*PLAIN_DAYS, *CASE_DAYS.values()}


def test_a_day_is_provisional_while_an_arrival_that_may_change_it_is_not_settled(bad_landing: Found) -> None:
    """A final day is one that no batch of its next three days can still change."""
    slices = bad_landing.pipeline.ledger.slices("refined/events", [PROJECT])
    unsettled = {CASE_DAYS[case.name] for case in CASES if case.other_days is OtherDays.PROVISIONAL}
    provisional = {day - timedelta(days=shift) for day in unsettled for shift in range(4)}
    provisional |= {CASE_DAYS[case.name] for case in CASES if case.other_days is OtherDays.ITSELF_PROVISIONAL}
    held = {key.event_date: record.is_final for key, record in slices.items()}
    assert {day for day, is_final in held.items() if not is_final} == provisional & held.keys()
    assert {day for day, is_final in held.items() if is_final}


def test_the_failure_names_each_refused_day_and_no_other(bad_landing: Found) -> None:
    assert not bad_landing.run.success
    bad = {str(CASE_DAYS[case.name]) for case in CASES if case.batch is BatchFate.REFUSED}
    told = bad_landing.run.failure()
    days = {table: set(re.findall(rf"(\S+) {table} {PROJECT} ", told)) for table in ("raw/regular_events", *DERIVED)}
    assert days.pop("raw/regular_events") == bad
    assert set().union(*days.values()) == bad
    assert all(of == bad for of in days.values()) or told.endswith("more characters)")


def test_loading_again_publishes_nothing_and_fails_nothing(bad_landing: Found) -> None:
    p = bad_landing.pipeline
    before = p.snapshots()
    again = p.must_run(FIRST_DAY, LAST_DAY)
    assert p.snapshots() == before
    assert again.failed_checks() == bad_landing.run.failed_checks()


def test_a_key_with_an_empty_segment_hides_no_other(pipeline: Any, bucket: Any) -> None:
    """Scenario: a bucket holds a key with `//`. Outcome: it is named, all others are loaded."""
    from dagster_aws.s3 import S3Resource

    from resources.landing.store import LandingStore

    p = pipeline(landing_url="s3://tidemark-test/exports")
    # Set on the resource, because this session's workers started before the server.
    s3 = S3Resource(endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
    p.resources["landing"] = LandingStore.from_settings(p.settings, s3)
    for name, body in _files(IN_A_BUCKET, FIRST_DAY).items():
        bucket.put_object(Key=f"exports/{PROJECT}/{name}", Body=body)
    run = p.must_run(FIRST_DAY)
    _assert_fate(Found(p, run), IN_A_BUCKET, FIRST_DAY)


def test_an_empty_landing_is_refused_and_changes_nothing(pipeline: Any) -> None:
    """Scenario: the project's folder is missing, then empty. Outcome: refused with reason and cure, nothing is written."""
    p = pipeline()
    snapshots: dict[str, int] = {}
    for day in (FIRST_DAY, FIRST_DAY + timedelta(days=1)):
        run = p.load(day)
        assert not run.success
        found = Found(p, run)
        _assert_fate(found, EMPTY_LANDING, day)
        assert not found.raw
        assert not found.quarantine
        batch = p.batch(day)
        assert "Check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS" in (batch.hint or "")
        assert p.snapshots() == (snapshots or p.snapshots())
        snapshots = p.snapshots()
        (p.landing / PROJECT).mkdir(exist_ok=True)
    p.must_load(FIRST_DAY)
    assert p.snapshots() == snapshots


def _row(case: Case) -> str:
    reasons = sorted(set(case.reasons.values()))
    named = f": `{reasons[0]}`" if reasons else ""
    line, delivered = str(case.line), str(case.object)
    if case.line is LineFate.QUARANTINED:
        line += named
    elif case.object is ObjectFate.QUARANTINED:
        delivered += named
    if case.keeps:
        line = case.keeps if case.line is LineFate.NONE else f"{line}: {case.keeps}"
    return f"| {' | '.join((case.name, line, delivered, case.batch, case.other_days, case.hint))} |"


def the_table() -> str:
    head = "| input | line | object | batch | other days | what you do |\n|---|---|---|---|---|---|"
    return "\n".join([head, *map(_row, [*CASES, IN_A_BUCKET, EMPTY_LANDING])])


_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def test_the_document_shows_these_cases() -> None:
    found, *_ = _TABLE.findall(DOCUMENT.read_text("utf-8"))
    assert found == the_table() + "\n", "run python -m tests.scenarios.test_bad_inputs"


if __name__ == "__main__":
    text = DOCUMENT.read_text("utf-8")
    DOCUMENT.write_text(_TABLE.sub(lambda _: the_table() + "\n", text, count=1), "utf-8")
