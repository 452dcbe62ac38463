"""What lies in a table's place, told from names and beginnings of files alone, without a catalog and a JVM."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from resources.iceberg import catalog_at_rest
from resources.iceberg.catalog_at_rest import (
    first_use,
    follows,
    half_published,
    histories,
    not_ahead,
    predecessor,
    read_metadata_files,
)
from resources.iceberg.lake_objects import LakeObjects


def _write(place: Path, name: str, **changes: Any) -> None:
    found = {
        "format-version": 2,
        "table-uuid": "a",
        "location": "x",
        "last-sequence-number": 1,
        "last-updated-ms": 1000,
    }
    path = place / "metadata" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps(found | changes | {"schemas": ["x" * 9000]}).encode()
    path.write_bytes(gzip.compress(body) if ".gz." in name else body)


def test_files_are_grouped_by_their_table_newest_first(tmp_path: Path) -> None:
    _write(tmp_path, "00001-x.metadata.json", **{"last-updated-ms": 1000})
    _write(tmp_path, "00003-x.metadata.json", **{"last-updated-ms": 2000})
    # A catalog was set back and went on: the higher number is the older state.
    _write(tmp_path, "00002-y.gz.metadata.json", **{"last-updated-ms": 3000})
    _write(tmp_path, "00002-z.metadata.json", **{"table-uuid": "b"})
    _write(tmp_path, "00000-w.metadata.json", **{"table-uuid": "c", "last-sequence-number": 0})
    (tmp_path / "metadata" / "00009-v.metadata.json").write_bytes(b"")
    (tmp_path / "metadata" / ".00009-v.metadata.json.crc").write_bytes(b"crc")

    objects = LakeObjects(str(tmp_path))
    found = histories(read_metadata_files(objects, objects.list()))

    names = {uuid: [one.name.removeprefix("metadata/")[:7] for one in files] for uuid, files in found.items()}
    assert names == {"a": ["00002-y", "00003-x", "00001-x"], "b": ["00002-z"]}


def test_other_writers_order_of_keys_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "metadata" / "00001-x.metadata.json"
    path.parent.mkdir()
    late = {"schemas": ["x" * 9000], "snapshots": [{}], "table-uuid": "a", "last-updated-ms": 5, "format-version": 1}
    path.write_text(json.dumps(late))
    objects = LakeObjects(str(tmp_path))
    (one,) = read_metadata_files(objects, objects.list())
    assert (one.table_uuid, one.commits, one.updated_at.timestamp()) == ("a", 1, 0.005)


def test_only_a_creation_that_died_leaves_a_place_free(tmp_path: Path) -> None:
    objects = LakeObjects(str(tmp_path / "place"))
    assert first_use(objects) is None
    _write(tmp_path / "place", "00000-x.metadata.json", **{"last-sequence-number": 0})
    (tmp_path / "place" / "data").mkdir()
    assert first_use(objects) is None
    _write(tmp_path / "place", "00001-x.metadata.json")
    assert first_use(objects) == "metadata/00001-x.metadata.json"
    (tmp_path / "place" / "metadata" / "00001-x.metadata.json").unlink()
    (tmp_path / "place" / "data" / "left.parquet").write_bytes(b"")
    assert first_use(objects) == "data/left.parquet"


def test_what_a_clock_that_was_ahead_wrote_is_left_out_where_there_is_anything_else(tmp_path: Path) -> None:
    now = datetime(2026, 2, 2, tzinfo=UTC)
    for name, ahead in (("1", -60), ("2", 59), ("3", 61), ("4", 10**9)):
        _write(tmp_path, f"{name}.metadata.json", **{"last-updated-ms": round((now.timestamp() + ahead) * 1000)})
    objects = LakeObjects(str(tmp_path))
    (files,) = histories(read_metadata_files(objects, objects.list())).values()
    assert [one.name for one in not_ahead(files, now)] == ["metadata/2.metadata.json", "metadata/1.metadata.json"]
    assert not_ahead(files[:2], now) == files[:2]
    assert not_ahead([], now) == []


def test_a_metadata_file_names_the_one_it_followed(tmp_path: Path) -> None:
    log = [{"metadata-file": f"file:/x/metadata/{name}.metadata.json"} for name in ("1", "2")]
    _write(tmp_path, "3.metadata.json", **{"metadata-log": log})
    _write(tmp_path, "1.metadata.json")
    (tmp_path / "metadata" / "0.metadata.json").write_bytes(b'{"half')
    objects = LakeObjects(str(tmp_path))
    found = [predecessor(objects, f"metadata/{number}.metadata.json") for number in (3, 1, 0, 9)]
    assert found == ["2.metadata.json", None, None, None]


def test_a_metadata_file_follows_all_that_its_history_names(tmp_path: Path) -> None:
    """A file lists the latest ones before it, and the oldest of these lists others."""
    for number in range(2, 9):
        log = [
            {"metadata-file": f"file:/x/metadata/{before}.metadata.json"}
            for before in range(max(1, number - 2), number)
        ]
        _write(tmp_path, f"{number}.metadata.json", **{"metadata-log": log})
    _write(tmp_path, "1.metadata.json")
    objects = LakeObjects(str(tmp_path))
    earlier = [
        number for number in range(10) if follows(objects, "metadata/7.metadata.json", f"{number}.metadata.json")
    ]
    assert earlier == [1, 2, 3, 4, 5, 6]
    assert not follows(objects, "metadata/gone.metadata.json", "1.metadata.json")


def test_what_is_packed_or_nested_beyond_measure_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a bomb, damage and a file nested thousands deep lie among metadata files. Outcome: each is a file that tells
    nothing, and the one beside them is read."""
    monkeypatch.setattr(catalog_at_rest, "_MOST_BYTES", 20_000)
    _write(tmp_path, "00001-x.metadata.json")
    place = tmp_path / "metadata"
    (place / "00002-a.gz.metadata.json").write_bytes(gzip.compress(b" " * 30_000))
    (place / "00003-b.gz.metadata.json").write_bytes(gzip.compress(b"{}")[:-9] + b"123456789")
    (place / "00004-c.metadata.json").write_bytes(b'{"table-uuid": ' + b"[" * 100_000)
    objects = LakeObjects(str(tmp_path))
    told = {one.name[9:14]: one.table_uuid for one in read_metadata_files(objects, objects.list())}
    assert told == {"00001": "a", "00002": None, "00003": None, "00004": None}
    assert predecessor(objects, "metadata/00002-a.gz.metadata.json") is None
    with pytest.raises(ValueError, match="object_too_large"):
        catalog_at_rest.content(objects, "metadata/00002-a.gz.metadata.json")


def _state(*publishes: str | None, hours: int = 0, cut: bool = False, staged: str | None = None) -> dict[str, Any]:
    """A table whose main showed these publishes, an hour apart, the last one at `hours`; `staged`: one on a branch alone."""
    snapshots: list[dict[str, Any]] = []
    for number, publish in enumerate((*publishes, staged)):
        at = (400_000 + hours + number - len(publishes) + 1) * 3_600_000
        summary = {} if publish is None else {"tidemark.publish-id": publish, "tidemark.published-with": "a,b,gone"}
        snapshots.append(
            {"snapshot-id": number, "parent-snapshot-id": number - 1, "timestamp-ms": at, "summary": summary}
        )
    if not cut:
        del snapshots[0]["parent-snapshot-id"]
    log = [{"snapshot-id": number, "timestamp-ms": 0} for number in (-9, *range(len(publishes)))]
    return {"current-snapshot-id": len(publishes) - 1, "snapshots": snapshots, "snapshot-log": log}


@pytest.mark.parametrize(
    ("b", "half"),
    [
        (_state(None, "old", "new"), set()),
        (_state(None, "old", "new", None, hours=9), set()),
        (_state(None, "old"), {"new"}),
        (_state(None, "old", None, hours=9), {"new"}),
        (_state(None, "old", staged="new"), {"new"}),
        (_state(None, "old", hours=-1, cut=True), {"new"}),
        (_state(None, None, hours=9, cut=True), set()),
    ],
    ids=[
        "whole",
        "whole, and older",
        "half",
        "half, and older",
        "on a branch alone",
        "cut off before it",
        "cut off since",
    ],
)
def test_a_publish_counts_where_every_table_that_it_names_showed_it(b: dict[str, Any], half: set[str]) -> None:
    """A table that went on since is a sign against it; one whose history was cut off since, or that is not there, is none."""
    assert half_published({"a": _state(None, "old", "new"), "b": b}) == half


def test_tables_that_were_committed_one_by_one_name_nobody() -> None:
    alone = _state(None, "own")
    alone["snapshots"][1]["summary"].pop("tidemark.published-with")
    assert half_published({"a": alone, "b": _state(None)}) == set()
