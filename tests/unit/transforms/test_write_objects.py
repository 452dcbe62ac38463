"""A task's rows come out by day, in bounded memory, and are written into a file for each slice, hashes included."""

from __future__ import annotations

import errno
import gzip
import io
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from itertools import count, groupby
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.domain import machine
from pipeline_assets.domain.errors import LakehouseError, ObjectMovedError
from pipeline_assets.domain.machine import MOST_TEXT_BYTES, TooLargeHereError, here
from pipeline_assets.formats.amplitude.columns import TRANSPORT_COLUMNS, VENDOR_COLUMNS
from pipeline_assets.load.deliveries.read import joined
from pipeline_assets.tables.events import CONTENT, EXTRA, QUARANTINE, REGULAR_EVENTS, VENDOR, event_hashes
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms import write_objects
from pipeline_assets.transforms.data_files import FileLayout
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.write_objects import DayClusters, Written, write_refused, write_rows
from resources.iceberg.upkeep import is_written
from tests.support.builders import PROJECT
from tests.support.read_objects import DAY, a_share
from tests.support.row_hash import event_hash


def columns_of(table: Table) -> dict[str, Any]:
    return {
        "field_ids": {column.name: at for at, column in enumerate(table.columns, 1)},
        "types": {column.name: column.type for column in table.columns},
    }


LAYOUT = FileLayout(
    table_uuid="0d1e6a4e-24c8-4a6a-8d62-3f1b5c7a9e10", folder="data", **columns_of(REGULAR_EVENTS),
    required=frozenset(("event_date", "project_id")), many_valued=frozenset(("uuid",)), day_column="event_date",
    spec_id=0, sort_order_id=1,
)  # fmt: skip
QUARANTINED = replace(
    LAYOUT, **columns_of(QUARANTINE), required=frozenset(("arrival_date", "project_id", "source")),
    many_valued=frozenset(), day_column="arrival_date", sort_order_id=0, sort_by=QUARANTINE.write_order,
)  # fmt: skip


@dataclass
class Shelf:
    """Landing and warehouse in memory; counts the files open for writing at once."""

    url = "shelf:/"
    objects: dict[str, bytes]
    files: dict[str, bytes] = field(default_factory=dict)
    open_now: int = 0
    most_open: int = 0
    full_after: int | None = None

    def open(self, key: str, etag: str = "") -> IO[bytes]:
        if key not in self.objects:
            raise ObjectMovedError(key, "was overwritten", "Load again")
        return io.BytesIO(self.objects[key])

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def create(self, name: str) -> IO[bytes]:
        assert name not in self.files
        if self.full_after is not None and len(self.files) >= self.full_after:
            raise LakehouseError(name, "cannot be written: No space left on device", "Make room")
        shelf = self

        class Body(io.BytesIO):
            def close(self) -> None:
                shelf.files[name] = self.getvalue()
                shelf.open_now -= 1
                super().close()

        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return Body()


def a_line(number: int, day: date, **more: Any) -> bytes:
    return json.dumps({"event_time": f"{day} 10:00:00", "event_id": number, "uuid": f"u{number}", **more}).encode()


def zipped(*lines: bytes) -> bytes:
    return gzip.compress(b"\n".join(lines), 1)


def run(shelf: Shelf, *projects: str, part: int = 0, parts: int = 1) -> Written:
    """One task's report; asserts that it equals the written files."""
    placed = zip(shelf.objects, projects, strict=True)
    group = [a_share(key, project=project, part=part, parts=parts) for key, project in placed]
    told = write_rows(ObjectWork(shelf, 1 << 24, 1 << 20), event_hashes(), LAYOUT, shelf, group)
    assert told.rows == sum(json.loads(file)["record-count"] for file in told.files)
    return told


def rows_of(shelf: Shelf) -> list[dict[str, Any]]:
    return [row for body in shelf.files.values() for row in pq.read_table(io.BytesIO(body)).to_pylist()]


def test_a_task_of_many_days_has_one_file_open_and_writes_each_once() -> None:
    """Scenario: two rounds of forty days, then another project. Outcome: 41 files, one open at a time; rows in order."""
    days = 40
    lines = [a_line(n, DAY - timedelta(days=n % days)) for n in range(2 * days)]
    shelf = Shelf({"a": zipped(*lines), "b": zipped(a_line(1, DAY)), "c": zipped(a_line(2, DAY))})

    found = run(shelf, PROJECT, "10002", "10002")

    files = [json.loads(file) for file in found.files]
    of_first = {(str(DAY - timedelta(days=n)), PROJECT, 2) for n in range(days)}
    assert {(*file["partition"], file["record-count"]) for file in files} == of_first | {(str(DAY), "10002", 2)}
    assert len(files) == days + 1 == len(shelf.files)
    assert shelf.most_open == 1
    for file in files:
        body = shelf.files[file["file-path"].removeprefix("shelf://")]
        rows = pq.read_table(io.BytesIO(body)).to_pylist()
        assert len(body) == file["file-size-in-bytes"]
        assert [str(row["event_date"]) for row in rows] == file["partition"][:1] * 2
        assert [row["_line_number"] for row in rows] == sorted(row["_line_number"] for row in rows)
        folder = f"data/event_date={file['partition'][0]}/project_id={file['partition'][1]}/"
        assert folder in file["file-path"]
        # Maintenance recognizes this name, should no snapshot ever refer to it.
        assert is_written(file["file-path"].removeprefix("shelf://"), LAYOUT.table_uuid)
    summaries = {row["object_key"]: row["rows"] for row in found.summaries}
    assert summaries == {"a": 2 * days, "b": 1, "c": 1}


def test_parts_of_an_object_are_the_object() -> None:
    """Scenario: twelve thousand lines in one to eight parts. Outcome: each row once, with its line; equal summaries."""
    odd = {7: b"   ", 4_001: b"[1]", 10_000: b"{", 11_999: b""}

    def in_order(shelf: Shelf) -> list[dict[str, Any]]:
        return sorted(rows_of(shelf), key=lambda row: row["_line_number"])

    lines = [odd.get(n, a_line(n, DAY - timedelta(days=n % 2), city="x" * (n % 50))) for n in range(1, 12_001)]
    body = zipped(*lines)
    whole = Shelf({"a": body})
    (summary,) = run(whole, PROJECT).summaries
    assert (summary["lines"], summary["rows"], summary["quarantined"], summary["blank"]) == (12_000, 11_996, 2, 2)
    for parts in (2, 3, 8):
        shelf = Shelf({"a": body})
        found = [run(shelf, PROJECT, part=part, parts=parts) for part in range(parts)]
        summaries = [summary for of_part in found for summary in of_part.summaries]
        assert len([one for one in summaries if one["rows"]]) > 1
        assert joined(summaries) == summary
        assert in_order(shelf) == in_order(whole)


def test_a_bad_object_is_bad_in_every_part_and_one_that_moved_between_them_moved() -> None:
    """Outcome: counts of some parts are never the object's."""
    good, broken = (gzip.compress(a_line(1, DAY)), gzip.compress(a_line(1, DAY))[:-3])
    parts = [run(Shelf({"a": broken}), PROJECT, part=part, parts=2).summaries[0] for part in range(2)]
    assert joined(parts) == parts[0]
    assert parts[0]["error"] == "truncated_gzip"
    (read,) = run(Shelf({"a": good}), PROJECT, part=0, parts=2).summaries
    for other in (broken, gzip.compress(a_line(2, DAY))):
        (later,) = run(Shelf({"a": other}), PROJECT, part=1, parts=2).summaries
        moved = joined([read, later])
        assert (moved["error"], moved["rows"], moved["lines"], moved["sha256"]) == ("moved", 0, 0, None)


def test_every_row_carries_the_hashes_of_what_was_parsed() -> None:
    """Outcome: the Python reference's hashes; a row with another transport shares its meaning alone."""
    here: dict[str, Any] = {"city": "Köln", "location_lat": 1.5}
    again = a_line(1, DAY, **here, processed_time="2026-02-02 11:00:00")
    shelf = Shelf({"a": zipped(a_line(1, DAY, **here), a_line(2, DAY, unknown=1), again)})

    run(shelf, PROJECT)

    types = {column.name: column.type for column in (*VENDOR, EXTRA)}
    assert list(types) == list(CONTENT)
    assert {*VENDOR_COLUMNS} < set(CONTENT)
    rows = rows_of(shelf)
    for row in rows:
        assert (row["_hash_a"], row["_hash_b"], row["_meaning_hash"]) == event_hash(row, types, TRANSPORT_COLUMNS)
    assert len({(row["_hash_a"], row["_hash_b"]) for row in rows}) == 3
    assert rows[0]["_meaning_hash"] == rows[2]["_meaning_hash"] != rows[1]["_meaning_hash"]


def test_a_full_warehouse_fails_the_task_by_its_name_and_leaves_nothing() -> None:
    shelf = Shelf({"a": zipped(*(a_line(n, DAY - timedelta(days=n)) for n in range(3)))}, full_after=1)
    with pytest.raises(LakehouseError, match="No space left"):
        run(shelf, PROJECT)
    assert not shelf.files


def test_a_task_that_is_given_back_leaves_nothing() -> None:
    """Scenario: in the driving process, an object of too much text follows one whose file is written."""
    bomb = gzip.compress(a_line(1, DAY) + b"\n" * (MOST_TEXT_BYTES + 1))
    shelf = Shelf({"a": gzip.compress(a_line(1, DAY)), "b": bomb})
    with here(), pytest.raises(TooLargeHereError):
        run(shelf, PROJECT, "10002")
    assert not shelf.files
    assert run(shelf, PROJECT, "10002").rows == 2


def test_refused_lines_and_objects_are_files_of_quarantine() -> None:
    """Outcome: a file for each arrival day; every refused line with its place and its batch's verdict; no good line."""
    later = DAY + timedelta(days=1)
    good, bad = a_line(1, DAY), b"\xff{"
    shelf = Shelf({"a": zipped(good, bad, b""), "b": b"no gzip", "c": zipped(b"[1]", good)})
    group = [a_share("a"), a_share("b", day=later), a_share("c", day=later)]
    work = ObjectWork(shelf, 1 << 24, 1 << 20, only_refused=True)
    accepted = {a_share("a").delivery.batch}

    told = write_refused(work, QUARANTINED, shelf, accepted, group)

    assert [json.loads(file)["partition"] for file in told.files] == [[str(DAY), PROJECT], [str(later), PROJECT]]
    assert [one["object_key"] for one in told.summaries] == ["a", "b", "c"]
    rows = sorted(rows_of(shelf), key=lambda row: row["object_key"])
    names = ("object_key", "line_number", "reason", "is_batch_accepted", "sample")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("a", 2, "invalid_utf8", True, bad),
        ("b", None, "not_gzip", False, b"no gzip"),
        ("c", 1, "not_an_object", False, b"[1]"),
    ]
    full = Shelf(shelf.objects, full_after=1)
    with pytest.raises(LakehouseError, match="No space left"):
        write_refused(replace(work, reader=full), QUARANTINED, full, accepted, group)
    assert not full.files


Row = tuple[str, int, int]
"""Project, days before DAY, number."""
_BACKS = st.lists(st.integers(0, 5), min_size=1, max_size=6)
_OBJECTS = st.lists(st.tuples(st.sampled_from(["1", "2"]), _BACKS), max_size=12)


def a_batch(rows: Iterable[Row], *, payload: str = "") -> pa.RecordBatch:
    names = ("project_id", "event_date", "number", "payload")
    listed = [(project, DAY - timedelta(days=back), number, payload) for project, back, number in rows]
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in listed])


def order_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    rows = (row for batch in batches for row in batch.to_pylist())
    return [(row["project_id"], (DAY - row["event_date"]).days, row["number"]) for row in rows]


def assert_in_order(found: list[Row], given_rows: list[Row]) -> None:
    """Each day in one piece, its rows in order, none lost."""
    pieces = [key for key, _ in groupby(row[:2] for row in found)]
    assert len(pieces) == len(set(pieces))
    for key in set(pieces) | {row[:2] for row in given_rows}:
        assert [row for row in found if row[:2] == key] == [row for row in given_rows if row[:2] == key]


@given(_OBJECTS, st.sampled_from([1, 200, 1 << 20]), st.sampled_from([3, 1000]))
def test_days_come_one_after_the_other_however_they_are_mixed(
    objects: list[tuple[str, list[int]]], held: int, many: int
) -> None:
    """Outcome: passed and held rows each have a day in one piece; only an opened day is in both."""
    number = count()
    rows = [[(project, back, next(number)) for back in backs] for project, backs in objects]
    given_rows = [row for of_object in rows for row in of_object]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(write_objects, "_MANY_ROWS", many)
        days = DayClusters(held)
        passed = order_of(one for of_object in rows for one in days.add(a_batch(of_object)))
        rest = order_of(days.rest())
    days.close()
    assert_in_order(passed, [row for row in given_rows if row in passed])
    assert_in_order(rest, [row for row in given_rows if row not in passed])
    assert many == 3 or not {row[:2] for row in passed} & {row[:2] for row in rest}


def test_the_usual_day_is_not_held_back() -> None:
    days = DayClusters(1)
    (first,) = days.add(a_batch([("1", 0, 1), ("1", 0, 2), ("1", 3, 3)]))
    (second,) = days.add(whole := a_batch([("1", 0, 4)]))
    assert order_of([first]) == [("1", 0, 1), ("1", 0, 2)]
    assert second is whole
    assert order_of(days.rest()) == [("1", 3, 3)]
    days.close()


def test_another_day_with_most_rows_of_a_large_batch_is_opened_once() -> None:
    """Outcome: days pass as they come, until one would be opened again; late rows wait for the end."""
    days = DayClusters()
    passed = [
        list(days.add(a_batch([("1", back, place) for place in range(1000)] + [("1", late, 0)] * 2)))
        for back, late in ((1, 1), (0, 1), (1, 0))
    ]
    assert [{row[1] for row in order_of(found)} for found in passed] == [{1}, {0}, {0}]
    assert [len(order_of(found)) for found in passed] == [1002, 1000, 2]
    rest = order_of(days.rest())
    assert rest == [("1", 1, 0)] * 2 + [("1", 1, place) for place in range(1000)]
    days.close()


def test_what_is_held_is_bounded_and_comes_back_from_disk() -> None:
    chance, given_rows, found, held = random.Random(7), [], [], 64 * 1024
    days = DayClusters(held)
    for number in range(40):
        rows = [("1", chance.choice([0, 0, 0, 5, *range(1, 60)]), number * 1000 + place) for place in range(50)]
        given_rows += rows
        found += days.add(a_batch(rows, payload="x" * 100))
        assert days.held_bytes < held
    rest = list(days.rest())
    days.close()
    assert sum(batch.nbytes for batch in rest) > 2 * held
    assert max(batch.nbytes for batch in rest) < held
    assert_in_order(order_of([*found, *rest]), given_rows)


def test_a_full_disk_is_named_as_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", full)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp")
    days = DayClusters(1)
    with pytest.raises(LakehouseError, match=r"/tmp: is full .*spark.local.dir"), machine.naming_the_disk():
        list(days.add(a_batch([("1", 0, 1), ("1", 0, 2), ("1", 3, 3)])))
