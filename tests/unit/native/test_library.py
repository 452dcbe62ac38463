"""The library is used where it fits interpreter and code; elsewhere Python does its work."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from ctypes import CDLL
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets import native as module
from pipeline_assets.config import load_settings
from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.native import _ABI, PLACE, VARIABLE, Bytes, HashedColumn, HashedKind, library, row_hashes
from pipeline_assets.transforms.event_hashes import VERSION, in_arrow
from tests.support.builders import PROJECT, an_event

BUILT = pytest.mark.skipif(library() is None, reason="the native library is not built: make setup, with cargo")
_EVENT = an_event()
_USED = f"""
from datetime import date
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.native import library
columns = EXPORT_FORMAT.block_parser("{PROJECT}", date(2026, 2, 2), 100_000).parse({json.dumps(_EVENT).encode()!r} + b"\\n", 1)
print(library() is not None, columns["uuid"].to_pylist() == ["{_EVENT["uuid"]}"])
"""


def used(folder: Path, **variables: str) -> tuple[str, ...]:
    """Whether a process in `folder` uses the library, and reads a line correctly."""
    names = {name: value for name, value in os.environ.items() if name != VARIABLE}
    names |= {"PYTHONPATH": str(PROJECT_ROOT), **variables}
    command = [sys.executable, "-c", _USED]
    done = subprocess.run(command, cwd=folder, env=names, capture_output=True, text=True, check=True)
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


_LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=80),
    pa.binary(): st.binary(max_size=80),
    pa.int64(): _LONGS,
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats() | st.sampled_from((0.0, -0.0, float("nan"), -float("nan"))),
}


@BUILT
@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=6), st.integers(1, 20))
def test_it_hashes_as_arrow_does(data: st.DataObject, kinds: list[pa.DataType], rows: int) -> None:
    """Scenario: columns of any types, with nulls, of nulls alone, without any; whole, and from any row on."""
    columns = [
        pa.array(data.draw(st.lists(_VALUES[kind] | st.none(), min_size=rows, max_size=rows)), kind) for kind in kinds
    ]
    start = data.draw(st.integers(0, rows - 1))
    for some in (columns, [one.slice(start) for one in columns]):
        assert row_hashes(some, VERSION) == in_arrow(some)


@BUILT
def test_texts_of_every_length_up_to_300_and_large_ones() -> None:
    texts = [random.Random(length).randbytes(length) for length in (*range(301), 4096, 1_000_003, 5 << 20)]
    columns = [pa.array(texts, pa.binary()), pa.array(range(len(texts)), pa.int64())]
    assert row_hashes(columns, VERSION) == in_arrow(columns)


@BUILT
def test_doubles_are_hashed_by_their_bits_and_every_nan_alike() -> None:
    bits = np.array([0, 1 << 63, 0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1, 0x7FF0 << 48], np.uint64)
    columns = [pa.array(bits.view(np.float64))]
    assert row_hashes(columns, VERSION) == in_arrow(columns)
    assert len(set(in_arrow(columns)[0].to_pylist())) == 4


def test_without_the_library_or_for_another_type_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_hashes([pa.array([1], pa.int8())], VERSION) is None
    assert row_hashes([pa.array([], pa.int64())], VERSION) is None
    monkeypatch.setattr("pipeline_assets.native.library", lambda: None)
    assert row_hashes([pa.array([1])], VERSION) is None


@BUILT
def test_nothing_beyond_a_buffer_is_read() -> None:
    """Scenario: offsets beyond the texts, falling or negative; too few numbers. Outcome: no answer."""
    found = library()
    assert found is not None
    halves = np.zeros((2, 2), np.int64)

    def bytes_of(values: np.ndarray[Any, Any]) -> Bytes:
        return Bytes(values.ctypes.data, values.nbytes)

    text = np.frombuffer(b"abc", np.uint8)
    cases = [
        (HashedKind.TEXT, np.array(ends, np.int32), text)
        for ends in ([0, 1, 4], [0, 2, 1], [-1, 1, 2], [0, 1 << 30, 1 << 30])
    ]
    cases.append((HashedKind.LONG, np.zeros(0, np.int32), np.zeros(1, np.int64)))
    for kind, offsets, values in cases:
        column = (HashedColumn * 1)(HashedColumn(kind, Bytes(), bytes_of(offsets), bytes_of(values), 0))
        args = (column, 1, b"3", 1, 2, halves[0].ctypes.data, halves[1].ctypes.data)
        assert found.tidemark_row_hashes(*args) == 0


CRATE = PROJECT_ROOT / "native"
CARGO = pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")


def cargo(*words: str) -> subprocess.CompletedProcess[str]:
    """Without a network, in the clone's target folder, so only changes are compiled."""
    command = ["cargo", *words]
    return subprocess.run(command, cwd=CRATE, capture_output=True, text=True, check=False)


def build(environment: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(CRATE / "build.sh"), str(environment)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_the_lock_names_this_crate_alone() -> None:
    lock = tomllib.loads((CRATE / "Cargo.lock").read_text("utf-8"))
    assert [package["name"] for package in lock["package"]] == ["tidemark-native"]
    assert "://" not in (CRATE / "Cargo.lock").read_text("utf-8")


@CARGO
def test_its_own_tests_pass() -> None:
    # Without optimization: it compiles in a fifth of the time, and overflows panic.
    done = cargo("test", "--offline", "--locked", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr


@CARGO
@pytest.mark.parametrize(
    ("tool", "words"),
    [("clippy", ("--offline", "--locked", "--all-targets", "--", "-D", "warnings")), ("fmt", ("--check",))],
)
def test_the_code_is_clean(tool: str, words: tuple[str, ...]) -> None:
    if cargo(tool, "--version").returncode:
        pytest.skip(f"cargo has no {tool}")
    done = cargo(tool, *words)
    assert done.returncode == 0, done.stdout + done.stderr


@CARGO
def test_the_library_is_built_where_cargo_is(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert CDLL(str(tmp_path / "lib" / "tidemark" / PLACE.name)).tidemark_abi() == _ABI


def test_a_build_that_fails_says_so_in_a_line_and_stops_nothing(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "head"):
        (programs / name).symlink_to(str(shutil.which(name)))
    without = build(tmp_path, PATH=str(programs))
    (programs / "cargo").write_text("#!/bin/sh\necho 'error: no linker'\necho more\nexit 101\n")
    (programs / "cargo").chmod(0o755)
    broken = build(tmp_path, PATH=str(programs))
    end = ". Lines are parsed by Python, with the same result.\n"
    assert (without.returncode, without.stdout) == (0, f"No native scanner: there is no cargo{end}")
    assert (broken.returncode, broken.stdout) == (0, f"No native scanner: cargo build failed (error: no linker){end}")
    assert not (tmp_path / "lib").exists()
