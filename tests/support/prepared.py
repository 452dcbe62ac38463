"""A pipeline's first loads done once: each test that begins with them gets the same state."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.builders import Pipeline, a_pipeline
from tests.support.victim import home_below

DATABASE = "catalog.db"
"""Catalog and ledger; sessions keep it open, so it is written and never replaced."""

_T = TypeVar("_T")


class KeptFolder:
    """A folder as it is now. Paths and inodes stay: tables hold absolute paths, landing knows a file by inode and time."""

    def __init__(self, folder: Path, beside: Path) -> None:
        """Keep it in another folder of the same file system."""
        self._folder, self._beside = folder, beside
        self._folders = set(self._all_folders())
        self._files: dict[Path, tuple[Path, int, bytes]] = {}
        for path in self._paths():
            # A link keeps the inode of a removed file, the bytes restore an overwritten one.
            link = beside / str(len(self._files))
            os.link(path, link)
            self._files[path] = (link, path.stat().st_mtime_ns, path.read_bytes())
        _copy(folder / DATABASE, beside / DATABASE)

    def put_back(self) -> None:
        for path in self._paths():
            if path not in self._files:
                path.unlink()
        for path in sorted(self._all_folders(), reverse=True):
            if path not in self._folders:
                path.rmdir()
        for path in sorted(self._folders):
            path.mkdir(exist_ok=True)
        for path, (link, modified, body) in self._files.items():
            if not path.exists() or not path.samefile(link):
                path.unlink(missing_ok=True)
                os.link(link, path)
            now = path.stat()
            if (now.st_mtime_ns, now.st_size) != (modified, len(body)):
                path.write_bytes(body)
                os.utime(path, ns=(modified, modified))
        _copy(self._beside / DATABASE, self._folder / DATABASE)

    def _paths(self) -> list[Path]:
        return [
            path
            for path in self._folder.rglob("*")
            if path.is_file() and not (path.parent == self._folder and path.name.startswith(DATABASE))
        ]

    def _all_folders(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_dir()]


def _copy(source: Path, target: Path) -> None:
    """In a transaction of the target, so open connections see it."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


Again = Callable[[], AbstractContextManager[tuple[Pipeline, _T]]]
"""Gives each test the prepared pipeline and its preparation's result."""


@contextmanager
def a_prepared_pipeline(
    spark: Any, folder: Path, prepare: Callable[[Pipeline], _T], *, has_home: bool = False, **settings: Any
) -> Iterator[Again[_T]]:
    """A pipeline that `prepare` loads once. `has_home`: Dagster's storage is in its folder, shared and restored too."""
    place, beside = folder / "prepared", folder / "kept"
    place.mkdir()
    beside.mkdir()
    home = home_below(place) if has_home else None
    with a_pipeline(spark, place, home=home, **settings) as pipeline:
        given = prepare(pipeline)
        settings["catalog_name"] = pipeline.settings.catalog_name
    kept = KeptFolder(place, beside)

    @contextmanager
    def again() -> Iterator[tuple[Pipeline, _T]]:
        kept.put_back()
        with a_pipeline(spark, place, home=home, **settings) as one:
            yield one, given

    yield again
