"""A slice's files in metadata, with other programs' delete files."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from types import SimpleNamespace

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from resources.iceberg.metadata import LiveFiles, SliceFiles, slice_of
from resources.iceberg.slice_changes import SliceChange
from resources.iceberg.upkeep import is_written


def test_a_slice_with_a_delete_file_is_another_state_than_its_data_files_alone() -> None:
    """The ledger trusts its rows only while live files are the recorded ones, and a delete file changes the rows."""
    alone = SliceFiles(frozenset({"a", "b"}), 30)
    hidden = replace(alone, deletes=frozenset({"d"}))
    assert hidden.file_hash != alone.file_hash
    assert replace(hidden, deletes=frozenset()).file_hash == alone.file_hash
    files = LiveFiles({"a": 1, "b": 2})
    deleted = LiveFiles(files)
    deleted.deletes = {"a": {"d": 3}}
    assert (files.names, deleted.names) == ({"a", "b"}, {"a", "b", "d"})


def test_the_cause_of_rows_that_came_back_is_read_back_with_its_number() -> None:
    cause = Cause.of(CauseKind.UNDELETED, 3)
    assert Cause.parse(cause.text) == cause
    assert (cause.kind, cause.is_found) == (CauseKind.UNDELETED, False)
    assert cause.text.endswith("no way to erase; rows that came back: 3")


@pytest.mark.parametrize("partition", ["PartitionData{}", "PartitionData{event_date=20486}"])
def test_a_file_that_another_program_wrote_without_our_partitions_is_named(partition: str) -> None:
    """Scenario: another program removed a partition field and wrote. Outcome: one sentence with the file."""
    file = SimpleNamespace(
        partition=lambda: SimpleNamespace(toString=lambda: partition), location=lambda: "s3://b/f.parquet"
    )
    with pytest.raises(LakehouseError, match=r"s3://b/f.parquet: lies in no partition of a day and a project"):
        slice_of(file)


def test_a_conflict_names_the_slices_that_were_lost_or_all_where_nobody_knows_which() -> None:
    one, two = (Slice(date(2026, 2, day), "10001") for day in (2, 3))
    change = SliceChange(REFINED_EVENTS, 1, frozenset({one, two}), LiveFiles(), LiveFiles())
    everything, known = change.lost("is gone"), change.lost("is gone", slices={two})
    assert everything.slices == {("refined/events", one), ("refined/events", two)}
    assert (known.slices, known.subject) == ({("refined/events", two)}, f"refined/events {two}")


TABLE = "0d1e6a4e-24c8-4a6a-8d62-3f1b5c7a9e10"
OTHER = "8d2895f4-4e8f-480c-9f36-908f9b5a8b7b"
DAY = "data/event_date=2026-02-02/project_id=10001"


@pytest.mark.parametrize(
    "name",
    [
        f"{DAY}/{TABLE}-1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001.parquet",
        f"{DAY}/00012-3-{OTHER}-00002.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001-deletes.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001-deletes.puffin",
        f"data/valid_from=2026-02-01/project_id=all/00000-118-{OTHER}-0-00001.parquet",
        f"metadata/{OTHER}-m0.avro",
        f"metadata/optimized-m-{OTHER}.avro",
        f"metadata/snap-5714608875437899243-1-{OTHER}.avro",
        f"metadata/00004-{OTHER}.metadata.json",
        f"metadata/00004-{OTHER}.gz.metadata.json",
        f"metadata/5714608875437899243-{OTHER}.stats",
        f"metadata/partition-stats-5714608875437899243-{OTHER}.parquet",
    ],
)
def test_a_name_of_ours_or_icebergs_in_its_place_may_go(name: str) -> None:
    assert is_written(name, TABLE)
    assert not is_written(f"copy/{name}", TABLE)
    assert not is_written(f"{name}.bak", TABLE)


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "figures.csv",
        "data/customers.parquet",
        f"{DAY}/1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
        f"{DAY}/{OTHER}-1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
        f"{DAY}/part-00000-{OTHER}-c000.snappy.parquet",
        f"{DAY}/20260202_101010_00007_abcde-{OTHER}.parquet",
        f"data/00000-118-{OTHER}-0-00001.parquet",
        f"data/event_date=2026-02-02/00000-118-{OTHER}-0-00001.parquet",
        f"{DAY}/more/00000-118-{OTHER}-0-00001.parquet",
        f"{DAY}/00000-118-{OTHER}-0-00001.csv",
        f"metadata/more/{OTHER}-m0.avro",
        "metadata/v3.metadata.json",
        "metadata/00001-mine.metadata.json",
        f"metadata/{OTHER}.avro",
        "",
    ],
)
def test_every_other_name_stays(name: str) -> None:
    assert not is_written(name, TABLE)
