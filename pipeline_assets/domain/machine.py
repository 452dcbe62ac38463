"""This machine or container: memory, cores, file systems, temporary files, and whether a task runs here or in Spark."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline_assets.domain.errors import DiskFullError, LakehouseError, UsageError

_LOCAL = re.compile(r"local\[\s*(?P<cores>[1-9][0-9]*)\s*(,\s*[0-9]+\s*)?\]")
_MOST, _LEAST = 2 * 1024**3, 256 * 1024**2
_MOUNTS, _LOCKS = Path("/proc/self/mountinfo"), Path("/proc/locks")
_SHARED = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|virtiofs|fuse(\..*)?|fakeowner|vboxsf|prl_fs|vmhgfs|drvfs|ceph|lustre|gpfs|beegfs|afs|gfs2|ocfs2"
    r"|panfs|wekafs|orangefs|pvfs2|coda"
)
"""File systems that a second kernel may have open: of servers, virtual machines and clusters."""
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def default_object_bytes() -> int:
    """A quarter of the memory per core, as a power of two so that similar machines agree; 256 MiB to 2 GiB."""
    share = memory_bytes() // max(1, cores()) // 4
    return min(_MOST, max(_LEAST, 1 << (share.bit_length() - 1) if share else 0))


def memory_bytes() -> int:
    """Memory of this machine, or the limit of this container, in bytes."""
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _LIMITS if (text := _text(path)).isdecimal()]
    return min([own, *limits])


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_cores(spark_master: str) -> int:
    """Cores that Spark uses: 4 for `local[4]`; a cluster is taken to have as many as this machine."""
    named = _LOCAL.fullmatch(spark_master)
    if spark_master == "local":
        return 1
    return int(named["cores"]) if named else cores()


def is_on_this_machine(spark_master: str) -> bool:
    """Whether Spark's workers are processes of this machine."""
    return spark_master.startswith("local")


def shared_file_system(path: Path) -> str | None:
    """The type of a path's file system, if another kernel may have it open; otherwise, or if unknown, None."""
    found, resolved = ("", ""), path.resolve()
    for line in _text(_MOUNTS).splitlines():
        mount, _, rest = line.partition(" - ")
        place = re.sub(r"\\(\d{3})", lambda escaped: chr(int(escaped[1], 8)), mount.split()[4])
        # A later mount hides an earlier one on the same place.
        if resolved.is_relative_to(place) and len(place) >= len(found[0]):
            found = place, rest.split()[0]
    return found[1] if _SHARED.fullmatch(found[1]) else None


def lock_holders(path: Path) -> list[str]:
    """Other processes with a write lock on a SQLite file, as `4711 (python)`; empty where the system lists none."""
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


MOST_READ_BYTES = 4 * 1024**2
"""Most bytes of column chunks that a step reads in the driving process: 0.1 s, as a Spark job takes to start."""
FILE_COST_BYTES = 64 * 1024
"""Cost of opening a file or an object, in bytes read."""
MOST_TEXT_BYTES = 4 * 1024**2
MOST_ITEMS = 64
"""More files or objects, however small, Spark opens side by side."""
_IS_HERE: ContextVar[bool] = ContextVar("is_here", default=False)


class TooLargeHereError(Exception):
    """A task exceeds the driving process's bounds, so that Spark has to run it."""


@contextmanager
def here() -> Iterator[None]:
    """Tasks in the block run in the driving process."""
    token = _IS_HERE.set(True)
    try:
        yield
    finally:
        _IS_HERE.reset(token)


def most_text_bytes(limit: int) -> int:
    """Most bytes that an object may inflate to where this runs; `limit` holds everywhere."""
    return min(limit, MOST_TEXT_BYTES) if _IS_HERE.get() else limit


def require_room(limit: int) -> None:
    """Raise TooLargeHereError in the driving process, if its own bound is below `limit`."""
    if most_text_bytes(limit) < limit:
        raise TooLargeHereError


@dataclass
class NewBytes:
    """Stored bytes of the objects that a load has found to read so far."""

    count: int = 0

    def begin(self) -> None:
        """Start counting for a load."""
        self.count = 0

    def add(self, size_bytes: int) -> None:
        """Add the objects of one source."""
        self.count += size_bytes


IN_MEMORY_BYTES = 32 * 1024**2


def a_spool() -> IO[bytes]:
    """An empty file for reading and writing, in memory while it is small."""
    return tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=_folder())


def a_spool_on_disk() -> IO[bytes]:
    """An empty file for reading and writing on disk."""
    return tempfile.TemporaryFile(dir=_folder())


def spool_place() -> str:
    """The folder of these files; where no temporary folder exists, the value of TMPDIR or its name."""
    try:
        return _folder() or tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR", "TMPDIR")


@contextmanager
def naming_the_disk(*, of_downloads: bool = False) -> Iterator[None]:
    """Raise LakehouseError that names Spark's local disk (DiskFullError: that of downloads) if it is full or gone."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        state = f"{'is full' if is_full else 'cannot be used'} ({error.strerror or error})"
        if of_downloads:
            hint = "Make room, or set TMPDIR to a folder on a larger disk that may be written; then recover again"
            raise DiskFullError(spool_place(), f"{state}: downloads are kept there meanwhile", hint) from error
        hint = "Make room, or set spark.local.dir in spark_config to a larger disk; then load again"
        reason = f"{state}: workers keep there what does not fit into their memory"
        raise LakehouseError(spool_place(), reason, hint) from error


def _folder() -> str | None:
    named = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    # An empty name would mean the working directory.
    folders = [folder for folder in named if folder and Path(folder).is_dir()]
    return folders[os.getpid() % len(folders)] if folders else None


def sync(*places: Path) -> None:
    """Sync files and folders, so that their bytes and names outlive a power cut."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, text: str, *, makes_folder: bool = False) -> Path:
    """Write the file atomically; returns its absolute path; raises UsageError, and then leaves no file."""
    target = path.expanduser().absolute()
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.draft")
    try:
        if makes_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        draft.replace(target)
    except OSError as error:
        reason = f"cannot be written there ({error.strerror or error})"
        raise UsageError(
            str(path), reason, "Name a file in a folder that is there and that you may write to"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


GROUP, SESSION = 2, 3
"""Fields of /proc/<pid>/stat, counted from the state on."""


def living(field: int, number: int) -> list[int]:
    """The processes of a group or session that are alive; zombies do not count."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        # The process may end meanwhile.
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[field]) == number and fields[0] != "Z":
                found.append(int(entry.name))
    return found
