"""Run one look in this process and print its seconds, result and peak memory."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from benchmarks.scale.looks import LOOKS, Place
from benchmarks.scale.sizes import SIZES


def main() -> int:
    """Run with the arguments `SIZE FOLDER LOOK LIMIT`, the limit in seconds."""
    size, folder, name, limit = sys.argv[1:]
    imported_mb = _peak_mb()
    signal.signal(signal.SIGALRM, _cut_off)
    signal.alarm(int(limit))
    started = time.perf_counter()
    try:
        found = LOOKS[name](Place(SIZES[size], Path(folder)))
    except (CutOffError, MemoryError) as error:
        found = {"cut off": type(error).__name__}
    signal.alarm(0)
    seconds = time.perf_counter() - started
    cpu = time.process_time()
    said = {"look": name, "seconds": seconds, "cpu": cpu, "mb": _peak_mb(), "imported_mb": imported_mb, "found": found}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    # Exit at once: after a cut-off, threads may still be running.
    os._exit(0)


class CutOffError(BaseException):
    """The limit was reached; no look catches it."""


def _cut_off(*_: object) -> None:
    raise CutOffError


def _peak_mb() -> float:
    """Peak memory of this program only; `getrusage` would include the process before its exec."""
    status = Path("/proc/self/status").read_text("utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1_000


if __name__ == "__main__":
    raise SystemExit(main())
