"""`make dev` listens to this machine alone, and READ_ONLY=1 starts a read-only webserver."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

import pytest

from pipeline_assets.cli.install import _Served
from pipeline_assets.config import dagster_home
from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.support.listening import heard_from_elsewhere, listening


def test_webserver_and_daemon_are_started_for_this_machine() -> None:
    daemon, webserver = _Served(3456, is_read_only=False).words
    assert webserver == ["-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", "3456"]
    assert daemon == ["-m", "dagster._daemon", "run", "-w", "workspace.yaml"]


def test_read_only_starts_the_webserver_alone() -> None:
    (webserver,) = _Served(3000, is_read_only=True).words
    assert webserver[-1] == "--read-only"
    assert webserver[:6] == ["-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1"]


def test_the_shells_own_home_is_nobody_elses_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", "")
    assert stat.S_IMODE(dagster_home().stat().st_mode) == 0o700


def test_nothing_that_is_shipped_listens_to_everybody_but_the_container() -> None:
    """A container listens to its own network, behind a published port; everything else to this machine."""
    shipped = [*(PROJECT_ROOT / "deploy").glob("*.sh"), PROJECT_ROOT / "workspace.yaml", PROJECT_ROOT / "Makefile"]
    modules = [path for name in ("pipeline_assets", "resources") for path in (PROJECT_ROOT / name).rglob("*.py")]
    assert [path.name for path in [*shipped, *modules] if re.search(r"0\.0\.0\.0[^/]", path.read_text("utf-8"))] == []


def test_who_listens_to_whom_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("0.0.0.0", 0)) as everywhere:
        ports = {port for _, _, port in listening(os.getsid(0))}
        assert {here.getsockname()[1], everywhere.getsockname()[1]} <= ports
        told = heard_from_elsewhere(os.getsid(0))
        assert any(f"port {everywhere.getsockname()[1]}" in one for one in told)
        assert not any(f"port {here.getsockname()[1]}" in one for one in told)
