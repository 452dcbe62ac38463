"""A named failpoint kills the process when a test armed it, and otherwise does nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_PROGRAM = (
    "from resources.failpoints import Failpoint, failpoint\n"
    "failpoint(Failpoint.AFTER_STAGE, 'refined/events')\n"
    "print('went on')"
)


@pytest.mark.parametrize(
    ("armed", "dies"),
    [
        *[(armed, True) for armed in ("after_stage", "after_stage:refined/events")],
        *[(armed, False) for armed in (None, "after_stage:raw/x", "mid_parse")],
    ],
)
def test_failpoints(armed: str | None, dies: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TIDEMARK_CRASH_AT"}
    if armed is not None:
        environment["TIDEMARK_CRASH_AT"] = armed
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if dies else 0)
    assert ("went on" in done.stdout) is not dies
