"""The library is used where it fits interpreter and code; elsewhere Python does its work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline_assets.config import load_settings
from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.native import library as module
from pipeline_assets.native.library import PLACE, VARIABLE, library
from tests.support.builders import PROJECT, an_event

BUILT = pytest.mark.skipif(library() is None, reason="the native library is not built: make setup, with cargo")
_EVENT = an_event()
_USED = f"""
from datetime import date
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.native.library import library
columns = EXPORT_FORMAT.block_parser("{PROJECT}", date(2026, 2, 2), 100_000).parse({json.dumps(_EVENT).encode()!r} + b"\\n", 1)
print(library() is not None, columns["uuid"].to_pylist() == ["{_EVENT["uuid"]}"])
"""


def used(folder: Path, **variables: str) -> tuple[str, ...]:
    """Whether a process in `folder` uses the library, and reads a line correctly."""
    names = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", _USED],
        cwd=folder,
        env={**names, "PYTHONPATH": str(PROJECT_ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(done.stdout.split())


@BUILT
def test_it_is_used_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert used(tmp_path) == used(tmp_path, **{VARIABLE: "on"}) == ("True", "True")
    assert used(tmp_path, **{VARIABLE: "off"}) == ("False", "True")


def test_the_variable_is_no_unknown_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    load_settings()


def test_it_is_looked_for_in_the_interpreters_own_environment_alone() -> None:
    assert PLACE.is_absolute()
    assert PLACE.is_relative_to(sys.prefix)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another, empty place of the library; the process asks anew."""
    place = tmp_path / PLACE.name
    monkeypatch.setattr(module, "PLACE", place)
    monkeypatch.delenv(VARIABLE, raising=False)
    # A function of its own: the process's one keeps its answer.
    monkeypatch.setattr(module, "library", module.library.__wrapped__)
    return place


def test_what_is_missing_or_no_library_is_not_used(at: Path) -> None:
    assert module.library() is None
    at.write_bytes(b"\x7fELF and no more")
    assert module.library() is None


def test_a_library_without_the_functions_is_not_used(at: Path) -> None:
    other = next(Path(pa.__file__).parent.glob("libarrow.so*"), None)
    if other is None:
        pytest.skip("there is no other library at hand")
    shutil.copy(other, at)
    assert module.library() is None


@BUILT
def test_a_library_of_another_version_is_not_used(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(PLACE, at)
    assert module.library() is not None
    monkeypatch.setattr(module, "_ABI", 0)
    assert module.library() is None
