"""The shell's commands one after the other in one process, which imports once."""

from __future__ import annotations

import json
import os
import sys

from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from tests.support.attached import attach, is_attached


def main() -> None:
    """Word lists on standard input, one a line, answers on the old standard output; all else goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if is_attached():
        attach()
    for line in sys.stdin:
        done = CliRunner().invoke(app, json.loads(line))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        told = {"code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
