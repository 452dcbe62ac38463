"""Scratch deployments of dead processes are removed whole, others stay; with real tables: scenarios/test_drill.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.scratch import PARTS, drop_tables, replay_warehouse, sweep_scratch
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.ledger.processes import identity
from resources.ledger.store import Ledger

NAMESPACES = {table.identifier.split(".")[0] for table in EVERY_TABLE}


class Engine:
    def __init__(self, refused: str) -> None:
        self.statements: list[str] = []
        self._refused = refused

    def sql(self, statement: str) -> None:
        self.statements.append(statement)
        if self._refused in statement:
            raise RuntimeError(statement)


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, Ledger]]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = Settings(warehouse_url=f"{tmp_path}/lake", catalog_url=f"sqlite:///{tmp_path}/catalog.db")
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        yield settings, ledger


def _left_under(settings: Settings, name: str) -> list[Path]:
    """Leftovers of a killed command under its name: objects, a temporary folder, a drill's databases."""
    database = Path(settings.catalog_url.removeprefix("sqlite:///"))
    left = [
        Path(settings.warehouse_url) / f"_{name}" / "calm" / "raw" / "v1.json",
        Path(tempfile.mkdtemp(prefix=f"tidemark-{name}-")) / "scratch.db",
        *(database.with_name(f"{name}_{part}.db{end}") for part in PARTS for end in ("", "-wal")),
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return left if name.startswith("drill_") else left[:2]


def test_what_a_dead_command_left_goes_and_nothing_else(deployment: tuple[Settings, Ledger]) -> None:
    """Outcome: everything of a dead proof and of a drill without removal goes once; live and unknown ones stay."""
    settings, ledger = deployment
    gone, here = replace(identity(), started=0), identity()
    for name, who in (("proof_0000aaaa", gone), ("drill_0000bbbb", gone), ("drill_0000cccc", here), ("run", gone)):
        ledger.processes.begin(name, name.partition("_")[0], who, 0)
    ledger.processes.end("drill_0000bbbb")
    dead = [path for name in ("proof_0000aaaa", "drill_0000bbbb") for path in _left_under(settings, name)]
    kept = [path for name in ("drill_0000cccc", "drill_0000dddd", "run") for path in _left_under(settings, name)]
    said: list[str] = []
    spark: Any = None

    sweep_scratch(spark, settings, ledger, said.append)

    assert [path for path in dead if path.exists()] == []
    assert all(path.exists() for path in kept)
    assert sorted(line.partition(",")[0] for line in said) == ["drill_0000bbbb", "proof_0000aaaa"]
    assert not (Path(settings.warehouse_url) / "_drill_0000bbbb").exists()
    sweep_scratch(spark, settings, ledger, said.append)
    assert len(said) == 2


def test_what_cannot_be_removed_is_said_and_tried_again(
    deployment: tuple[Settings, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the store refuses a listing, then answers. Outcome: a sentence; then it is gone."""
    settings, ledger = deployment
    ledger.processes.begin("proof_0000aaaa", "proof", replace(identity(), started=0), 0)
    left, said = _left_under(settings, "proof_0000aaaa"), list[str]()
    spark: Any = None
    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", _refuse)
        sweep_scratch(spark, settings, ledger, said.append)
    assert said == ["proof_0000aaaa, which a process left, cannot be removed: it is read-only"]
    sweep_scratch(spark, settings, ledger, said.append)
    assert not any(path.exists() for path in left)


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError("it is read-only")


def test_a_replay_lies_where_workers_write() -> None:
    """Outcome: a temporary folder where this machine alone writes, else a new place beside the deployment's tables."""
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


def test_a_drill_keeps_no_table_because_another_one_cannot_be_dropped() -> None:
    """Namespaces go last, when no table needs them."""
    engine: Any = Engine(EVERY_TABLE[0].identifier)
    with pytest.raises(RuntimeError):
        drop_tables(engine, Settings(catalog_name="scratch"))
    assert len(engine.statements) == len(EVERY_TABLE) + len(NAMESPACES)
    assert all("TABLE" in statement for statement in engine.statements[: len(EVERY_TABLE)])
