"""Operators' decisions are kept beside the tables: a lost ledger gets them back, once and unchanged."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import LakehouseError, TidemarkError
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.load.ledger_sync import read_back
from pipeline_assets.orchestration.runtime import production_ledger
from resources import failpoints
from resources.failpoints import Failpoint
from resources.iceberg.lake_objects import LakeObjects, require_true_clock
from resources.ledger.decisions import DecisionObjects
from resources.ledger.store import Ledger
from tests.support.points import watching
from tests.support.s3 import BUCKET

PROJECT, TABLE = "10001", "refined/events"
DAY = date(2026, 2, 2)
KEY, NEXT = Slice(DAY, PROJECT), Slice(DAY + timedelta(days=1), PROJECT)
WRONG = Exclusion(BatchKey(Source.REGULAR, PROJECT, DAY), "10001/wrong", "e1", "abc", "wrong project")
OTHER = Exclusion(BatchKey(Source.BACKFILL, PROJECT, DAY), "10001-backfill/wrong", "e2", None, "[/red] “why”\n")
FIRST = "20260202T000000.000000Z-" + "0" * 32 + ".json"


class Deployment:
    """A warehouse with any number of former ledgers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = folder / "warehouse" / "_tidemark" / "decisions"

    def settings(self, name: str) -> Settings:
        return Settings(warehouse_url=str(self.folder / "warehouse"), ledger_url=f"sqlite:///{self.folder}/{name}.db")

    @contextmanager
    def ledger(self, name: str) -> Iterator[Ledger]:
        with closing(production_ledger(self.settings(name))) as ledger:
            yield ledger

    def started(self, name: str) -> list[str]:
        """A starting load's messages about decisions."""
        said: list[str] = []
        with self.ledger(name) as ledger:
            read_back(ledger, said.append)
        return said

    def standing(self, name: str) -> tuple[list[Exclusion], dict[Slice, str]]:
        with self.ledger(name) as ledger:
            known = ledger.interventions.all_exclusions([PROJECT])
            return [one for one in known if one.lifted_at is None], ledger.interventions.holds(TABLE, [PROJECT])

    def on_record(self, name: str) -> tuple[list[Exclusion], list[object]]:
        with self.ledger(name) as ledger:
            return ledger.interventions.all_exclusions([PROJECT]), [*ledger.interventions.all_holds([PROJECT])]

    def count(self) -> int:
        return len(list(self.objects.iterdir())) if self.objects.exists() else 0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def _decide(ledger: Ledger) -> None:
    """Two exclusions, one of them lifted and made again; three holds, one a successor, one released."""
    ledger.interventions.exclude([WRONG, OTHER], "run 1")
    ledger.interventions.lift([WRONG], "it was right", "run 2")
    ledger.interventions.exclude([WRONG], "run 3")
    ledger.interventions.hold({TABLE: [KEY, NEXT]}, "test data", "run 4")
    ledger.interventions.hold({TABLE: [KEY]}, "still test data", "run 5")
    ledger.interventions.release({TABLE: [NEXT]}, "done", "run 6")


def test_a_lost_ledger_gets_every_decision_back(deployment: Deployment) -> None:
    with deployment.ledger("first") as ledger:
        _decide(ledger)
    before = deployment.on_record("first")

    assert deployment.started("second") == [
        "3 exclusions and 1 lifts and 3 holds and 1 releases were read back from the warehouse: the ledger had lost them"
    ]
    assert (deployment.on_record("second"), deployment.standing("second")[1]) == (before, {KEY: "still test data"})
    assert deployment.started("second") == deployment.started("first") == []
    assert deployment.count() == 6


def test_what_stands_already_is_no_decision(deployment: Deployment) -> None:
    with deployment.ledger("first") as ledger:
        assert ledger.interventions.exclude([WRONG], "run 1") == [WRONG]
        assert ledger.interventions.exclude([WRONG], "run 2") == []
        ledger.interventions.hold({TABLE: [KEY]}, "why", "run 1")
        ledger.interventions.hold({TABLE: [KEY]}, "why", "run 1")
        ledger.interventions.release({TABLE: [NEXT]}, "why", "run 1")
        ledger.interventions.lift([], "why", "run 1")
    assert deployment.count() == 2


def test_one_that_died_before_the_ledger_is_completed(deployment: Deployment) -> None:
    def die(point: Failpoint, qualifier: str) -> None:
        if (point, qualifier) == (Failpoint.BEFORE_LEDGER, "decision"):
            raise KeyboardInterrupt

    with deployment.ledger("first") as ledger, pytest.raises(KeyboardInterrupt), watching(die):
        ledger.interventions.exclude([WRONG], "run 1")
    assert deployment.standing("first")[0] == []

    assert deployment.started("first")
    (found,) = deployment.standing("first")[0]
    assert (found.object_key, found.run_id, found.reason) == (WRONG.object_key, "run 1", WRONG.reason)


def test_one_that_another_process_completes_meanwhile_is_there_once(deployment: Deployment) -> None:
    def complete(point: Failpoint, qualifier: str) -> None:
        failpoints.watch()
        assert deployment.started("first")

    with deployment.ledger("first") as ledger, watching(complete):
        ledger.interventions.hold({TABLE: [KEY]}, "why", "run 1")
    exclusions, holds = deployment.on_record("first")
    assert (exclusions, len(holds)) == ([], 1)


def test_decisions_that_only_the_ledger_knows_are_copied(deployment: Deployment) -> None:
    """Of a version that kept none; or in a warehouse that lost them, or went back."""
    with closing(Ledger(deployment.settings("first").ledger_database_url)) as ledger:
        _decide(ledger)
    before = deployment.on_record("first")
    assert deployment.count() == 0

    assert deployment.started("first") == deployment.started("first") == []
    assert deployment.count() == 1
    assert deployment.started("second")
    assert deployment.on_record("second") == before

    for one in deployment.objects.iterdir():
        one.unlink()
    assert deployment.started("second") == deployment.started("second") == []
    assert deployment.count() == 1
    # Equal decisions of both ledgers count once.
    assert deployment.started("first") == []
    assert deployment.on_record("first") == deployment.on_record("second") == before


def test_one_that_another_process_decides_while_the_warehouse_is_listed_is_not_taken_for_lost(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = DecisionObjects.names

    def names(self: DecisionObjects) -> list[str]:
        found = listed(self)
        monkeypatch.setattr(DecisionObjects, "names", listed)
        with deployment.ledger("first") as other:
            other.interventions.hold({TABLE: [NEXT]}, "why", "run 2")
        return found

    with deployment.ledger("first") as ledger:
        ledger.interventions.hold({TABLE: [KEY]}, "why", "run 1")
        monkeypatch.setattr(DecisionObjects, "names", names)
        read_back(ledger, pytest.fail)
    assert (deployment.count(), deployment.started("first"), len(deployment.on_record("first")[1])) == (2, [], 2)


def test_a_scratch_ledger_writes_nothing_into_the_warehouse(deployment: Deployment) -> None:
    with closing(Ledger(deployment.settings("scratch").ledger_database_url)) as ledger:
        ledger.interventions.exclude([WRONG], "proof")
        read_back(ledger, pytest.fail)
    assert deployment.count() == 0


def test_a_clock_that_was_ahead_does_not_undo_what_came_later(deployment: Deployment) -> None:
    with deployment.ledger("first") as ledger:
        ledger.interventions.exclude([WRONG], "run 1")
        (only,) = deployment.objects.iterdir()
        only.rename(only.with_name("2062" + only.name[4:]))
        ledger.interventions.lift([WRONG], "it was right", "run 2")
    deployment.started("second")
    assert deployment.standing("second")[0] == []


def test_a_warehouse_out_of_reach_refuses_the_decision(deployment: Deployment) -> None:
    (deployment.folder / "warehouse").write_text("not a folder")
    with deployment.ledger("first") as ledger:
        with pytest.raises(LakehouseError, match="Check TIDEMARK_WAREHOUSE_URL"):
            ledger.interventions.exclude([WRONG], "run 1")
        assert ledger.interventions.all_exclusions([PROJECT]) == []


UNREADABLE = "holds no decision that can be read"


@pytest.mark.parametrize(("body", "reason"), [
    (b"", "is empty: the machine stopped while it was written. Restore it"),
    *[(body, UNREADABLE) for body in (b"half a fi", b'{"version": 1, "acts": [{"kind": "exclude"}]}', b"[]")],
    (json.dumps({"version": 9, "acts": []}).encode(), "is of version 9"),
])  # fmt: skip
def test_a_decision_that_cannot_be_read_is_no_decision_forgotten(
    deployment: Deployment, body: bytes, reason: str
) -> None:
    deployment.objects.mkdir(parents=True)
    (deployment.objects / FIRST).write_bytes(body)
    (deployment.objects / ".DS_Store").write_bytes(b"no object of ours")
    with pytest.raises(LakehouseError, match=f"{FIRST}: {reason}"):
        deployment.started("first")


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
    assert (objects.get("decisions/one.json"), objects.get("decisions/one.json", first_bytes=3)) == (b"first", b"fir")
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
    assert ([one.name for one in objects.list("other")], list(objects.list("gone"))) == (["other/two.json"], [])


def test_another_program_may_name_a_bucket_as_hadoop_does() -> None:
    names = ("s3://lake/data", "s3a://lake/data/", "s3n://lake/data")
    assert {LakeObjects(name).url for name in names} == {"s3://lake/data"}


def test_a_clock_that_is_hours_away_from_the_stores_is_refused(bucket: Any) -> None:
    objects = LakeObjects(f"s3://{BUCKET}/lake/_tidemark")
    said = r"while this machine has .*Correct this machine's clock"
    for minutes in (-50, 0, 50, -70, 70, 60 * 24 * 365):
        with pytest.raises(LakehouseError, match=said) if abs(minutes) > 60 else nullcontext():
            require_true_clock(objects, lambda ahead=timedelta(minutes=minutes): datetime.now(UTC) + ahead)  # type: ignore[misc]
    assert list(objects.list()) == []


def test_a_folder_has_the_clock_of_its_machine(tmp_path: Path) -> None:
    require_true_clock(LakeObjects(str(tmp_path)), lambda: datetime(2062, 2, 2, tzinfo=UTC))
    assert list(tmp_path.iterdir()) == []
