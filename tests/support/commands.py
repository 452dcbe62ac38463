"""The shell's commands one after the other in one process, which imports once: an order is a list of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from tests.support.attached import attach, is_attached
from tests.support.hands import serve


def _begin() -> Callable[[Sequence[str]], dict[str, Any]]:
    if is_attached():
        attach()
    return _run


def _run(words: Sequence[str]) -> dict[str, Any]:
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return {"code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}


if __name__ == "__main__":
    serve(_begin)
