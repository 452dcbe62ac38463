"""Small objects of the warehouse, in folder and bucket: the first of two creators wins, absence is no error."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LakehouseError, TidemarkError
from pipeline_assets.domain.settings import Settings
from resources.iceberg.lake_objects import LakeObjects, require_true_clock
from tests.support.s3 import BUCKET


@pytest.fixture(params=["folder", "folder with spaces, # and %20", "bucket"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "bucket":
        request.getfixturevalue("bucket")
        yield f"s3://{BUCKET}/lake/warehouse"
    else:
        yield str(tmp_path / request.param / "warehouse")


def test_objects_are_put_once_listed_read_and_deleted(warehouse: str) -> None:
    objects = LakeObjects.of(Settings(warehouse_url=warehouse))
    assert objects.url == f"{warehouse}/_tidemark"
    assert objects.get("decisions/one.json") is None
    assert list(objects.list()) == []
    objects.delete("decisions/one.json")
    assert objects.put("decisions/one.json", b"first")
    assert not objects.put("decisions/one.json", b"second")
    assert objects.put("warehouse.json", b"{}")
    assert objects.get("decisions/one.json") == b"first"
    assert objects.get("decisions/one.json", first_bytes=3) == b"fir"
    assert objects.get("decisions/one.json", first_bytes=99) == b"first"
    assert {one.name: one.size_bytes for one in objects.list()} == {"decisions/one.json": 5, "warehouse.json": 2}
    assert [one.name for one in objects.list("decisions")] == ["decisions/one.json"]
    assert all(one.modified_at.tzinfo is not None for one in objects.list())
    objects.replace("decisions/one.json", b"third")
    assert objects.get("decisions/one.json") == b"third"
    objects.delete("decisions/one.json")
    assert objects.get("decisions/one.json") is None


def test_of_many_creators_one_wins(warehouse: str) -> None:
    def create(number: int) -> bool:
        return LakeObjects(warehouse).put("marker", str(number).encode())

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(create, range(8)))
    assert done.count(True) == 1
    assert LakeObjects(warehouse).get("marker") == str(done.index(True)).encode()


def test_icebergs_own_spelling_of_a_folder_is_the_same_place(tmp_path: Path) -> None:
    LakeObjects(str(tmp_path / "a #b")).put("x", b"1")
    assert LakeObjects(f"file:{tmp_path}/a #b").get("x") == b"1"


def test_a_place_that_refuses_is_named_as_the_warehouse(bucket: Any, tmp_path: Path) -> None:
    with pytest.raises(LakehouseError, match=r"s3://nowhere/lake/x: warehouse refused: .*TIDEMARK_WAREHOUSE_URL"):
        LakeObjects("s3://nowhere/lake").get("x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LakehouseError, match="TIDEMARK_WAREHOUSE_URL"):
        LakeObjects(f"{tmp_path}/file/below").put("x", b"")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_folder_that_cannot_be_listed_is_not_empty(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, listed = LakeObjects(str(tmp_path)), os.scandir
    objects.put("decisions/one.json", b"1")
    objects.put("other/two.json", b"2")

    def scandir(path: str) -> Any:
        if Path(path).name == "decisions":
            raise OSError(number, os.strerror(number), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(TidemarkError, match=r"warehouse .*" + os.strerror(number)):
        list(objects.list())
    with pytest.raises(TidemarkError):
        list(objects.list("decisions"))
    assert [one.name for one in objects.list("other")] == ["other/two.json"]
    assert list(objects.list("gone")) == []


def test_another_program_may_name_a_bucket_as_hadoop_does() -> None:
    names = ("s3://lake/data", "s3a://lake/data/", "s3n://lake/data")
    assert {LakeObjects(name).url for name in names} == {"s3://lake/data"}


def test_a_clock_that_is_hours_away_from_the_stores_is_refused(bucket: Any) -> None:
    objects = LakeObjects(f"s3://{BUCKET}/lake/_tidemark")
    for minutes in (-50, 0, 50):
        require_true_clock(objects, lambda minutes=minutes: datetime.now(UTC) + timedelta(minutes=minutes))  # type: ignore[misc]
    for minutes in (-70, 70, 60 * 24 * 365):
        with pytest.raises(LakehouseError, match=r"while this machine has .*Correct this machine's clock"):
            require_true_clock(objects, lambda minutes=minutes: datetime.now(UTC) + timedelta(minutes=minutes))  # type: ignore[misc]
    assert list(objects.list()) == []


def test_a_folder_has_the_clock_of_its_machine(tmp_path: Path) -> None:
    require_true_clock(LakeObjects(str(tmp_path)), lambda: datetime(2062, 2, 2, tzinfo=UTC))
    assert list(tmp_path.iterdir()) == []
