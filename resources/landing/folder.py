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
from pathlib import Path
from typing import IO, ClassVar

from obstore.store import LocalStore

from pipeline_assets.domain.deliveries import Oddity
from pipeline_assets.domain.errors import LandingAccessError, ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.machine import IN_MEMORY_BYTES, a_spool_on_disk
from resources.landing.place import Listed

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


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking: otherwise opening a named pipe would wait forever."""
_HINT = "Put a plain file in its place, with the right to read it; every load tries again"
_STAGING = ".tidemark-writing"
"""Beside the projects' folders, outside of every listing."""
OUTSIDE = "a link that leads out of landing; nothing of what it leads to is read"


@dataclass(frozen=True)
class Folder:
    """A local folder; its own path may contain links.

    Links that stay within it are followed, to files and to a project's folder; those that lead out are reported. A hard link
    to a file elsewhere cannot be told from a file.
    """

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
        """Open a store rooted in the folder, for callers that write through obstore; it follows all links."""
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

    def _files(self, top: Path, folder: str) -> Iterator[Listed]:
        pending = [(top, folder)]
        while pending:
            path, name = pending.pop()
            try:
                folders, files = self._inside(path, name)
            except OSError as error:
                if path == top:
                    raise
                # Subfolders never hold deliveries. This one may be another user's, or was just removed.
                if not isinstance(error, FileNotFoundError):
                    yield Listed(name, "", 0, f"a folder that cannot be listed ({error.strerror})", Oddity.UNLISTED)
                continue
            pending += folders
            yield from files

    def _inside(self, path: Path, name: str) -> tuple[list[tuple[Path, str]], list[Listed]]:
        """Return the direct subfolders of a folder, and its other entries."""
        folders: list[tuple[Path, str]] = []
        files: list[Listed] = []
        with os.scandir(path) as entries:
            for entry in entries:
                key = f"{name}/{os.fsencode(entry.name).decode('utf-8', 'backslashreplace')}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append((Path(entry.path), key))
                else:
                    files += self._file(entry, key)
        return folders, files

    def _file(self, entry: os.DirEntry[str], key: str) -> Iterator[Listed]:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            # The file was deleted after the folder was listed.
            return
        if not stat.S_ISLNK(status.st_mode):
            yield Listed(key, version_of(status), status.st_size)
            return
        try:
            inside = self._resolved(os.path.relpath(entry.path, self.root))
            target = None if inside is None else inside.stat()
        except OSError:
            # The link is a loop or its target is gone: list the link itself; reading it will be refused.
            yield Listed(key, version_of(status), status.st_size)
            return
        if target is None:
            yield Listed(key, "", 0, OUTSIDE)
        elif stat.S_ISDIR(target.st_mode):
            yield Listed(key, "", 0, "a link to a folder; it is not followed")
        else:
            yield Listed(key, version_of(target), target.st_size)

    def read(self, _: object, key: str, etag: str, *, is_glance: bool = False) -> IO[bytes]:
        """Return the bytes of the version that was listed with `etag`; raises ObjectMovedError and UnreadableObjectError."""
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
                content = _copied(file, size) if version_of(status) == etag else None
                # Compare once more: another process may have rewritten the file in place during the read.
                if content is not None and version_of(os.fstat(file.fileno())) == etag:
                    return content
        except FileNotFoundError as error:
            if (self.root / key).is_symlink():
                raise UnreadableObjectError(key, "is a link that leads nowhere", _HINT) from error
        if content is not None:
            content.close()
        raise ObjectMovedError(key, "was overwritten or deleted since it was listed", "The next run lists it anew")

    def create(self, _: object, key: str, content: IO[bytes]) -> bool:
        """Write a file as `write_new` does; raises LandingAccessError where its folder is a link that leads out, and OSError."""
        folder, _, name = key.rpartition("/")
        (self.root / folder).mkdir(exist_ok=True)
        inside = self._resolved(folder)
        if inside is None or inside == Path(os.path.realpath(self.root)):
            raise LandingAccessError(folder, f"is {OUTSIDE}, and nothing is written there", "Put a folder in its place")
        descriptor = self._descriptor(inside)
        try:
            return write_new(self.root / _STAGING, descriptor, name, content)
        finally:
            os.close(descriptor)

    def _resolved(self, key: str) -> Path | None:
        """The path of a file or folder with all links resolved; None where it is outside of the root."""
        root = Path(os.path.realpath(self.root))
        target = Path(os.path.realpath(self.root / key, strict=True))
        return target if target.is_relative_to(root) else None

    def _descriptor(self, place: Path) -> int:
        """Open a resolved path step by step; a component that has become a link since is refused."""
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


def _copied(file: IO[bytes], size: int) -> IO[bytes]:
    content = io.BytesIO() if size <= IN_MEMORY_BYTES else a_spool_on_disk()
    # Stop at the size: a file that grows meanwhile is detected by its version.
    while part := file.read(min(_STEP_BYTES, size - content.tell())):
        content.write(part)
    content.seek(0)
    return content


def version_of(status: os.stat_result) -> str:
    """Return inode, time and size in obstore's format, so that versions recorded by older loads stay valid."""
    return f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"'
