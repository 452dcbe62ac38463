"""One look, in this process: prints its seconds, what it found and the most memory that the process held.

Contains: measuring.
Add here: another figure of a process.
Does not contain: what is looked at (looks.py).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.scale.looks import LOOKS, Place
from benchmarks.scale.sizes import SIZES


def main() -> int:
    """`SIZE FOLDER LOOK`."""
    size, folder, name = sys.argv[1:]
    imported_mb = _peak_mb()
    started = time.perf_counter()
    found = LOOKS[name](Place(SIZES[size], Path(folder)))
    seconds = time.perf_counter() - started
    print(json.dumps({"look": name, "seconds": seconds, "mb": _peak_mb(), "imported_mb": imported_mb, "found": found}))
    return 0


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000


if __name__ == "__main__":
    raise SystemExit(main())
