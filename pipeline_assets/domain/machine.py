"""What this machine can hold: memory and cores, of the container where there is one.

Contains: asking the operating system.
Add here: another default that follows from the machine.
Does not contain: settings themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

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


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
