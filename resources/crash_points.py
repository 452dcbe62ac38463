"""Named points where a test may kill the process, to prove that the next run converges.

Lives here: the names and the switch. Put here: a new step of the load path that must survive a kill. Keep out: what
happens afterwards (tests/scenarios). Costs one attribute read per point when off.
"""

from __future__ import annotations

import os
import signal
import time
from enum import StrEnum
from pathlib import Path

VARIABLE = "TIDEMARK_CRASH_AT"
"""`point` or `point:qualifier`, for example `after_stage:refined/events`; read once per process."""

SIGNAL_FILE_VARIABLE = "TIDEMARK_CRASH_FILE"
"""When set, the process writes its point there and waits to be killed instead of killing itself."""


class CrashPoint(StrEnum):
    """Every step of the load path between two durable states."""

    DURING_LISTING = "during_listing"
    MID_PARSE = "mid_parse"
    AFTER_STAGE = "after_stage"
    AFTER_AUDIT = "after_audit"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_LEDGER = "before_ledger"
    BETWEEN_TABLES = "between_tables"
    BETWEEN_CHUNKS = "between_chunks"
    BEFORE_EVENTS = "before_events"


_ARMED = os.environ.get(VARIABLE)


def crash_point(point: CrashPoint, qualifier: str = "") -> None:
    """Die here with SIGKILL when the test that started this process asked for it; else do nothing."""
    if _ARMED is None or _ARMED not in (point.value, f"{point.value}:{qualifier}"):
        return
    signal_file = os.environ.get(SIGNAL_FILE_VARIABLE)
    if signal_file is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        Path(signal_file).write_text(f"{point.value}:{qualifier}", "utf-8")
    while True:
        time.sleep(60)
