"""Loads of the deployment that faults meet: their commands and results."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pipeline_assets.domain.settings import PROJECT_ROOT

_NO_FAILURE = re.compile(r"\d\d:\d\d:\d\d |day  |\d{4}-\d\d-\d\d  |  details: ")
"""Lines of progress, of the table of days, and of the log's place."""
_FIX = "  fix: "
_TRIED_AGAIN = "SELECT count(*) FROM event_logs WHERE dagster_event_type = 'STEP_RESTARTED'"


@dataclass(frozen=True)
class Loaded:
    code: int
    said: tuple[str, ...]
    """Its output without progress and the table of days."""
    tried_again: int
    """How often the whole load restarted within the run."""


class CalmProcess:
    """The shell's commands in a process that stays."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        home.mkdir(exist_ok=True)
        self._log = (home / "calm.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.commands"],
            cwd=PROJECT_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def load(self, first: date, last: date) -> Loaded:
        """A load; its output is the addition to its log."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        start = self._log.seek(0, os.SEEK_END)
        self._process.stdin.write(json.dumps(words_of_load(first, last)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        self._log.seek(start)
        said = said_in(self._log.read())
        if not line:
            raise AssertionError(f"the process of calm loads died: {said[-20:]}")
        answer = json.loads(line)
        return Loaded(answer["code"], said + said_in(answer["stderr"]), 0)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with self._process, self._log:
            pass


def words_of_load(first: date, last: date) -> list[str]:
    return ["load", "--source", "regular", "--from", str(first), "--to", str(last)]


def said_in(log: str) -> tuple[str, ...]:
    """Lines of failures; the next line's remedy belongs to the sentence."""
    said: list[str] = []
    for line in log.splitlines():
        if said and line.startswith(_FIX):
            said[-1] = f"{said[-1]}. {line.removeprefix(_FIX)}"
        elif line.strip() and not _NO_FAILURE.match(line):
            said.append(line.rstrip())
    return tuple(said)


def tried_again(home: Path) -> int:
    """How often the runs in this Dagster home restarted their load."""
    count = 0
    for path in home.glob("history/runs/*.db"):
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):
            count += connection.execute(_TRIED_AGAIN).fetchone()[0]
    return count
