"""The crate passes its own tests, names no host, and is built where cargo is; elsewhere one line says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from ctypes import CDLL
from pathlib import Path

import pytest

from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.native.library import _ABI, PLACE

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
    done = cargo("test", "--release", "--offline", "--locked", "--quiet")
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
