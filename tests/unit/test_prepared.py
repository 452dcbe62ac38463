"""A shared folder is restored, whatever a test did to it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.prepared import DATABASE, KeptFolder

FILES = {"landing/10001/a": b"first", "landing/10001/b": b"second", "warehouse/t/data/p": b"rows"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files, a folder without any, and a database with one row."""
    place = tmp_path / "place"
    for name, body in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(body)
    (place / "landing/empty").mkdir()
    with closing(sqlite3.connect(place / DATABASE)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE held (value)")
        database.execute("INSERT INTO held VALUES (1)")
        database.commit()
    return place


def _seen(folder: Path) -> dict[str, tuple[int, int, bytes] | None]:
    """Landing's and tables' view of files, with content; None for a folder."""
    paths = [path for path in folder.rglob("*") if not path.name.startswith(DATABASE)]
    files = {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in paths if path.is_file()}
    return {str(path.relative_to(folder)): files.get(path) for path in paths}


def _replace(folder: Path) -> None:
    (folder / "landing/10001/b").unlink()
    (folder / "landing/10001/b").write_bytes(b"second")


def _add(folder: Path) -> None:
    (folder / "landing/10002/deep").mkdir(parents=True)
    (folder / "landing/10002/deep/c").write_bytes(b"new")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder / "warehouse")
    (folder / "landing/empty").rmdir()


ACTS: dict[str, Callable[[Path], object]] = {
    "write over": lambda folder: (folder / "landing/10001/a").write_bytes(b"another body"),
    "age": lambda folder: os.utime(folder / "landing/10001/a", (1, 1)),
    "replace": _replace,
    "add": _add,
    "remove": _remove,
}


@cases("act", ACTS)
def test_files_are_put_back(folder: Path, tmp_path: Path, act: Callable[[Path], None]) -> None:
    """Scenario: a test changes files, twice. Outcome: content, inode and time are restored each time."""
    before = _seen(folder)
    kept = KeptFolder(folder, tmp_path)
    for _ in range(2):
        act(folder)
        assert _seen(folder) != before
        kept.put_back()
        assert _seen(folder) == before


def test_a_session_that_has_the_database_open_sees_it_put_back(folder: Path, tmp_path: Path) -> None:
    """Scenario: an open session writes rows and a table. Outcome: the same session finds the one row and no such table."""
    kept = KeptFolder(folder, tmp_path)
    with closing(sqlite3.connect(folder / DATABASE)) as session:
        session.execute("INSERT INTO held VALUES (2)")
        session.execute("CREATE TABLE made_since (value)")
        session.commit()
        kept.put_back()
        assert session.execute("SELECT value FROM held").fetchall() == [(1,)]
        assert session.execute("SELECT name FROM sqlite_master").fetchall() == [("held",)]
