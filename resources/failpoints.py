"""Named points where a test or a drill may kill or pause the process, to prove that the next run converges."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

VARIABLE = "TIDEMARK_CRASH_AT"
"""`point` or `point:qualifier`, for example `after_stage:refined/events`; read once per process."""

SIGNAL_FILE_VARIABLE = "TIDEMARK_CRASH_FILE"
"""When set, the process writes its point there instead of dying, and goes on once the file is gone."""

_POLL_SECONDS = 0.02


class Failpoint(StrEnum):
    """Every step between two durable states of a load, a recovery, a move within landing, a rollback or a rebuild."""

    DURING_LISTING = "during_listing"
    MID_PARSE = "mid_parse"
    AFTER_PIN = "after_pin"
    AFTER_FILES = "after_files"
    AFTER_STAGE = "after_stage"
    AFTER_AUDIT = "after_audit"
    AFTER_LOOK = "after_look"
    BEFORE_PUBLISH = "before_publish"
    AFTER_APPLY = "after_apply"
    IN_TRANSACTION = "in_transaction"
    AFTER_PUBLISH = "after_publish"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_LEDGER = "before_ledger"
    BETWEEN_TABLES = "between_tables"
    BETWEEN_CHUNKS = "between_chunks"
    BEFORE_EVENTS = "before_events"
    BEFORE_NOTICES = "before_notices"
    AFTER_COPY = "after_copy"
    AFTER_VERIFY = "after_verify"
    AFTER_MARKER = "after_marker"
    AFTER_DELETE = "after_delete"
    AFTER_DOWNLOAD = "after_download"
    AFTER_OBJECT = "after_object"
    BEFORE_MARKER = "before_marker"
    AFTER_GREEN = "after_green"
    AFTER_CHUNK = "after_chunk"
    BEFORE_REPORT = "before_report"
    BEFORE_SWAP = "before_swap"
    AFTER_SWAPS = "after_swaps"


def failpoint(point: Failpoint, qualifier: str = "") -> None:
    """Call all watchers of this point."""
    for watcher in _watchers:
        watcher(point, qualifier)


def watch(*watchers: Callable[[Failpoint, str], None]) -> None:
    """Replace all watchers of this process."""
    _watchers[:] = watchers


def stop_at(armed: str, signal_file: Path | None) -> Callable[[Failpoint, str], None]:
    """Return a watcher that kills the process, or pauses it once, at the armed point."""

    def stop(point: Failpoint, qualifier: str) -> None:
        if armed not in (point.value, f"{point.value}:{qualifier}"):
            return
        if signal_file is None:
            os.kill(os.getpid(), signal.SIGKILL)
            return
        watch()
        signal_file.write_text(f"{point.value}:{qualifier}", "utf-8")
        while signal_file.exists():
            time.sleep(_POLL_SECONDS)

    return stop


_armed, _signal_file = os.environ.get(VARIABLE), os.environ.get(SIGNAL_FILE_VARIABLE)
_watchers = [stop_at(_armed, Path(_signal_file) if _signal_file else None)] if _armed else []
