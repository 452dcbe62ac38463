"""A new file in a folder: whole and on the disk before it has its name, and never in the place of another one.

Contains: the one way in which anything of ours is written into a local landing.
Add here: another thing that a file system lacks.
Does not contain: which folder is written to (folder.py), what a failure means (errors.py).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_STEP_BYTES = 1024**2
_STAGED_NAME = re.compile(r"[0-9a-f]{32}")
_LONGEST_WRITE_SECONDS = 24 * 3600
_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EINVAL}
)
"""File systems without hard links, and a project's folder on another one than the folder of what is being written."""
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
"""What file systems answer that keep their folders safe by themselves."""


def write_new(staging: Path, folder: int, name: str, content: IO[bytes]) -> bool:
    """A file that outlives a power cut; False, and nothing changed, where the name is taken. Raises OSError, with nothing left.

    `staging`: a folder where no listing looks; `folder`: the opened folder that gets the name. The whole file is linked to
    its name. Where the file system knows no links it is written under its name, which only a new file gets: a kill may leave
    a part of it there then, that whoever compares bytes refuses.
    """
    with _staged(staging, content) as staged:
        try:
            # A link takes no name that is taken, be it by a link that leads nowhere.
            os.link(staged, name, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            # The answer of a server may be lost, and be asked for again.
            if not _is_there(staged, folder, name):
                if isinstance(error, FileExistsError):
                    return False
                if error.errno not in _NO_LINKS:
                    raise
                if not _written_under_its_name(staged, folder, name):
                    return False
        _sync(folder)
    return True


@contextmanager
def _staged(staging: Path, content: IO[bytes]) -> Iterator[Path]:
    """The bytes in a file that is gone with the block."""
    staging.mkdir(exist_ok=True)
    for left in staging.iterdir():
        # Of a process that was killed; what has another name is not ours.
        with suppress(FileNotFoundError):
            if _STAGED_NAME.fullmatch(left.name) and time.time() - left.lstat().st_mtime > _LONGEST_WRITE_SECONDS:
                left.unlink()
    path = staging / uuid.uuid4().hex
    try:
        # Some servers tell of a full disk when the file is closed.
        with path.open("xb") as file:
            shutil.copyfileobj(content, file, _STEP_BYTES)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _is_there(staged: Path, folder: int, name: str) -> bool:
    try:
        present = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(present, staged.lstat())


def _written_under_its_name(staged: Path, folder: int, name: str) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, 0o666, dir_fd=folder)
    except FileExistsError:
        return False
    ours = os.fstat(descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file, staged.open("rb") as content:
            shutil.copyfileobj(content, file, _STEP_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            # Somebody may have put another file in its place.
            if os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), ours):
                os.unlink(name, dir_fd=folder)
        raise
    return True


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
