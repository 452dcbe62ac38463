"""Iceberg reads the tasks' files as it reads its own writer's."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.aggregates import DAILY_REVENUE
from pipeline_assets.tables.events import QUARANTINE, REFINED_EVENTS, REGULAR_EVENTS, event_hashes
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.data_files import DataFileWriter, FileLayout
from pipeline_assets.transforms.refine_task import Input, Refining, SliceWork
from resources.iceberg.lakehouse import Lakehouse
from resources.spark.session import configure_catalog
from tests.support.builders import PROJECT

pytestmark = pytest.mark.slow
FIRST, DAYS = date(2026, 1, 1), 60
_MOST = "\U0010ffff"
NASTY: dict[str, tuple[Any, ...]] = {
    "string": ("", "a", "x" * 16, "x" * 17, "é" * 17, _MOST * 17, "a" + _MOST * 17, "b" * 15 + "\ud7ff" + "c", "\x00", "z" * 9000,
               "\U0001f600" * 20, "y" * 15 + "\U0001f600" * 2),
    "bigint": (0, -1, (1 << 63) - 1, -(1 << 63)), "int": (0, -5, (1 << 31) - 1), "boolean": (True, False),
    "double": (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.25),
    "timestamp": (datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 1, 2, 3, 4, UTC)),
    "date": (date(1970, 1, 1), date(2, 1, 1), date(9999, 12, 31)),
    "decimal(38,6)": (Decimal(0), Decimal("-0.000001"), Decimal(f"{'9' * 32}.{'9' * 6}"), Decimal(f"-{'9' * 32}.{'9' * 6}")),
    "binary": (b"", b"\x00", b"a" * 17, b"\xff" * 17, b"b" * 15 + b"\xff" * 2, b"\x7f\x80", b"c" * 16),
}  # fmt: skip
_COUNTS, _BOUNDS = ("value-counts", "null-value-counts"), ("lower-bounds", "upper-bounds")
_NEGATIVE_ZERO, _ZERO = "0000000000000080", "0000000000000000"


def _rows(rng: random.Random, table: Table, day: date) -> list[dict[str, Any]]:
    """One day's rows; each column draws on few of its extremes, so that days differ in their bounds."""
    drawn = {
        column.name: rng.choices((*NASTY[column.type], *([] if column.is_required else [None])), k=rng.randrange(1, 4))
        for column in table.columns
    }
    rows = [{name: rng.choice(values) for name, values in drawn.items()} for _ in range(rng.randrange(1, 6))]
    return [row | {table.day_column: day, "project_id": PROJECT} for row in rows]


def _batches(layout: FileLayout, rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    return pa.Table.from_pylist(rows, layout.schema).to_batches()


def _told(java: Any, spark: Any, file: Any) -> dict[str, Any]:
    return dict(json.loads(spark._jvm.org.apache.iceberg.ContentFileParser.toJson(file, java.spec())))


def _figures(told: dict[str, Any], name: str) -> dict[int, Any]:
    """Field id -> figure; Parquet treats both zeros as one."""
    values = (_ZERO if value == _NEGATIVE_ZERO else value for value in told[name]["values"])
    return dict(zip(told[name]["keys"], values, strict=True))


@pytest.fixture
def lakehouse(pipeline: Any) -> Lakehouse:
    p = pipeline()
    configure_catalog(p.spark, p.settings)
    found: Lakehouse = p.lakehouse
    found.ensure(REGULAR_EVENTS)
    found.ensure(QUARANTINE)
    found.ensure(REFINED_EVENTS)
    found.ensure(DAILY_REVENUE)
    return found


@pytest.mark.parametrize(("table", "is_ordered"), [(REGULAR_EVENTS, True), (QUARANTINE, False), (DAILY_REVENUE, True)])
def test_metrics_are_those_of_icebergs_own_writer(lakehouse: Lakehouse, table: Table, is_ordered: bool) -> None:
    """Scenario: sixty days of extremes, by Spark and by our writer. Outcome: equal rows, counts, nulls and bounds in
    each file, but no bounds of bytes, of amounts and beside a text of more than 4 KB."""
    spark, rng = lakehouse.spark, random.Random(7)
    layout, store = lakehouse.files.layout(table, is_ordered=is_ordered), lakehouse.files.store(table)
    days = [_rows(rng, table, FIRST + timedelta(days=number)) for number in range(DAYS)]
    whole = pa.Table.from_pylist([row for rows in days for row in rows], layout.schema)
    base = lakehouse.head(table)

    by_spark = lakehouse.stage(
        table, base, "spark", lambda target: spark.createDataFrame(whole).writeTo(target).append()
    )
    writer = DataFileWriter(layout, store)
    described = [one for rows in days for batch in _batches(layout, rows) for one in writer.add(batch)]
    described += writer.finish()
    by_us = lakehouse.stage(table, base, "us", lambda target: lakehouse.files.append(table, target, described))

    java = lakehouse.tables.load(table)
    found = []
    for staged in (by_spark, by_us):
        told = [_told(java, spark, file) for file in lakehouse.tables.files(java, staged.snapshot_id, None).values()]
        found.append({one["partition"][0]: one for one in told})
        assert len(told) == len(found[-1]) == DAYS
    for day, theirs in found[0].items():
        ours = found[1][day]
        assert all(_figures(ours, name) == _figures(theirs, name) for name in _COUNTS), day
        assert all(_figures(ours, name).items() <= _figures(theirs, name).items() for name in _BOUNDS), day
        for name in _BOUNDS:
            for number in _figures(theirs, name).keys() - _figures(ours, name).keys():
                column = next(column for column, at in layout.field_ids.items() if at == number)
                values = [
                    row[column] for rows in days for row in rows if row[table.day_column] == date.fromisoformat(day)
                ]
                assert layout.types[column] in ("binary", "decimal(38,6)") or NASTY["string"][9] in values, (
                    day,
                    column,
                )
        assert ours["record-count"] == theirs["record-count"]
        assert ours["sort-order-id"] == (theirs["sort-order-id"] if is_ordered else 0)
    read = [lakehouse.read(table, staged.snapshot_id).toArrow().to_pylist() for staged in (by_spark, by_us)]
    one, other = (sorted(map(repr, rows)) for rows in read)
    assert table.day_column in read[0][0]
    assert one == other


def test_a_file_is_rolled_at_its_size_and_rows_are_flushed_in_groups(lakehouse: Lakehouse) -> None:
    """Outcome: several files, several groups in each, no row lost, and Iceberg splits a file at its groups."""
    layout = replace(lakehouse.files.layout(REGULAR_EVENTS, is_ordered=True), row_group_bytes=20_000, file_bytes=60_000)
    writer = DataFileWriter(layout, lakehouse.files.store(REGULAR_EVENTS))
    rng = random.Random(3)
    described: list[str] = []
    for number in range(0, 4000, 10):
        rows = [
            {"event_date": FIRST, "project_id": PROJECT, "_line_number": at, "city": str(rng.random()) * 4}
            for at in range(number, number + 10)
        ]
        described += [
            one
            for batch in _batches(layout, [dict.fromkeys(layout.field_ids) | row for row in rows])
            for one in writer.add(batch)
        ]
    described += writer.finish()

    staged = lakehouse.stage(
        REGULAR_EVENTS,
        lakehouse.head(REGULAR_EVENTS),
        "t",
        lambda target: lakehouse.files.append(REGULAR_EVENTS, target, described),
    )

    told = [json.loads(one) for one in described]
    assert len(told) > 3
    assert all(len(one["split-offsets"]) > 1 for one in told[:-1])
    read = lakehouse.read(REGULAR_EVENTS, staged.snapshot_id).select("_line_number").collect()
    assert sorted(row["_line_number"] for row in read) == list(range(4000))
    sizes = lakehouse.slice_files(REGULAR_EVENTS, staged.snapshot_id)[Slice(FIRST, PROJECT)].sizes
    assert sorted(sizes.values()) == sorted(one["file-size-in-bytes"] for one in told)


def test_a_column_that_came_later_is_null_in_older_files(lakehouse: Lakehouse) -> None:
    """Outcome: Iceberg reads null there, and so does the refinement."""
    raw, refined = (
        lakehouse.files.layout(REGULAR_EVENTS, is_ordered=True),
        lakehouse.files.layout(REFINED_EVENTS, is_ordered=False),
    )
    names = [name for name in raw.field_ids if name != "city"]
    before = replace(raw, field_ids={name: raw.field_ids[name] for name in names})
    row = dict.fromkeys(names) | {"event_date": FIRST, "project_id": PROJECT, "_object_key": "o", "_line_number": 1}
    (batch,) = pa.Table.from_pylist([row], before.schema).to_batches()
    made = event_hashes().of(batch.append_column("city", pa.nulls(1, pa.string())))
    hashed = pa.RecordBatch.from_arrays([made.get(name, batch.column(name)) for name in names], names=names)
    store = lakehouse.files.store(REGULAR_EVENTS)
    writer = DataFileWriter(before, store)
    described = [*writer.add(hashed), *writer.finish()]
    staged = lakehouse.stage(
        REGULAR_EVENTS,
        lakehouse.head(REGULAR_EVENTS),
        "t",
        lambda target: lakehouse.files.append(REGULAR_EVENTS, target, described),
    )
    (read,) = lakehouse.read(REGULAR_EVENTS, staged.snapshot_id).collect()
    assert (read["city"], read["_object_key"]) == (None, "o")

    path = json.loads(described[0])["file-path"].removeprefix(f"{store.url}/")
    target = lakehouse.files.store(REFINED_EVENTS)
    refining = Refining({"raw": store}, {"raw": "regular"}, event_hashes(), refined, target)
    files = refining([SliceWork(Slice(FIRST, PROJECT), [Input("raw", [path])], 1)])
    assert not files.wrong
    staged = lakehouse.stage(
        REFINED_EVENTS,
        lakehouse.head(REFINED_EVENTS),
        "t",
        lambda name: lakehouse.files.append(REFINED_EVENTS, name, files.files),
    )
    (read,) = lakehouse.read(REFINED_EVENTS, staged.snapshot_id).collect()
    assert (read["city"], read["_source"], read["_object_key"]) == (None, "regular", "o")
