"""What is removed of a scratch deployment where the removal of one thing fails; real tables, scenarios/test_prove.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.scratch import drop_tables, remove_scratch, replay_warehouse
from pipeline_assets.tables.registry import EVERY_TABLE

NAMESPACES = {table.identifier.split(".")[0] for table in EVERY_TABLE}


class Engine:
    """Takes statements, and refuses one of them; notes what lay in the warehouse when each came."""

    def __init__(self, warehouse: Path, refused: str = "") -> None:
        self.statements: list[str] = []
        self.files: list[int] = []
        self._warehouse, self._refused = warehouse, refused

    def sql(self, statement: str) -> None:
        self.statements.append(statement)
        self.files.append(sum(path.is_file() for path in self._warehouse.rglob("*")))
        if self._refused and self._refused in statement:
            raise RuntimeError(statement)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    folder = tmp_path / "_proof_1"
    for name in ("_tidemark/lake.json", "raw/regular_events/metadata/v1.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("refused", ["", "NAMESPACE", f"TABLE IF EXISTS scratch.{EVERY_TABLE[0].identifier}"])
def test_what_cannot_be_dropped_keeps_no_file_and_no_other_table(warehouse: Path, refused: str) -> None:
    """Namespaces go last, when nothing is left that only they could lead to."""
    settings = Settings(warehouse_url=str(warehouse), catalog_name="scratch")
    engine: Any = Engine(warehouse, refused)
    if refused:
        with pytest.raises(RuntimeError, match="DROP"):
            remove_scratch(engine, settings)
    else:
        remove_scratch(engine, settings)
    assert not warehouse.exists()
    assert warehouse.parent.is_dir()
    tables = [f"DROP TABLE IF EXISTS scratch.{table.identifier} PURGE" for table in EVERY_TABLE]
    assert engine.statements[: len(tables)] == tables
    namespaces = engine.statements[len(tables) :]
    assert set(namespaces) == {f"DROP NAMESPACE IF EXISTS scratch.{name}" for name in NAMESPACES}
    assert engine.files == [2] * len(tables) + [0] * len(namespaces)


def test_a_replay_lies_where_workers_write() -> None:
    """Scenario: one machine, and a cluster, whose workers share a disk; a bucket. Outcome: a temporary folder where
    this machine alone writes; else a new place beside the deployment's tables."""
    for warehouse, master, beside in (
        ("/data/lake", "local[4]", None),
        ("file:///data/lake/", "local[4]", None),
        ("/data/lake", "spark://host:7077", "/data/lake/_proof_"),
        ("file:///data/lake/", "yarn", "file:///data/lake/_proof_"),
        ("s3://bucket/lake", "local[4]", "s3://bucket/lake/_proof_"),
        ("s3://bucket/lake", "spark://host:7077", "s3://bucket/lake/_proof_"),
    ):
        settings = Settings(warehouse_url=warehouse, spark_master=master, spark_shared_disk=True)
        found = {replay_warehouse(settings, "/tmp/proof", f"proof_{number}") for number in range(2)}
        if beside is None:
            assert found == {"/tmp/proof/warehouse"}
        else:
            assert len(found) == 2
            assert all(place.startswith(beside) for place in found)


def test_a_drill_keeps_no_table_because_another_one_cannot_be_dropped(warehouse: Path) -> None:
    engine: Any = Engine(warehouse, EVERY_TABLE[0].identifier)
    with pytest.raises(RuntimeError):
        drop_tables(engine, Settings(catalog_name="scratch"))
    assert len(engine.statements) == len(EVERY_TABLE) + len(NAMESPACES)
