"""Examples of reverse proxies: targets, authentication, and syntax by their own programs, where installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline_assets.domain.settings import PROJECT_ROOT

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
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=x",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run(made, check=True, capture_output=True)
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
