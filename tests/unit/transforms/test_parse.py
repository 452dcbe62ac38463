"""Reading accounts for every line of every object, and spreads objects evenly."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from itertools import product
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import NOT_READABLE, UNREADABLE
from pipeline_assets.domain.deliveries import QuarantineReason as Reason
from pipeline_assets.domain.errors import LandingUnavailableError, UnreadableObjectError
from pipeline_assets.domain.machine import MOST_TEXT_BYTES, TooLargeHereError, here
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.tables.events import QUARANTINE, REGULAR_EVENTS
from pipeline_assets.tables.table import TableColumn
from pipeline_assets.transforms import parse
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.event_hashes import HASH_COLUMNS
from pipeline_assets.transforms.object_text import MOVED, REFUSED, ROWS, Share, hashed_objects, shares
from pipeline_assets.transforms.parse import ObjectWork
from tests.support.builders import PROJECT
from tests.support.read_objects import DAY, Objects, Read, a_share, read

MAX_OBJECT_BYTES, MAX_LINE_BYTES = 4 << 20, 1 << 20
DOWN = LandingUnavailableError("down", "timed out", "Try again later")
ARCHIVED = UnreadableObjectError("archived", "landing refused: InvalidObjectState", "Restore it")
GOOD_LINE = b'{"event_time":"2026-02-02 10:00:00.000001","app":10001,"event_type":"click"}'


def read_by(reader: Objects, *objects: Share, most: int = MAX_OBJECT_BYTES, only_refused: bool = False) -> Read:
    return read(ObjectWork(reader, most, MAX_LINE_BYTES, only_refused=only_refused), objects)


def read_body(body: bytes, most: int = MAX_OBJECT_BYTES) -> Read:
    return read_by(Objects({"a": body}), a_share("a"), most=most)


LONG_LINE = GOOD_LINE + b" " * MAX_LINE_BYTES
MANY = gzip.compress(
    b"".join(b'{"app":10001,"event_time":"2026-02-02 10:00:00","event_id":%d}\n' % i for i in range(25_000))
)
CRC = MANY[:-8] + bytes(byte ^ 0xFF for byte in MANY[-8:-4]) + MANY[-4:]

WHOLE_OBJECTS = {
    "zero bytes": (b"", Reason.EMPTY_OBJECT),
    "no gzip": (GOOD_LINE, Reason.NOT_GZIP),
    "cut": (MANY[: len(MANY) * 9 // 10], Reason.TRUNCATED_GZIP),
    "wrong sum": (CRC, Reason.CRC_ERROR),
    "garbage": (MANY + b"garbage", Reason.TRAILING_GARBAGE),
    "too large": (gzip.compress(b"\n" * (MAX_OBJECT_BYTES + 1)), Reason.OBJECT_TOO_LARGE),
    "another gzip": (gzip.compress(MANY), Reason.NOT_AN_EXPORT),
    "cut before it was compressed": (gzip.compress(GOOD_LINE + b"\n" + GOOD_LINE[:-9]), Reason.CUT_OFF),
}
LINES = {
    "bad json": (b'{"event_time":', Reason.BAD_JSON),
    "array": (b"[]", Reason.NOT_AN_OBJECT),
    "invalid utf-8": (GOOD_LINE.replace(b"click", b"\xff"), Reason.INVALID_UTF8),
    "deep": (b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}", Reason.TOO_DEEP),
    "long": (LONG_LINE, Reason.LINE_TOO_LONG),
    "64 bits": (GOOD_LINE[:-1] + b',"app":9223372036854775808}', Reason.VALUE_OUT_OF_RANGE),
    "unreadable": (GOOD_LINE[:-1] + b',"app":"twelve"}', Reason.VALUE_UNREADABLE),
    "late time": (GOOD_LINE[:-1] + b',"server_upload_time":"9999-12-31 23:59:59-01:00"}', Reason.VALUE_UNREADABLE),
    "surrogate in a time": (GOOD_LINE[:-1] + b',"server_upload_time":"\\ud83d"}', Reason.VALUE_UNREADABLE),
    "other project": (GOOD_LINE.replace(b"10001", b"10002"), Reason.PROJECT_MISMATCH),
    "no event time": (b"{}", Reason.EVENT_TIME_MISSING),
    "no time": (b'{"event_time":"soon"}', Reason.EVENT_TIME_UNREADABLE),
    "future": (b'{"event_time":"2026-02-04 00:00:00"}', Reason.EVENT_TIME_IN_FUTURE),
}
LENIENT = [
    GOOD_LINE[:-1] + b',"unknown":1,"city":"\\ud83d\\ud83d"}',
    GOOD_LINE[:-1] + b',"event_id":"12","location_lat":"1.5"}',
]
UNREADABLE_VALUES = [
    GOOD_LINE[:-1] + b',"processed_time":"2022:05:27 06:00:00.047099","event_id":"twelve"}',
    GOOD_LINE[:-1] + b',"processed_time":{"at":1},"paying":"","session_id":""}',
    b'{"event_time":"soon"}',
]
GOOD_OBJECTS = {
    "many": (MANY, 25_000, 25_000),
    "two members": (gzip.compress(GOOD_LINE + b"\n") + gzip.compress(GOOD_LINE), 2, 2),
    "valid and empty": (gzip.compress(b""), 0, 0),
    "blank": (gzip.compress(b"\n \r\n\t\n"), 3, 0),
    "marked": (gzip.compress(b"\xef\xbb\xbf" + GOOD_LINE + b"\r\n"), 1, 1),
    "lenient": (gzip.compress(b"\n".join([*LENIENT, GOOD_LINE])), 3, 3),
}


@dataclass(frozen=True)
class Accounts:
    """One task's summaries of all objects of the tables above."""

    objects: dict[str, dict[str, Any]]
    quarantine: dict[str, list[dict[str, Any]]]
    rows: list[dict[str, Any]]

    def lines_of(self, key: str) -> list[int]:
        return sorted(row["_line_number"] for row in self.rows if row["_object_key"] == key)


def body_with(line: bytes) -> bytes:
    return gzip.compress(b"\n".join([GOOD_LINE, b"", line, GOOD_LINE]) + b"\n")


@pytest.fixture(scope="module")
def accounts() -> Accounts:
    """One task over every kind of object, to show side effects."""
    objects = {
        **{key: body for key, (body, _) in WHOLE_OBJECTS.items()},
        **{key: body_with(line) for key, (line, _) in LINES.items()},
        "unreadable values": gzip.compress(b"\n".join(UNREADABLE_VALUES)),
        **{key: body for key, (body, *_) in GOOD_OBJECTS.items()},
    }
    told = read_by(Objects(objects), *[a_share(key, len(body)) for key, body in objects.items()], a_share("gone", 7))
    summaries, rows = told.summaries, told.rows
    quarantine: dict[str, list[dict[str, Any]]] = {}
    for row in told.refused:
        quarantine.setdefault(row["object_key"], []).append(row)
        assert (row["source"], row["project_id"], row["arrival_date"]) == ("regular", PROJECT, DAY)
        assert row["object_etag"] == f"etag of {row['object_key']}"
    for row in rows:
        assert (row["project_id"], row["_arrival_date"]) == (PROJECT, DAY)
        assert row["_object_etag"] == f"etag of {row['_object_key']}"
    assert sorted(row["object_key"] for row in summaries) == sorted([*objects, "gone"])
    for row in summaries:
        assert row["lines"] == row["rows"] + row["quarantined"] + row["blank"]
        lines = [line for line in quarantine.get(row["object_key"], ()) if line["line_number"] is not None]
        # It also names the column, where the reason does not.
        reasons = json.loads(row["line_reasons"] or "{}")
        refused = {one.partition(":")[0]: count for one, count in reasons.items() if not one.startswith(UNREADABLE)}
        assert refused == Counter(line["reason"] for line in lines)
        if row["object_key"] in objects:
            body = objects[row["object_key"]]
            assert (row["size_bytes"], row["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    return Accounts({row["object_key"]: row for row in summaries}, quarantine, rows)


@pytest.mark.parametrize("key", WHOLE_OBJECTS)
def test_an_unreadable_object_is_one_quarantine_record_and_no_row(accounts: Accounts, key: str) -> None:
    (body, reason), summary = WHOLE_OBJECTS[key], accounts.objects[key]
    assert (summary["error"], summary["lines"], bool(summary["error_detail"])) == (reason.value, 0, True)
    (record,) = accounts.quarantine[key]
    assert (record["reason"], record["line_number"]) == (reason.value, None)
    assert (record["byte_offset"], record["byte_length"], record["sample"]) == (0, len(body), body[:512])
    assert accounts.lines_of(key) == []


@pytest.mark.parametrize("key", LINES)
def test_a_bad_line_costs_that_line_only(accounts: Accounts, key: str) -> None:
    line, reason = LINES[key]
    summary = accounts.objects[key]
    assert (summary["error"], summary["lines"], summary["rows"]) == (None, 4, 2)
    assert (summary["quarantined"], summary["blank"]) == (1, 1)
    (record,) = accounts.quarantine[key]
    assert (record["reason"], record["line_number"], record["sample"]) == (reason.value, 3, line[:512])
    assert (record["byte_offset"], record["byte_length"]) == (len(GOOD_LINE) + 2, len(line))
    assert 0 < len(record["detail"]) <= 1000
    assert accounts.lines_of(key) == [1, 4]


def test_every_reason_of_the_contract_has_an_example_and_nothing_but_the_bad_is_quarantined(accounts: Accounts) -> None:
    assert {reason for _, reason in (*WHOLE_OBJECTS.values(), *LINES.values())} == set(Reason)
    assert accounts.quarantine.keys() == WHOLE_OBJECTS.keys() | LINES.keys() | {"unreadable values"}


@pytest.mark.parametrize("key", GOOD_OBJECTS)
def test_a_good_object_gives_all_its_rows(accounts: Accounts, key: str) -> None:
    (_, lines, rows), summary = GOOD_OBJECTS[key], accounts.objects[key]
    assert (summary["error"], summary["lines"], summary["rows"]) == (None, lines, rows)
    assert (summary["quarantined"], summary["blank"]) == (0, lines - rows)
    assert accounts.lines_of(key) == list(range(1, rows + 1))


def test_unknown_keys_surrogates_and_numbers_as_text_are_read(accounts: Accounts) -> None:
    rows = {row["_line_number"]: row for row in accounts.rows if row["_object_key"] == "lenient"}
    assert (rows[1][EXTRA_COLUMN], rows[1]["city"]) == ('{"unknown":1}', "��")
    assert (rows[2]["event_id"], rows[2]["location_lat"]) == (12, 1.5)


def test_values_that_cannot_be_read_are_counted_by_column_beside_refused_lines(accounts: Accounts) -> None:
    found = accounts.objects["unreadable values"]
    assert (found["lines"], found["rows"], found["quarantined"]) == (3, 2, 1)
    unread = {f"{UNREADABLE}event_id": 1, f"{UNREADABLE}processed_time": 2}
    assert json.loads(found["line_reasons"]) == {"event_time_unreadable": 1, **unread}
    rows = {row["_line_number"]: row for row in accounts.rows if row["_object_key"] == "unreadable values"}
    assert rows[1][EXTRA_COLUMN] == '{"event_id":"twelve","processed_time":"2022:05:27 06:00:00.047099"}'
    assert rows[2][EXTRA_COLUMN] == '{"processed_time":{"at":1}}'
    nulls = ("processed_time", "event_id", "paying", "session_id")
    assert {row[name] for row in rows.values() for name in nulls} == {None}


def test_an_object_that_moved_is_named_and_fails_nothing(accounts: Accounts) -> None:
    summary = accounts.objects["gone"]
    assert (summary["error"], summary["error_detail"]) == (MOVED, "was overwritten")
    assert (summary["size_bytes"], summary["sha256"], summary["lines"]) == (7, None, 0)
    assert accounts.lines_of("gone") == []


def test_a_landing_out_of_reach_fails_the_task() -> None:
    """A transport fault is retried, never recorded as an object's."""
    with pytest.raises(LandingUnavailableError):
        read_by(Objects({"down": DOWN}), a_share("down"))


def test_rows_have_the_columns_of_the_tables() -> None:
    def typed(columns: Iterable[TableColumn]) -> dict[str, Any]:
        return {column.name: ARROW_TYPES[column.type] for column in columns}

    assert dict(zip(ROWS.names, ROWS.types, strict=True)) == {
        name: kind for name, kind in typed(REGULAR_EVENTS.columns).items() if name not in HASH_COLUMNS
    }
    refused = typed(QUARANTINE.columns)
    assert refused.pop("is_batch_accepted") == ARROW_TYPES["boolean"]
    assert dict(zip(REFUSED.names, REFUSED.types, strict=True)) == refused


def test_projects_and_days_stay_apart() -> None:
    changes: list[dict[str, Any]] = [{}, {"source": Source.BACKFILL}, {"project": "10002"}, {"day": date(2026, 2, 3)}]
    objects = [a_share(key, **change) for key, change in zip("abcd", changes, strict=True)]
    body = gzip.compress(b'{"event_type":"a","event_time":"2026-02-02T00:30:00+01:00"}')
    told = read_by(Objects(dict.fromkeys("abcd", body)), *objects)
    found = {row["_object_key"]: (row["project_id"], row["_arrival_date"], row["event_date"]) for row in told.rows}
    batches = {share.delivery.key: share.delivery.batch for share in objects}
    assert found == {key: (one.project_id, one.arrival_date, date(2026, 2, 1)) for key, one in batches.items()}


def test_only_what_was_read_is_hashed() -> None:
    """Outcome: the hash of the stored bytes, gzip or not; none for an object that moved or is refused."""
    archive = Objects({"a": b"bytes", "b": b"", "down": DOWN, "archived": ARCHIVED})
    assert hashed_objects(archive, [a_share(key) for key in ("a", "archived", "gone", "b")]) == {
        "a": hashlib.sha256(b"bytes").hexdigest(),
        "b": hashlib.sha256(b"").hexdigest(),
    }
    with pytest.raises(LandingUnavailableError):
        hashed_objects(archive, [a_share("a"), a_share("down")])


def test_refused_lines_alone_are_kept_where_no_other_is_asked_for() -> None:
    objects = {"good": gzip.compress(GOOD_LINE), "odd": body_with(b"[]"), "many": MANY}
    places = [a_share(key, len(body)) for key, body in objects.items()]
    told = [read_by(Objects(objects), *places, only_refused=only_refused) for only_refused in (False, True)]
    assert (told[0].refused, told[0].summaries) == (told[1].refused, told[1].summaries)
    assert len(told[0].rows) == 25_003
    assert told[1].rows == []


@pytest.mark.parametrize(("inflated", "most", "error"), [
    (MOST_TEXT_BYTES, 2 * MOST_TEXT_BYTES, None),
    (MOST_TEXT_BYTES + 1, 2 * MOST_TEXT_BYTES, None),
    # An operator's limit is below the driving process's.
    (2000, 1000, Reason.OBJECT_TOO_LARGE.value),
])  # fmt: skip
def test_what_inflates_beyond_the_driving_process_is_given_back(inflated: int, most: int, error: str | None) -> None:
    """Outcome: a worker reads it; it is refused only where no process may inflate it."""
    body = gzip.compress(GOOD_LINE + b"\n" + b"\n" * (inflated - len(GOOD_LINE) - 1))
    told = read_body(body, most)
    assert (len(told.rows), told.summaries[0]["error"]) == (error is None, error)
    with here(), nullcontext() if inflated <= MOST_TEXT_BYTES else pytest.raises(TooLargeHereError):
        assert read_body(body, most).as_text() == told.as_text()


def shared(sizes: list[int], tasks: int) -> list[list[int]]:
    """The sizes of each task's objects."""
    landing = [a_share(f"k{number:03}", size).delivery for number, size in enumerate(sizes)]
    return [[share.delivery.size_bytes for share in task] for task in shares(landing, tasks)]


def test_tasks_read_about_as_many_bytes_and_objects() -> None:
    """Outcome: each object is a task of its own where there are enough; no task gets all empty ones, which cost a request."""
    sizes = [90, 50, 40, 30, 30, 20, 10, 1, 1, 1]
    tasks = [sum(task) >> 20 for task in shared([size << 20 for size in sizes], 3)]
    assert (len(tasks), sum(tasks), max(tasks) <= 95) == (3, sum(sizes), True)
    assert shared([5] * 4, 16) == [[5]] * 4
    assert shared([0] * 400, 4) == [[0] * 100] * 4


def test_a_task_reads_its_objects_by_project_day_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a day's rows come together, whatever the sizes."""
    monkeypatch.setattr("pipeline_assets.domain.skew.SPLIT_BYTES", 1)
    places = product(range(1, 9), (date(2026, 2, 3), DAY), ("10002", PROJECT))
    listed = [a_share(f"{number}", number, project=project, day=day).delivery for number, day, project in places]
    for task in shares(listed, 3, is_divided=True):
        names = [(one.batch.project_id, one.batch.arrival_date, one.key) for one in (share.delivery for share in task)]
        assert names == sorted(names)
    assert Counter(share.delivery for task in shares(listed, 3) for share in task) == Counter(listed)


def test_an_object_that_is_listed_as_too_large_is_refused_unread() -> None:
    """The shelf is empty: reading would say that the object moved."""
    told = read_by(Objects({}), a_share("a", MAX_OBJECT_BYTES + 1))
    (record,), (summary,) = told.refused, told.summaries
    assert (summary["error"], summary["sha256"]) == (Reason.OBJECT_TOO_LARGE.value, None)
    assert (record["reason"], record["byte_length"], record["sample"]) == (summary["error"], MAX_OBJECT_BYTES + 1, b"")
    assert "not read" in record["detail"]
    assert read_by(Objects({}), a_share("a", MAX_OBJECT_BYTES)).summaries[0]["error"] == MOVED


def test_an_object_that_landing_refuses_is_no_content() -> None:
    told = read_by(Objects({"archived": ARCHIVED, "b": gzip.compress(GOOD_LINE)}), a_share("archived"), a_share("b"))
    assert [row["_object_key"] for row in told.rows] == ["b"]
    assert [(one["object_key"], one["error"], one["error_detail"]) for one in told.summaries] == [
        ("archived", NOT_READABLE, "landing refused: InvalidObjectState"),
        ("b", None, None),
    ]
    assert not told.refused


def test_millions_of_blank_lines_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def each(_: object) -> None:
        raise AssertionError("looked at one by one")

    for parser in (EXPORT_FORMAT.line_parser, EXPORT_FORMAT.block_parser):
        monkeypatch.setattr(parser, "parse", each)
    (summary,) = read_body(gzip.compress(b"\n" * 2_000_000)).summaries
    assert (summary["lines"], summary["blank"], summary["error"]) == (2_000_000, 2_000_000, None)


@pytest.mark.parametrize(("line_bytes", "most_rows"), [(200, 10), (4_000, 3)])
def test_batches_are_bounded_in_rows_and_bytes(
    monkeypatch: pytest.MonkeyPatch, line_bytes: int, most_rows: int
) -> None:
    for name, bound in (("_SMALL_BYTES", 0), ("_BATCH_ROWS", 10), ("_BATCH_BYTES", 10_000)):
        monkeypatch.setattr(parse, name, bound)
    line = GOOD_LINE[:-1] + b',"city":"' + b"x" * (line_bytes - len(GOOD_LINE)) + b'"}\n'
    sizes = read_body(gzip.compress(line * 35)).sizes
    assert (sum(sizes), max(sizes)) == (35, most_rows)


TWO_DAYS = (date(2026, 2, 2), date(2026, 2, 3))
ODD_LINES = (
    b'{"event_time":"2026-02-02 10:00:00.000001","app":10001,"event_type":"click","event_properties":{"a": 1}}',
    b'{"event_time":"2026-02-02 11:00:00.000001","app":10001,"unknown":"kept"}',
    b'{"event_time":"2026-02-02 11:00:00.000001","app":"10001"}',
    b'{"event_time":"2026-02-09 11:00:00.000001","app":10001}',
    b'{"event_time":"2026-02-02 11:00:00.000001","app":77}',
    b"{broken",
    b"",
    b"   \r",
    b'{"app":10001}',
    b'{"event_time":"2026-02-02 12:00:00.000001","app":10001,"event_type":"\xff"}',
    b'{"event_time":"2026-02-02 12:00:00.000001","app":10001,"city":"' + b"x" * 3000 + b'"}',
)


def a_shelf(rng: random.Random, oddity: float) -> tuple[Objects, list[Share]]:
    objects: dict[str, bytes] = {}
    places: list[Share] = []
    for number in range(rng.randrange(1, 40)):
        key = f"10001/{number}"
        lines = [rng.choice(ODD_LINES) if rng.random() < oddity else ODD_LINES[0] for _ in range(rng.randrange(0, 8))]
        body = gzip.compress(b"\n".join(lines) + rng.choice((b"", b"\n")))
        objects[key] = body[:-3] if rng.random() < oddity / 4 else body
        if rng.random() < oddity / 4:
            del objects[key]
        places.append(a_share(key, len(body), source=rng.choice([*Source]), day=rng.choice(TWO_DAYS)))
    return Objects(objects), places


def texts(shelf: Objects, parts: Iterable[list[Share]], max_line_bytes: int) -> list[str]:
    work = ObjectWork(shelf, 1 << 20, max_line_bytes)
    return sorted(text for part in parts for text in read(work, part).as_text())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("oddity", [0.0, 0.02, 0.4])
def test_together_they_give_what_each_gives_alone(seed: int, oddity: float) -> None:
    shelf, places = a_shelf(random.Random(seed), oddity)
    max_line_bytes = 2000 if seed % 2 else 10_000
    assert texts(shelf, [places], max_line_bytes) == texts(shelf, [[place] for place in places], max_line_bytes)


def test_they_are_parsed_at_once_and_as_soon_as_they_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(b"\n".join([ODD_LINES[0]] * 10) + b"\n")
    keys = [f"10001/{number}" for number in range(50)]
    places = [a_share(key, len(body)) for key in keys]

    def rows_of_batches() -> list[int]:
        return read(ObjectWork(Objects(dict.fromkeys(keys, body)), 1 << 20, 1 << 20), places).sizes

    assert rows_of_batches() == [500]
    for name, bound, rows in (("_MOST_LINES", 100, 100), ("_MOST_BYTES", 20 * len(ODD_LINES[0]), 20)):
        monkeypatch.setattr(parse, name, bound)
        assert rows_of_batches() == [rows] * (500 // rows)
