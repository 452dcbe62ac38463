"""The parse job accounts for every line of every object, whatever is in them, and spreads the objects evenly.

Contains: claims on the job's three views and on how work is spread.
Add here: what a bad object does to the rest of a load.
Does not contain: how one line reads (test_event_lines.py) and one body (test_object_bodies.py).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark import cloudpickle

from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey, Delivery
from pipeline_assets.domain.errors import LandingUnavailableError, ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.quarantine_reasons import UNREADABLE
from pipeline_assets.domain.quarantine_reasons import QuarantineReason as Reason
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.columns import DELIVERED_KEYS, VENDOR_COLUMNS
from pipeline_assets.formats.base import EXTRA_COLUMN, ColumnType
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms import parse
from pipeline_assets.transforms.object_text import MOVED, SAME_BYTES
from pipeline_assets.transforms.parse import parse_objects
from pipeline_assets.transforms.parsed_batches import object_summaries, quarantined
from pipeline_assets.transforms.spread import distribute

pytestmark = pytest.mark.slow
PROJECT, DAY = "10001", date(2026, 2, 2)
MAX_OBJECT_BYTES, MAX_LINE_BYTES = 4 << 20, 1 << 20
DATA = Path(__file__).parents[2] / "data" / "airbyte_source_amplitude"
GOOD_LINE = b'{"event_time":"2026-02-02 10:00:00.000001","app":10001,"event_type":"click"}'

# Spark's workers do not have this module on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Shelf:
    """A landing in memory: a missing key has moved, a None cannot be reached."""

    objects: Mapping[str, bytes | None]

    def open(self, key: str, etag: str) -> IO[bytes]:
        if key not in self.objects:
            raise ObjectMovedError(key, "was overwritten", "Load again")
        body = self.objects[key]
        if body is None:
            raise LandingUnavailableError(key, "timed out", "Try again later")
        return io.BytesIO(body)


def a_delivery(
    key: str, size: int = 1, *, source: Source = Source.REGULAR, project: str = PROJECT, day: date = DAY
) -> Delivery:
    return Delivery(BatchKey(source, project, day), hour=1, shard=1, key=key, etag=f"etag of {key}", size_bytes=size)


def parsed_by(spark: Any, reader: Shelf, *deliveries: Delivery, known: Mapping[str, str] | None = None) -> Any:
    objects = distribute(spark, deliveries, 3, known or {})
    return parse_objects(objects, reader, max_object_bytes=MAX_OBJECT_BYTES, max_line_bytes=MAX_LINE_BYTES)


def event_rows(parsed: Any, source: Source) -> Any:
    """The good lines of one source, as raw keeps them."""
    return parsed.where((F.col("_kind") == "row") & (F.col("_source") == source.value)).select(
        "event_date",
        "project_id",
        *VENDOR_COLUMNS,
        EXTRA_COLUMN,
        "_object_key",
        "_object_etag",
        "_line_number",
        "_arrival_date",
    )


def listed(frame: Any) -> list[dict[str, Any]]:
    """Rows as Python values; times stay aware, which `collect` would turn into the machine's local time."""
    return frame.toArrow().to_pylist()


LONG_LINE = GOOD_LINE + b" " * MAX_LINE_BYTES
MANY = gzip.compress(
    b"".join(b'{"app":10001,"event_time":"2026-02-02 10:00:00","event_id":%d}\n' % i for i in range(25_000))
)
CRC = MANY[:-8] + bytes(byte ^ 0xFF for byte in MANY[-8:-4]) + MANY[-4:]

WHOLE_OBJECTS: dict[str, tuple[bytes, Reason]] = {
    "zero bytes": (b"", Reason.EMPTY_OBJECT),
    "no gzip": (GOOD_LINE, Reason.NOT_GZIP),
    "cut": (MANY[: len(MANY) * 9 // 10], Reason.TRUNCATED_GZIP),
    "wrong sum": (CRC, Reason.CRC_ERROR),
    "garbage": (MANY + b"garbage", Reason.TRAILING_GARBAGE),
    "too large": (gzip.compress(b"\n" * (MAX_OBJECT_BYTES + 1)), Reason.OBJECT_TOO_LARGE),
    "another gzip": (gzip.compress(MANY), Reason.NOT_AN_EXPORT),
    "cut before it was compressed": (gzip.compress(GOOD_LINE + b"\n" + GOOD_LINE[:-9]), Reason.CUT_OFF),
}
LINES: dict[str, tuple[bytes, Reason]] = {
    "bad json": (b'{"event_time":', Reason.BAD_JSON),
    "array": (b"[]", Reason.NOT_AN_OBJECT),
    "invalid utf-8": (GOOD_LINE.replace(b"click", b"\xff"), Reason.INVALID_UTF8),
    "deep": (b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}", Reason.TOO_DEEP),
    "long": (LONG_LINE, Reason.LINE_TOO_LONG),
    "64 bits": (GOOD_LINE[:-1] + b',"app":9223372036854775808}', Reason.VALUE_OUT_OF_RANGE),
    "unreadable": (GOOD_LINE[:-1] + b',"app":"twelve"}', Reason.VALUE_UNREADABLE),
    "time beyond years": (
        GOOD_LINE[:-1] + b',"server_upload_time":"9999-12-31 23:59:59-01:00"}',
        Reason.VALUE_UNREADABLE,
    ),
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
    "many": MANY,
    "two members": gzip.compress(GOOD_LINE + b"\n") + gzip.compress(GOOD_LINE),
    "valid and empty": gzip.compress(b""),
    "blank": gzip.compress(b"\n \r\n\t\n"),
    "marked": gzip.compress(b"\xef\xbb\xbf" + GOOD_LINE + b"\r\n"),
    "lenient": gzip.compress(b"\n".join([*LENIENT, GOOD_LINE])),
}


@dataclass(frozen=True)
class Accounts:
    """What one job over all objects of the tables above said."""

    objects: dict[str, dict[str, Any]]
    quarantine: dict[str, list[dict[str, Any]]]
    rows: list[dict[str, Any]]

    def lines_of(self, key: str) -> list[int]:
        return sorted(row["_line_number"] for row in self.rows if row["_object_key"] == key)


def body_with(line: bytes) -> bytes:
    """A bad line between good ones."""
    return gzip.compress(b"\n".join([GOOD_LINE, b"", line, GOOD_LINE]) + b"\n")


@pytest.fixture(scope="module")
def accounts(spark: Any) -> Accounts:
    """One job over every kind of object at once: what one does to the others would show."""
    objects = {
        **{key: body for key, (body, _) in WHOLE_OBJECTS.items()},
        **{key: body_with(line) for key, (line, _) in LINES.items()},
        "unreadable values": gzip.compress(b"\n".join(UNREADABLE_VALUES)),
        **GOOD_OBJECTS,
    }
    deliveries = [a_delivery(key, len(body)) for key, body in objects.items()] + [a_delivery("gone", 7)]
    parsed = parsed_by(spark, Shelf(objects), *deliveries).persist()
    try:
        summaries = listed(object_summaries(parsed))
        quarantine: dict[str, list[dict[str, Any]]] = {}
        for row in listed(quarantined(parsed)):
            quarantine.setdefault(row["object_key"], []).append(row)
        rows = listed(event_rows(parsed, Source.REGULAR))
        assert event_rows(parsed, Source.BACKFILL).isEmpty()
    finally:
        parsed.unpersist()
    assert sorted(row["object_key"] for row in summaries) == sorted(delivery.key for delivery in deliveries)
    for row in summaries:
        assert row["lines"] == row["rows"] + row["quarantined"] + row["blank"]
        lines = [line for line in quarantine.get(row["object_key"], ()) if line["line_number"] is not None]
        # Beside the reason it names the column, where the reason does not.
        reasons = json.loads(row["line_reasons"] or "{}")
        refused = {one.partition(":")[0]: count for one, count in reasons.items() if not one.startswith(UNREADABLE)}
        assert refused == Counter(line["reason"] for line in lines)
        assert (row["source"], row["project_id"], row["arrival_date"]) == ("regular", PROJECT, DAY)
        assert row["object_etag"] == f"etag of {row['object_key']}"
        if row["object_key"] in objects:
            body = objects[row["object_key"]]
            assert (row["size_bytes"], row["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    return Accounts({row["object_key"]: row for row in summaries}, quarantine, rows)


@pytest.mark.parametrize("key", WHOLE_OBJECTS)
def test_an_unreadable_object_is_one_quarantine_record_and_no_row(accounts: Accounts, key: str) -> None:
    body, reason = WHOLE_OBJECTS[key]
    summary = accounts.objects[key]
    assert (summary["error"], summary["lines"]) == (reason.value, 0)
    assert summary["error_detail"]
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
    assert (record["reason"], record["line_number"]) == (reason.value, 3)
    assert (record["byte_offset"], record["byte_length"]) == (len(GOOD_LINE) + 2, len(line))
    assert record["sample"] == line[:512]
    assert 0 < len(record["detail"]) <= 1000
    assert (record["source"], record["project_id"], record["arrival_date"]) == ("regular", PROJECT, DAY)
    assert accounts.lines_of(key) == [1, 4]


def test_every_reason_of_the_contract_is_held_by_an_example() -> None:
    assert {reason for _, reason in (*WHOLE_OBJECTS.values(), *LINES.values())} == set(Reason)


def test_nothing_but_the_bad_is_quarantined(accounts: Accounts) -> None:
    assert accounts.quarantine.keys() == WHOLE_OBJECTS.keys() | LINES.keys() | {"unreadable values"}


@pytest.mark.parametrize(
    ("key", "lines", "rows"),
    [
        ("many", 25_000, 25_000),
        ("two members", 2, 2),
        ("valid and empty", 0, 0),
        ("blank", 3, 0),
        ("marked", 1, 1),
        ("lenient", 3, 3),
    ],
)
def test_a_good_object_gives_all_its_rows(accounts: Accounts, key: str, lines: int, rows: int) -> None:
    summary = accounts.objects[key]
    assert (summary["error"], summary["lines"], summary["rows"]) == (None, lines, rows)
    assert (summary["quarantined"], summary["blank"]) == (0, lines - rows)
    assert accounts.lines_of(key) == list(range(1, rows + 1))


def test_leniency_is_counted_per_object(accounts: Accounts) -> None:
    found = accounts.objects["lenient"]
    assert (found["extra_key_rows"], found["replaced_surrogates"], found["lenient_conversions"]) == (1, 2, 2)
    rows = {row["_line_number"]: row for row in accounts.rows if row["_object_key"] == "lenient"}
    assert (rows[1][EXTRA_COLUMN], rows[1]["city"]) == ('{"unknown":1}', "��")
    assert (rows[2]["event_id"], rows[2]["location_lat"]) == (12, 1.5)
    others = [row for key, row in accounts.objects.items() if key not in ("lenient", "unreadable values")]
    assert not any(row["extra_key_rows"] or row["replaced_surrogates"] or row["lenient_conversions"] for row in others)


def test_values_that_cannot_be_read_are_counted_by_column_beside_refused_lines(accounts: Accounts) -> None:
    found = accounts.objects["unreadable values"]
    assert (found["lines"], found["rows"], found["quarantined"]) == (3, 2, 1)
    assert json.loads(found["line_reasons"]) == {
        "event_time_unreadable": 1,
        f"{UNREADABLE}event_id": 1,
        f"{UNREADABLE}processed_time": 2,
    }
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


def test_a_landing_out_of_reach_fails_the_job(spark: Any) -> None:
    """Trouble on the way is retried, never written down as an object's fault."""
    with pytest.raises(Exception, match="LandingUnavailableError"):
        parsed_by(spark, Shelf({"down": None}), a_delivery("down")).count()


def test_rows_have_the_raw_tables_columns(spark: Any) -> None:
    parsed = parsed_by(spark, Shelf({"a": gzip.compress(GOOD_LINE)}), a_delivery("a"))
    types = {"event_date": "date", "project_id": "string"}
    types |= {name: kind.spark_type for name, kind in VENDOR_COLUMNS.items()}
    types |= {EXTRA_COLUMN: "string", "_object_key": "string", "_object_etag": "string"}
    types |= {"_line_number": "int", "_arrival_date": "date"}
    assert dict(parsed.dtypes).items() >= types.items()
    assert quarantined(parsed).columns == [
        "source",
        "arrival_date",
        "project_id",
        "object_key",
        "object_etag",
        "line_number",
        "byte_offset",
        "byte_length",
        "reason",
        "detail",
        "sample",
    ]


def test_sources_projects_and_days_stay_apart(spark: Any) -> None:
    keys = {
        "a": a_delivery("a"),
        "b": a_delivery("b", source=Source.BACKFILL),
        "c": a_delivery("c", project="10002"),
        "d": a_delivery("d", day=date(2026, 2, 3)),
    }
    body = gzip.compress(b'{"event_type":"a","event_time":"2026-02-02T00:30:00+01:00"}')
    parsed = parsed_by(spark, Shelf(dict.fromkeys(keys, body)), *keys.values())
    for source in Source:
        assert {
            row["_object_key"]: (row["project_id"], row["_arrival_date"], row["event_date"])
            for row in listed(event_rows(parsed, source))
        } == {
            key: (d.batch.project_id, d.batch.arrival_date, date(2026, 2, 1))
            for key, d in keys.items()
            if d.batch.source is source
        }


def test_every_field_of_the_real_events_equals_the_source(spark: Any) -> None:
    objects = {path.name: path.read_bytes() for path in DATA.glob("*.gz")}
    deliveries = []
    for name, body in objects.items():
        project, arrived, _ = name.split("_")
        deliveries.append(a_delivery(name, len(body), project=project, day=date.fromisoformat(arrived)))
    rows = {
        (row["_object_key"], row["_line_number"]): row
        for row in listed(event_rows(parsed_by(spark, Shelf(objects), *deliveries), Source.REGULAR))
    }
    assert len(rows) == 8
    for name, body in objects.items():
        for number, line in enumerate(gzip.decompress(body).splitlines(), start=1):
            source, row = json.loads(line), rows[name, number]
            assert source.keys() <= DELIVERED_KEYS.keys()
            assert row[EXTRA_COLUMN] is None
            for key, column in DELIVERED_KEYS.items():
                expected = source.get(key)
                if expected is not None and VENDOR_COLUMNS[column] is ColumnType.TIMESTAMP:
                    expected = datetime.fromisoformat(expected).replace(tzinfo=UTC)
                if expected is not None and VENDOR_COLUMNS[column] is ColumnType.JSON:
                    assert f'"{key}": {row[column]}'.encode() in line
                    assert json.loads(row[column]) == expected
                else:
                    assert row[column] == expected, column
            assert row["event_date"] == date.fromisoformat(source["event_time"][:10])
            assert row["_arrival_date"] == date.fromisoformat(name.split("_")[1])


def test_known_bytes_are_hashed_and_not_parsed(spark: Any) -> None:
    same, other = a_delivery("same"), a_delivery("other")
    body = gzip.compress(GOOD_LINE)
    known = {"same": hashlib.sha256(body).hexdigest(), "other": hashlib.sha256(b"").hexdigest()}
    frame = parsed_by(spark, Shelf({"same": body, "other": body}), same, other, known=known)
    found = {row["object_key"]: row for row in listed(object_summaries(frame))}
    assert (found["same"]["error"], found["same"]["lines"], found["same"]["sha256"]) == (SAME_BYTES, 0, known["same"])
    assert (found["other"]["error"], found["other"]["rows"]) == (None, 1)
    assert [row["_object_key"] for row in listed(event_rows(frame, Source.REGULAR))] == ["other"]


# -- how work is spread ----------------------------------------------------------------------------------------


def buckets(spark: Any, deliveries: list[Delivery], parallelism: int) -> tuple[int, dict[str, int]]:
    """Number of tasks, and the task of each object."""
    objects = distribute(spark, deliveries, parallelism, {})
    rows = objects.select("object_key", F.spark_partition_id().alias("task")).collect()
    assert Counter(row["object_key"] for row in rows) == Counter(delivery.key for delivery in deliveries)
    return objects.rdd.getNumPartitions(), {row["object_key"]: row["task"] for row in rows}


def test_tasks_read_about_as_many_bytes(spark: Any) -> None:
    megabytes = [90, 50, 40, 30, 30, 20, 10, 1, 1, 1]
    deliveries = [a_delivery(f"k{i}", size << 20) for i, size in enumerate(megabytes)]
    count, task_of = buckets(spark, deliveries, 3)
    assert count == 3
    loads = Counter(dict.fromkeys(range(3), 0))
    for delivery in deliveries:
        loads[task_of[delivery.key]] += delivery.size_bytes >> 20
    assert sum(loads.values()) == sum(megabytes)
    assert max(loads.values()) <= 95


def test_each_object_is_a_task_of_its_own_where_there_are_enough(spark: Any) -> None:
    count, task_of = buckets(spark, [a_delivery(f"k{i}", 5) for i in range(4)], 16)
    assert count == 4
    assert sorted(task_of.values()) == [0, 1, 2, 3]


def test_empty_objects_are_spread_too(spark: Any) -> None:
    """An object that holds nothing still costs a request; none of the tasks gets them all."""
    _, task_of = buckets(spark, [a_delivery(f"k{i:03}", 0) for i in range(400)], 4)
    assert set(Counter(task_of.values()).values()) == {100}


def test_no_deliveries_are_an_empty_frame(spark: Any) -> None:
    assert buckets(spark, [], 4)[1] == {}
    assert parsed_by(spark, Shelf({})).isEmpty()


def a_place(key: str, size: int = 1) -> pa.RecordBatch:
    """A row of `distribute`, for a worker without Spark."""
    place = {
        "source": "regular",
        "project_id": PROJECT,
        "arrival_date": DAY,
        "object_key": key,
        "object_etag": "e",
        "size_bytes": size,
        "known_sha256": None,
        "part": 0,
        "parts": 1,
    }
    return pa.RecordBatch.from_pylist([place])


def test_an_object_that_is_listed_as_too_large_is_refused_unread() -> None:
    """The shelf is empty: reading would say that the object moved."""
    work = parse.ObjectWork(Shelf({}), MAX_OBJECT_BYTES, MAX_LINE_BYTES)
    record, summary = (batch.to_pylist()[0] for batch in work([a_place("a", MAX_OBJECT_BYTES + 1)]))
    assert (summary["error"], summary["sha256"]) == (Reason.OBJECT_TOO_LARGE.value, None)
    assert (record["reason"], record["byte_length"], record["sample"]) == (summary["error"], MAX_OBJECT_BYTES + 1, b"")
    assert "not read" in record["detail"]
    (summary,) = (batch.to_pylist()[0] for batch in work([a_place("a", MAX_OBJECT_BYTES)]))
    assert summary["error"] == MOVED


def test_an_object_that_landing_refuses_is_no_content() -> None:
    class Archive(Shelf):
        def open(self, key: str, etag: str) -> IO[bytes]:
            if key == "archived":
                raise UnreadableObjectError(key, "landing refused: InvalidObjectState", "Restore it")
            return super().open(key, etag)

    work = parse.ObjectWork(Archive({"b": gzip.compress(GOOD_LINE)}), MAX_OBJECT_BYTES, MAX_LINE_BYTES)
    found = [batch.to_pylist()[0] for batch in work([a_place("archived"), a_place("b")])]
    assert [(row["_kind"], row["_object_key"]) for row in found] == [
        ("object", "archived"),
        ("row", "b"),
        ("object", "b"),
    ]
    assert (found[0]["error"], found[0]["error_detail"]) == (NOT_READABLE, "landing refused: InvalidObjectState")


def test_millions_of_blank_lines_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def each(_: object) -> None:
        raise AssertionError("looked at one by one")

    for parser in (EXPORT_FORMAT.line_parser, EXPORT_FORMAT.block_parser):
        monkeypatch.setattr(parser, "parse", each)
    work = parse.ObjectWork(Shelf({"a": gzip.compress(b"\n" * 2_000_000)}), MAX_OBJECT_BYTES, MAX_LINE_BYTES)
    (summary,) = (batch.to_pylist()[0] for batch in work([a_place("a")]))
    assert (summary["lines"], summary["blank"], summary["error"]) == (2_000_000, 2_000_000, None)


@pytest.mark.parametrize(("line_bytes", "most_rows"), [(200, 10), (4_000, 3)])
def test_batches_are_bounded_in_rows_and_bytes(
    monkeypatch: pytest.MonkeyPatch, line_bytes: int, most_rows: int
) -> None:
    monkeypatch.setattr(parse, "_SMALL_BYTES", 0)
    monkeypatch.setattr(parse, "_BATCH_ROWS", 10)
    monkeypatch.setattr(parse, "_BATCH_BYTES", 10_000)
    line = GOOD_LINE[:-1] + b',"city":"' + b"x" * (line_bytes - len(GOOD_LINE)) + b'"}\n'
    work = parse.ObjectWork(Shelf({"a": gzip.compress(line * 35)}), MAX_OBJECT_BYTES, MAX_LINE_BYTES)
    batches = [batch for batch in work([a_place("a")]) if batch["_kind"][0].as_py() == "row"]
    assert sum(batch.num_rows for batch in batches) == 35
    assert max(batch.num_rows for batch in batches) == most_rows
