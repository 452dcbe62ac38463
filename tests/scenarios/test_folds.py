"""One fold of refined.events for all aggregates: from files, divided by user, and through Spark it is the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.build import folds
from pipeline_assets.load.build.folds import SharedFolds, slice_fold
from pipeline_assets.load.file_tasks import Place
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable, Table
from pipeline_assets.transforms import file_rows
from pipeline_assets.transforms.fold import SliceFold
from pipeline_assets.transforms.fold_tasks import FoldedTable, WrittenSlice, fold_events, write_slices
from resources.iceberg.metadata import slices_condition
from resources.spark.tasks import Tasks
from tests.support.builders import PROJECT, Pipeline, a_pipeline, an_event

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
DAYS = [DAY, DAY + timedelta(days=1)]
SLICES = frozenset(Slice(day, PROJECT) for day in DAYS)


def _events(day: date) -> list[dict[str, Any]]:
    """Sixty events of seventeen users, five identified by a device or not at all; three currencies, unreadable bags."""
    events = []
    for number in range(60):
        at = f"{day} {number % 24:02d}:10:00.000000"
        bag = [{}, {"$revenue": number}, {"price": 0.1, "quantity": 3, "currency": "EUR"}, {"revenue": "much"}][
            number % 4
        ]
        user = (
            {"amplitude_id": 700_000_000_000 + number % 12}
            if number % 12 < 9
            else {"amplitude_id": None, "user_id": None}
        )
        device = {"device_id": None if number % 12 == 11 else f"device-{number % 6}"}
        events.append(
            an_event(
                event_type=f"type-{number % 5}", platform=["iOS", None, " "][number % 3], event_properties=bag,
                event_time=at, server_upload_time=at, processed_time=at, insert_id=f"{day}-{number}", **user, **device,
            )
        )  # fmt: skip
    return events


def _files(p: Any, table: AggregateTable) -> set[str]:
    folder = local_path(p.lakehouse.files.store(table).url)
    assert folder is not None
    return {file.name for file in folder.rglob("*.parquet")}


_CODE_VERSION = Table.code_version


def _code_version(table: Table, changed: Collection[Table], settings: Settings) -> str:
    return _CODE_VERSION(table, settings) + "new" * (table in changed)


def _held(found: folds.Folds) -> dict[Slice, dict[str, WrittenSlice]]:
    return {key: {name: replace(one, files=()) for name, one in told.items()} for key, told in found.items()}


@pytest.fixture(scope="module")
def loaded(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Two days; the last of these tests changes them."""
    with a_pipeline(spark, tmp_path_factory.mktemp("folds"), local_bytes=0) as p:
        for day in DAYS:
            p.deliver(day, _events(day))
        p.must_load(*DAYS)
        yield p


def test_every_way_to_a_fold_gives_the_published_rows(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: whole slices, slices divided among nine tasks, and Spark's rows fold to the rows of the tables."""
    p, runtime = loaded, loaded.runtime
    place = Place(REFINED_EVENTS, p.lakehouse.head(REFINED_EVENTS), SLICES)
    fold, tables = slice_fold(AGGREGATES, p.settings), folds.folded_tables(runtime, AGGREGATES)

    whole = folds._folded(runtime, place, fold, tables)
    read: list[str] = []
    exchange = Tasks.exchange

    def counted(self: Tasks, function: Any, groups: Any, *more: Any) -> Any:
        read.extend(file.path for group in groups for file in group)
        return exchange(self, function, groups, *more)

    with monkeypatch.context() as patched:
        patched.setattr(folds, "_MOST_ROWS", 7)
        patched.setattr(Tasks, "exchange", counted)
        divided = folds._folded(runtime, place, fold, tables)
    rows = p.lakehouse.read(REFINED_EVENTS, place.snapshot_id).where(slices_condition(REFINED_EVENTS, SLICES))
    shuffled: list[str] = []
    repartition = type(rows).repartition
    with monkeypatch.context() as patched:
        patched.setattr(
            type(rows), "repartition", lambda one, *by: shuffled.extend(one.columns) or repartition(one, *by)
        )
        spark_folds = fold_events(rows, fold)
    assert {"user_number", "revenue"} <= {*shuffled}
    assert "event_properties" not in shuffled, "property bags are not shuffled"
    by_spark = dict(write_slices(tables, spark_folds.items()))

    assert whole.keys() == SLICES
    assert _held(divided) == _held(whole) == _held(by_spark)
    for table in AGGREGATES:
        records = p.ledger.slices(table.key, [PROJECT], DAYS)
        assert {key: record.digest for key, record in records.items()} == {
            key: of_slice[table.key].digest for key, of_slice in whole.items()
        }
        assert all(of_slice[table.key].digest.rows for of_slice in whole.values())
    sold = {row["currency"]: row for row in p.rows("aggregates/daily_revenue") if row["event_date"] == DAY}
    assert sold["EUR"]["revenue"] == Decimal("4.5")
    assert sold["unknown"]["revenue"] == sum(range(1, 60, 4))
    assert whole[Slice(DAY, PROJECT)]["aggregates/event_counts"].controls == {"events": 60}
    files = [
        path
        for file in p.lakehouse.slice_files(REFINED_EVENTS, place.snapshot_id, SLICES).values()
        for path in file.paths
    ]
    assert len(read) == len(files)
    assert all(any(path.endswith(one) for path in files) for one in read)


def test_refined_is_read_once_for_all_tables(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: one step folds the first day for all three tables, another the missing day; another snapshot folds anew."""
    runtime, shared, read = loaded.runtime, SharedFolds(), []
    run = Tasks.run

    def counted(self: Tasks, function: Any, groups: Any, **more: Any) -> Any:
        read.extend([sorted(str(files[0].key) for group in groups for files in group)] if groups else [])
        return run(self, function, groups, **more)

    monkeypatch.setattr(Tasks, "run", counted)
    pin, first = loaded.lakehouse.head(REFINED_EVENTS), Slice(DAY, PROJECT)
    for table in AGGREGATES[:2]:
        assert shared.take(runtime, pin, [first], table, AGGREGATES)[first].files
    assert shared.take(runtime, pin, sorted(SLICES), AGGREGATES[2], AGGREGATES).keys() == SLICES
    assert read == [[str(first)], [str(Slice(DAYS[1], PROJECT))]]
    shared.take(runtime, pin, [first], AGGREGATES[0], ())
    shared.take(runtime, pin, [Slice(DAYS[1], PROJECT)], AGGREGATES[0], ())
    assert len(read) == 3
    assert not shared.take(runtime, pin, [Slice(date(2020, 1, 1), PROJECT)], AGGREGATES[0], ()).popitem()[1].files


def test_files_that_no_table_took_are_deleted(loaded: Any) -> None:
    """Scenario: one of two folded tables takes its slices. Outcome: its files and published ones stay."""
    runtime, shared, (one, other) = loaded.runtime, SharedFolds(), AGGREGATES[:2]
    published = {table.key: _files(loaded, table) for table in (one, other)}
    taken = shared.take(runtime, loaded.lakehouse.head(REFINED_EVENTS), sorted(SLICES), one, [other])
    assert len(_files(loaded, other)) > len(published[other.key])
    shared.release()
    assert _files(loaded, other) == published[other.key]
    assert _files(loaded, one) - published[one.key] == {Path(path).name for of in taken.values() for path in of.paths}


def test_rows_that_no_task_read_are_met(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a task loses a batch of a file. Outcome: the load does not go on."""
    place = Place(REFINED_EVENTS, loaded.lakehouse.head(REFINED_EVENTS), SLICES)
    monkeypatch.setattr(file_rows, "narrow_rows", lambda *_: iter(()))
    monkeypatch.setattr(Tasks, "are_here", lambda *_: True)
    runtime, fold = loaded.runtime, slice_fold(AGGREGATES, loaded.settings)
    with pytest.raises(LakehouseError, match=r"0 rows of .* were folded, 60 are there"):
        folds._folded(runtime, place, fold, folds.folded_tables(runtime, AGGREGATES))


def test_a_table_is_folded_only_where_it_is_built_next(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a day changes; then code of one table, of two. Outcome: one fold for all, then for those alone."""
    p, of = loaded, folds._folded
    folded: list[list[str]] = []

    def counted(runtime: Runtime, place: Place, fold: SliceFold, tables: dict[str, FoldedTable]) -> folds.Folds:
        folded.append([*fold.folds])
        return of(runtime, place, fold, tables)

    monkeypatch.setattr(folds, "_folded", counted)
    p.deliver(DAY, [*_events(DAY), an_event(event_time=f"{DAY} 01:00:00.000000", insert_id="another")])
    p.must_load(*DAYS)
    assert folded == [[table.key for table in AGGREGATES]]
    for changed in (AGGREGATES[:1], AGGREGATES[1:]):
        folded.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Table, "code_version", partialmethod(_code_version, changed))
            p.must_load(*DAYS)
        assert folded == [[table.key for table in changed]]
        p.must_load(*DAYS)
