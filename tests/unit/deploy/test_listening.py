"""`make dev` and all that is shipped listen to this machine alone; examples of reverse proxies lead to it and ask for names."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from pipeline_assets.cli.install import _Served
from pipeline_assets.config import dagster_home
from pipeline_assets.domain.settings import PROJECT_ROOT
from tests.support.listening import heard_from_elsewhere, listening

FOLDER = PROJECT_ROOT / "deploy" / "proxy"
NGINX, CADDY = FOLDER / "nginx.conf", FOLDER / "Caddyfile"


@pytest.mark.parametrize("path", [NGINX, CADDY], ids=lambda path: path.name)
def test_an_example_leads_to_this_machine_and_asks_for_names(path: Path) -> None:
    text = path.read_text("utf-8")
    told = re.sub(r"(?m)#.*$", "", text)
    assert set(re.findall(r"(?:proxy_pass http://|reverse_proxy )(\S+?)[;\s]", told)) == {"127.0.0.1:3000"}
    assert re.search(r"auth_basic |basic_auth ", told)
    assert "403" in told
    assert "X-Frame-Options DENY" in told
    assert re.search(r'Authorization "";|header_up -Authorization', told)
    # Every block is closed.
    assert told.count("{") == told.count("}")
    assert path.relative_to(PROJECT_ROOT).as_posix() in (PROJECT_ROOT / "docs" / "security.md").read_text("utf-8")


def test_nginx_reads_it(tmp_path: Path) -> None:
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed: on Debian, apt-get install nginx-light openssl")
    key, certificate = tmp_path / "tidemark.key", tmp_path / "tidemark.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    text = NGINX.read_text("utf-8").replace("/etc/ssl/", f"{tmp_path}/").replace("/etc/nginx/", f"{tmp_path}/")
    (tmp_path / "tidemark.htpasswd").write_text("")
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    done = subprocess.run([program, "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_caddy_reads_it() -> None:
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("Caddy is not installed: on Debian, apt-get install caddy")
    done = subprocess.run([program, "validate", "--config", CADDY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
