"""Dagster: code server, webserver and daemon, with runs and events in PostgreSQL."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from contextlib import suppress

from local_stack.asking import ask_json
from local_stack.environment import HOST, inherited
from local_stack.folder import StackFolder
from local_stack.options import Options
from local_stack.processes import begun_at
from local_stack.server import Server, StackError
from pipeline_assets.domain.settings import PROJECT_ROOT

DAEMON = "daemon"
_CODE, _WEB = "STACK_PORT_CODE", "STACK_PORT_WEBSERVER"
_CONTAINER = PROJECT_ROOT / "deploy" / "container"
"""Dagster's configuration for containers, which the local stack uses as well."""
_LONGEST_SECONDS = 60
_DAEMONS = "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy lastHeartbeatTime } } } }"
_ASSETS = "{ assetNodes { id } }"


def dagster_servers(folder: StackFolder, options: Options, deployment: dict[str, str]) -> list[Server]:
    """Return the code server, the webserver and the daemon, in starting order."""
    code, web = options.port(_CODE), options.port(_WEB)
    environment = {
        **inherited(folder),
        **deployment,
        "CODE_SERVER_HOST": HOST,
        "CODE_SERVER_PORT": str(code),
        "PYSPARK_PYTHON": sys.executable,
    }
    workspace = ("-w", str(_CONTAINER / "workspace.yaml"))
    return [
        Server(
            name="code-server",
            command=_python(
                "dagster", "api", "grpc", "-h", HOST, "-p", str(code), "-m", "pipeline_assets.definitions", "-a", "defs"
            ),
            environment=environment,
            folder=PROJECT_ROOT,
            ports={_CODE: code},
            is_well=lambda: _serves_code(code, environment),
            prepare=lambda: _prepare(folder, environment),
        ),
        Server(
            name="webserver",
            command=_python("dagster_webserver", *workspace, "-h", HOST, "-p", str(web)),
            environment=environment,
            folder=PROJECT_ROOT,
            ports={_WEB: web},
            is_well=lambda: bool(((ask_json(web, "/graphql", _ASSETS) or {}).get("data") or {}).get("assetNodes")),
        ),
        Server(
            name=DAEMON,
            command=_python("dagster._daemon", "run", *workspace),
            environment=environment,
            folder=PROJECT_ROOT,
            is_well=lambda: _beats(web, folder),
        ),
    ]


def _python(module: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module, *words)


def _prepare(folder: StackFolder, environment: dict[str, str]) -> None:
    """Create Dagster's configuration, tables and pool; Dagster does not enforce a pool on its first dequeue unless it exists."""
    shutil.copyfile(_CONTAINER / "dagster.yaml", folder.dagster_home / "dagster.yaml")
    words = _python("dagster", "instance", "concurrency", "set", "tidemark_load", "1")
    done = subprocess.run(words, cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise StackError(
            "Dagster", f"does not take its storage: {' '.join(said)}", "Correct what it names, then: make up"
        )


def _serves_code(port: int, environment: dict[str, str]) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        # Try the port first, because the health check takes seconds.
        return False
    words = _python("dagster", "api", "grpc-health-check", "-p", str(port))
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            words, cwd=PROJECT_ROOT, env=environment, capture_output=True, timeout=_LONGEST_SECONDS, check=False
        )
        return done.returncode == 0
    return False


def _beats(port: int, folder: StackFolder) -> bool:
    """Whether every required daemon sent a heartbeat since its process began; an old heartbeat stays healthy for minutes."""
    begun = begun_at(DAEMON, folder)
    answer = ask_json(port, "/graphql", _DAEMONS) or {}
    health = ((answer.get("data") or {}).get("instance") or {}).get("daemonHealth") or {}
    required = [one for one in health.get("allDaemonStatuses") or () if one["required"]]
    return bool(required) and all(one["healthy"] and (one["lastHeartbeatTime"] or 0) >= begun for one in required)
