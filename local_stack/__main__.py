"""`make up`, `make down`: `python -m local_stack up | down [--wipe] | status`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from local_stack.environment import HOST, deployment, keep_settings, without_other_stores, write_environment
from local_stack.folder import StackFolder
from local_stack.options import read_options
from local_stack.server import ServerError, StackError
from local_stack.stack import FOLDER, stages_of
from local_stack.supervisor import Stages, Supervisor
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK, EXIT_USAGE
from pipeline_assets.cli.terminal import PlainConsole, page, show
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.settings import PROJECT_ROOT


def main(words: Sequence[str] | None = None, folder: StackFolder = FOLDER) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m local_stack", description="A whole deployment on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start what does not run, and wait until all of it answers")
    down = commands.add_parser("down", help="end all of it; the data stays")
    down.add_argument("--wipe", action="store_true", help="remove the data too")
    commands.add_parser("status", help="what runs, and whether it is well")
    asked = parser.parse_args(words)
    errors = PlainConsole(stderr=True, soft_wrap=True)
    # After `kill` or a closed terminal, `up` stops what it started, as after Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        if not hasattr(os, "pidfd_open"):
            hint = "Take the containers: docs/deployment.md, As containers"
            raise UsageError("this system", "cannot tell processes apart as Linux does", hint)
        with without_other_stores():
            if asked.command == "up":
                return _up(folder)
            return _down(folder, wipe=asked.wipe) if asked.command == "down" else _status(folder)
    except TidemarkError as error:
        errors.print(f"{error.subject}: {error.reason}", style="red")
        errors.print(f"  fix: {error.hint}")
        if isinstance(error, ServerError):
            show(errors, *(f"  | {text}" for text in error.last_lines))
        return EXIT_USAGE if isinstance(error, UsageError | SettingsError) else EXIT_INCOMPLETE
    except KeyboardInterrupt:
        errors.print("Interrupted: what this command had started is ended again.")
        return EXIT_INCOMPLETE


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _up(folder: StackFolder) -> int:
    options = read_options(os.environ)
    console = page()
    with folder.locked():
        folder.make()
        keep_settings(folder)
        variables = deployment(folder, options)
        stages = stages_of(folder, options, variables)
        supervisor = Supervisor(folder, console.print)
        started = supervisor.up(stages)
        write_environment(folder, variables)
        if not started:
            console.print("The set is already up.")
        code = _tell(supervisor, stages)
    if code == EXIT_OK:
        console.print(
            f"Dagster: http://{HOST}:{options.port('STACK_PORT_WEBSERVER')}/locations/tidemark/asset-groups/events"
        )
        console.print(f"Spark:   http://{HOST}:{options.port('STACK_PORT_SPARK_PAGE')}")
        path = _shown(folder.environment)
        console.print(f"A shell of its deployment: . {path}, then .venv/bin/tidemark status")
    return code


def _down(folder: StackFolder, *, wipe: bool) -> int:
    console = page()
    folder.require_ours()
    if not folder.root.exists():
        console.print("The set is not up, and has no data.")
        return EXIT_OK
    with folder.locked():
        ended = Supervisor(folder, console.print).down()
        if wipe:
            folder.wipe()
    said = f"{ended} servers ended." if ended else "The set was not up."
    where = _shown(folder.root)
    console.print(f"{said} {'Its data is removed.' if wipe else f'Its data stays in {where}.'}")
    return EXIT_OK


def _status(folder: StackFolder) -> int:
    folder.require_ours()
    if not folder.id:
        raise StackError("the set", "is not up", "Start it: make up")
    options = read_options(os.environ)
    stages = stages_of(folder, options, deployment(folder, options))
    return _tell(Supervisor(folder, lambda _: None), stages)


def _shown(path: Path) -> str:
    """The path relative to the root of the clone."""
    return str(path.relative_to(PROJECT_ROOT) if path.is_relative_to(PROJECT_ROOT) else path)


def _tell(supervisor: Supervisor, stages: Stages) -> int:
    standings = supervisor.standings(stages)
    console = page()
    for one in standings:
        how = "well" if one.is_well else "does not run" if one.pid is None else "runs, but does not answer"
        ports = " ".join(map(str, one.ports))
        console.print(
            f"{one.name:<16}{how:<28}{f'process {one.pid}' if one.pid else '':<18}{f'port {ports}' if ports else ''}"
        )
    return EXIT_OK if all(one.is_well for one in standings) else EXIT_INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())
