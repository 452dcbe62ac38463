"""What this machine can hold: memory and cores, of the container where there is one; and whether Spark's workers are on it.

Contains: asking the operating system, reading what `spark_master` says of machines.
Add here: another default that follows from the machine.
Does not contain: settings themselves.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_LOCAL = re.compile(r"local\[\s*(?P<cores>[1-9][0-9]*)\s*(,\s*[0-9]+\s*)?\]")
_MOST, _LEAST = 2 * 1024**3, 256 * 1024**2
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def default_object_bytes() -> int:
    """A quarter of the memory that each core has, as a power of two, so that machines of a kind agree; 256 MiB to 2 GiB.

    What a worker decompresses lies on disk beyond some tens of MiB, as pages that the system may keep in memory or not.
    """
    share = memory_bytes() // max(1, cores()) // 4
    return min(_MOST, max(_LEAST, 1 << (share.bit_length() - 1) if share else 0))


def memory_bytes() -> int:
    """Of the machine, or of the container that this runs in."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _LIMITS if (text := _text(path)).isdecimal()]
    return min([own, *limits])


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_cores(spark_master: str) -> int:
    """That Spark uses: `local[4]` says 4; of a cluster, which nobody asks here, as many as this machine has."""
    named = _LOCAL.fullmatch(spark_master)
    if spark_master == "local":
        return 1
    return int(named["cores"]) if named else cores()


def is_on_this_machine(spark_master: str) -> bool:
    """Whether Spark's workers are processes of this machine, which see its disk and its packages."""
    return spark_master.startswith("local")


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
