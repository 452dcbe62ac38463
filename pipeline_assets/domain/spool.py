"""Data too large for memory: unnamed temporary files in Spark's local directory, which vanish with the process."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline_assets.domain.errors import DiskFullError, LakehouseError

IN_MEMORY_BYTES = 32 * 1024**2
"""Smaller files stay in memory."""


def a_spool() -> IO[bytes]:
    """An empty file for reading and writing, in memory while it is small."""
    return tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=_folder())


def a_spool_on_disk() -> IO[bytes]:
    """An empty file for reading and writing on disk, for data that is known to be large."""
    return tempfile.TemporaryFile(dir=_folder())


@contextmanager
def naming_the_disk() -> Iterator[None]:
    """Raise LakehouseError that names Spark's local disk when it is full or gone: the tables are usually on another one."""
    try:
        yield
    except OSError as error:
        what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"cannot be used ({error})"
        reason = f"{what}: workers keep there what does not fit into their memory"
        hint = "Make room, or set spark.local.dir in spark_config to a larger disk; then load again"
        raise LakehouseError(_folder() or tempfile.gettempdir(), reason, hint) from error


def spool_place() -> str:
    """The folder of these files; where no temporary folder exists, the value of TMPDIR or its name."""
    try:
        return _folder() or tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR", "TMPDIR")


@contextmanager
def naming_the_download_disk() -> Iterator[None]:
    """Raise DiskFullError that names the download disk when it is full or cannot be used."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = f"{'is full' if is_full else 'cannot be used'} ({error.strerror or error}): downloads are kept there meanwhile"
        hint = "Make room, or set TMPDIR to a folder on a larger disk that may be written; then recover again"
        raise DiskFullError(spool_place(), reason, hint) from error


def _folder() -> str | None:
    named = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    # An empty name would mean the working directory of the process.
    folders = [folder for folder in named if folder and Path(folder).is_dir()]
    return folders[os.getpid() % len(folders)] if folders else None
