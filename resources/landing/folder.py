"""Landing as a local folder; links that lead out of it are never followed, and no file is ever overwritten."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, ClassVar

from obstore.store import LocalStore

from pipeline_assets.domain.deliveries import Oddity
from pipeline_assets.domain.errors import LandingAccessError, ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.machine import IN_MEMORY_BYTES, a_spool_on_disk
from resources.landing.bucket import Listed

_STEP_BYTES = 1024**2
_STAGED_NAME = re.compile(r"[0-9a-f]{32}")
_LONGEST_WRITE_SECONDS = 24 * 3600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EINVAL)
"""Errors of file systems without hard links, and of a project's folder on another file system than the staging folder."""
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking: opening a named pipe would wait forever."""
_HINT = "Put a plain file in its place, with the right to read it; every load tries again"
_STAGING = ".tidemark-writing"
OUTSIDE = "a link that leads out of landing; nothing of what it leads to is read"


@dataclass(frozen=True)
class Folder:
    """A local folder; follows links to files and to a project's folder that stay within it, and reports those that lead out."""

    root: Path
    is_ordered: ClassVar[bool] = False

    @property
    def url(self) -> str:
        """The path."""
        return str(self.root)

    def require(self) -> None:
        """Raise LandingAccessError where the folder is missing: it would look like "nothing was delivered"."""
        if not self.root.is_dir():
            raise LandingAccessError(self.url, "is not a folder", "Correct TIDEMARK_LANDING_URL or create it")

    def open(self) -> LocalStore:
        """Open an obstore store for the folder, for callers that write; it follows all links."""
        return LocalStore(prefix=self.root)

    def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:  # noqa: ARG002 - no order, so no start
        """Yield the files of a project's folder and its subfolders; links to subfolders are reported and not followed."""
        top = self.root / folder
        if not top.is_symlink() and not top.exists():
            return
        try:
            inside = self._resolved(folder)
        except OSError as error:
            yield Listed(folder, "", 0, f"a link that leads nowhere ({error.strerror})")
            return
        if inside is None:
            yield Listed(folder, "", 0, OUTSIDE)
        elif inside.is_dir():
            yield from self._files(top, folder)

    def _files(self, path: Path, name: str) -> Iterator[Listed]:
        with os.scandir(path) as found:
            entries = list(found)
        for entry in entries:
            key = f"{name}/{os.fsencode(entry.name).decode('utf-8', 'backslashreplace')}"
            if not entry.is_dir(follow_symlinks=False):
                yield from self._file(entry, key)
                continue
            try:
                below = list(self._files(Path(entry.path), key))
            except FileNotFoundError:
                continue
            except OSError as error:
                below = [Listed(key, "", 0, f"a folder that cannot be listed ({error.strerror})", Oddity.UNLISTED)]
            yield from below

    def _file(self, entry: os.DirEntry[str], key: str) -> Iterator[Listed]:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISLNK(status.st_mode):
            yield _listed(key, status)
            return
        try:
            inside = self._resolved(os.path.relpath(entry.path, self.root))
            target = None if inside is None else inside.stat()
        except OSError:
            target = status
        if target is None:
            yield Listed(key, "", 0, OUTSIDE)
        elif stat.S_ISDIR(target.st_mode):
            yield Listed(key, "", 0, "a link to a folder; it is not followed")
        else:
            yield _listed(key, target)._replace(is_link=True)

    def read(self, _: object, key: str, etag: str, *, is_glance: bool = False) -> IO[bytes]:
        """Return the bytes of the listed version, or the first one; raises ObjectMovedError and UnreadableObjectError."""
        content = None
        try:
            inside = self._resolved(key)
            if inside is None:
                raise UnreadableObjectError(key, f"is {OUTSIDE}", _HINT)
            with os.fdopen(self._descriptor(inside), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise UnreadableObjectError(key, "is no file that can be read", _HINT)
                size = min(status.st_size, 1) if is_glance else status.st_size
                content = _copied(file, size) if _version(status) == etag else None
                # Compare again: another process may have rewritten the file in place during the read.
                if content is not None and _version(os.fstat(file.fileno())) == etag:
                    return content
        except FileNotFoundError as error:
            if (self.root / key).is_symlink():
                raise UnreadableObjectError(key, "is a link that leads nowhere", _HINT) from error
        if content is not None:
            content.close()
        raise ObjectMovedError(key, "was overwritten or deleted since it was listed", "The next run lists it anew")

    def find(self, _: object, key: str) -> Listed:
        """Return the present version of a file or link, without following it; raises OSError."""
        with self._folder_of(key) as (folder, name):
            return _listed(key, os.stat(name, dir_fd=folder, follow_symlinks=False))

    def delete(self, _: object, key: str, etag: str) -> bool:  # noqa: ARG002 - no call compares and deletes: the caller did
        """Delete a file; raises OSError."""
        with self._folder_of(key) as (folder, name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)
        return True

    def create(self, _: object, key: str, content: IO[bytes]) -> bool:
        """Write a file that survives a power cut; False where the name is taken; raises LandingAccessError and OSError."""
        (self.root / key).parent.mkdir(exist_ok=True)
        with self._folder_of(key) as (folder, name), self._staged(content) as staged:
            try:
                os.link(staged, name, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                # A file server may lose its answer and get the request again: then the name is the staged file's.
                if not _is_there(staged, folder, name):
                    if isinstance(error, FileExistsError):
                        return False
                    if error.errno in _NO_LINKS:
                        reason = f"cannot be written whole: {error.strerror} to a hard link from {self.root / _STAGING}"
                        hint = "Let landing lie on one file system that has hard links, or in a bucket"
                        raise LandingAccessError(key, reason, hint) from error
                    raise
            try:
                os.fsync(folder)
            except OSError as error:
                if error.errno not in _NO_FOLDER_SYNC:
                    raise
        return True

    @contextmanager
    def _staged(self, content: IO[bytes]) -> Iterator[Path]:
        staging = self.root / _STAGING
        staging.mkdir(exist_ok=True)
        for left in staging.iterdir():
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

    @contextmanager
    def _folder_of(self, key: str) -> Iterator[tuple[int, str]]:
        folder, _, name = key.rpartition("/")
        inside = self._resolved(folder)
        if inside is None or inside == Path(os.path.realpath(self.root)):
            raise LandingAccessError(folder, f"is {OUTSIDE}, and nothing is written there", "Put a folder in its place")
        descriptor = self._descriptor(inside)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _resolved(self, key: str) -> Path | None:
        root = Path(os.path.realpath(self.root))
        target = Path(os.path.realpath(self.root / key, strict=True))
        return target if target.is_relative_to(root) else None

    def _descriptor(self, place: Path) -> int:
        """Open a resolved path step by step; refuse a component that has become a link."""
        root = Path(os.path.realpath(self.root))
        folder = os.open(root, _READ | os.O_DIRECTORY)
        try:
            *folders, name = place.relative_to(root).parts
            for part in folders:
                inner = os.open(part, _READ | os.O_DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(name, _READ, dir_fd=folder)
        finally:
            os.close(folder)


def _is_there(staged: Path, folder: int, name: str) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), staged.lstat())
    except OSError:
        return False


def _copied(file: IO[bytes], size: int) -> IO[bytes]:
    content = io.BytesIO() if size <= IN_MEMORY_BYTES else a_spool_on_disk()
    # Stop at the size: the version shows a file that grows.
    while part := file.read(min(_STEP_BYTES, size - content.tell())):
        content.write(part)
    content.seek(0)
    return content


def _listed(key: str, status: os.stat_result) -> Listed:
    uploaded_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return Listed(
        key, _version(status), status.st_size, uploaded_at=uploaded_at, is_link=not stat.S_ISREG(status.st_mode)
    )


def _version(status: os.stat_result) -> str:
    """Inode, time and size in obstore's format: the ledger holds versions that obstore listed."""
    return f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"'
