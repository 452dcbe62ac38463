"""What `make dev` starts listens to this machine alone, and READ_ONLY=1 starts what can only be looked at.

Contains: the script, with programs that write down how they are called.
Add here: another way to start it.
Does not contain: what a read-only webserver refuses (tests/canaries.py, which starts a real one).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from pipeline_assets.config import dagster_home
from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.support.listening import heard_from_elsewhere, listening


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The script in a project whose programs write down their names and words; the webserver ends at once."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(PROJECT_ROOT / "deploy" / "dev.sh", tmp_path / "deploy")
    shutil.copy(PROJECT_ROOT / "dagster.yaml", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, then in (("dagster", ""), ("dagster-daemon", "sleep 60"), ("dagster-webserver", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/called\nexec 1>&- 2>&-\n{then}\n')
        program.chmod(0o755)
    return tmp_path


def _called(project: Path, **environment: str) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "PORT", "READ_ONLY")}
    subprocess.run(
        ["sh", str(project / "deploy" / "dev.sh")],
        env={**inherited, **environment},
        capture_output=True,
        check=False,
        timeout=30,
    )
    return (project / "called").read_text().splitlines()


def test_webserver_and_daemon_are_started_for_this_machine(project: Path) -> None:
    called = _called(project, PORT="3456")
    assert "dagster-webserver -w workspace.yaml -h 127.0.0.1 -p 3456" in called
    assert any(line.startswith("dagster-daemon run") for line in called)
    home = project / "data" / "dagster_home"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    # A folder that somebody made otherwise stays as it is.
    home.chmod(0o755)
    _called(project)
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


def test_read_only_starts_the_webserver_alone(project: Path) -> None:
    assert _called(project, READ_ONLY="1") == ["dagster-webserver -w workspace.yaml -h 127.0.0.1 -p 3000 --read-only"]


def test_the_shells_own_home_is_nobody_elses_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", "")
    assert stat.S_IMODE(dagster_home().stat().st_mode) == 0o700


def test_nothing_that_is_shipped_listens_to_everybody_but_the_container() -> None:
    """A container listens to its own network, behind what publishes its port; everything else to this machine."""
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
