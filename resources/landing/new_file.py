"""Create a file in a folder: complete and synced before it gets its name, and never over another file."""

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
"""Errors of file systems without hard links, and of a project's folder on another file system than the staging folder."""
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
"""Errors of file systems that need no fsync of folders."""


def write_new(staging: Path, folder: int, name: str, content: IO[bytes]) -> bool:
    """Write a file that survives a power cut; False, with nothing changed, where the name is taken. Raises OSError.

    `staging` is a folder outside of every listing; `folder` is the descriptor of the target folder. The complete file is
    linked to its name. A file system without links writes it under its name instead, with an exclusive create: a kill may
    then leave a partial file, which callers detect when they compare bytes. After an error no file is left.
    """
    with _staged(staging, content) as staged:
        try:
            # A link never replaces an existing name, not even a dangling link.
            os.link(staged, name, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            # A file server may lose its answer and get the request again.
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
    """Write the bytes to a temporary file, which is removed after the block."""
    staging.mkdir(exist_ok=True)
    for left in staging.iterdir():
        # Remove files of killed processes; a file with another name is not ours.
        with suppress(FileNotFoundError):
            if _STAGED_NAME.fullmatch(left.name) and time.time() - left.lstat().st_mtime > _LONGEST_WRITE_SECONDS:
                left.unlink()
    path = staging / uuid.uuid4().hex
    try:
        # Some servers report a full disk only when the file is closed.
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
            # Somebody may have replaced it by another file.
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
