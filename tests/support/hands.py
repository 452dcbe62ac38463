"""A process that carries out orders: a line of JSON for each, and a line of answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from pipeline_assets.domain.settings import PROJECT_ROOT


class Hand:
    def __init__(self, module: str, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a module that calls `serve`."""
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", module, *options], cwd=PROJECT_ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def order(self, order: Any) -> None:
        """Send an order without waiting."""
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        line = self._process.stdout.readline()
        # A Java stack trace has hundreds of frames; the first and the causes matter.
        told = [] if line else [text for text in self.said().splitlines() if not text.startswith("\t")]
        assert line, "the process died:\n" + "\n".join(told)[-4000:]
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        self.order(order)
        return self.answer()

    def said(self, start: int = 0) -> str:
        """What it said from a place in its log on."""
        self._log.seek(start)
        return self._log.read()

    def place(self) -> int:
        """The end of its log."""
        return self._log.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with self._process, self._log:
            pass


def serve(begin: Callable[[], Callable[[Any], Any]]) -> None:
    """Begin, and carry out orders until standard input ends; what anybody prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    carry_out = begin()
    for line in sys.stdin:
        answers.write(json.dumps(carry_out(json.loads(line))) + "\n")
        answers.flush()
