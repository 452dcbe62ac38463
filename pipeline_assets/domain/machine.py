"""Memory and cores of this machine or its container, and whether Spark's workers run on it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LOCAL = re.compile(r"local\[\s*(?P<cores>[1-9][0-9]*)\s*(,\s*[0-9]+\s*)?\]")
_MOST, _LEAST = 2 * 1024**3, 256 * 1024**2
_MOUNTS, _LOCKS = Path("/proc/self/mountinfo"), Path("/proc/locks")
_SHARED = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|virtiofs|fuse(\..*)?|fakeowner|vboxsf|prl_fs|vmhgfs|drvfs|ceph|lustre|gpfs|beegfs|afs|gfs2|ocfs2"
    r"|panfs|wekafs|orangefs|pvfs2|coda"
)
"""File systems that a second kernel may have open: those of servers, of virtual machines and their hosts, of clusters."""
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def default_object_bytes() -> int:
    """A quarter of the memory per core, rounded down to a power of two so that similar machines agree; 256 MiB to 2 GiB.

    Beyond some tens of MiB, a worker keeps decompressed data in files, whose pages the system may cache in memory.
    """
    share = memory_bytes() // max(1, cores()) // 4
    return min(_MOST, max(_LEAST, 1 << (share.bit_length() - 1) if share else 0))


def memory_bytes() -> int:
    """Memory of this machine, or the memory limit of this container, in bytes."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _LIMITS if (text := _text(path)).isdecimal()]
    return min([own, *limits])


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_cores(spark_master: str) -> int:
    """Number of cores that Spark uses: 4 for `local[4]`; a cluster is taken to have as many as this machine."""
    named = _LOCAL.fullmatch(spark_master)
    if spark_master == "local":
        return 1
    return int(named["cores"]) if named else cores()


def is_on_this_machine(spark_master: str) -> bool:
    """Whether Spark's workers are processes of this machine, with access to its disk and its packages."""
    return spark_master.startswith("local")


def shared_file_system(path: Path) -> str | None:
    """The type of the file system of a path, if another kernel may have it open too; None also where the system tells none."""
    found, resolved = ("", ""), path.resolve()
    for line in _text(_MOUNTS).splitlines():
        mount, _, rest = line.partition(" - ")
        place = re.sub(r"\\(\d{3})", lambda escaped: chr(int(escaped[1], 8)), mount.split()[4])
        # The later one of two mounts on one place hides the earlier one.
        if resolved.is_relative_to(place) and len(place) >= len(found[0]):
            found = place, rest.split()[0]
    return found[1] if _SHARED.fullmatch(found[1]) else None


def lock_holders(path: Path) -> list[str]:
    """Other processes that hold a write lock of a SQLite file, as `4711 (python)`; empty where the system tells none."""
    files = [path.stat() for path in (path, Path(f"{path}-shm")) if path.exists()]
    names = {f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}" for file in files}
    locks = [line.split() for line in _text(_LOCKS).splitlines()]
    pids = {lock[4] for lock in locks if lock[3] == "WRITE" and lock[5] in names} - {str(os.getpid())}
    return [f"{pid} ({_text(Path('/proc', pid, 'comm'))})" for pid in sorted(pids) if pid.isdecimal() and pid != "0"]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "surrogateescape").strip()
    except (OSError, ValueError):
        return ""
