"""Small objects and listings in the warehouse without a JVM, in a local folder or a bucket, and its store's clock."""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self, cast

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore

from pipeline_assets.domain import errors
from pipeline_assets.domain.machine import sync
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.settings import Settings
from resources.landing.bucket import Bucket, landing_errors

if TYPE_CHECKING:
    from obstore.store import S3Store

OWN_FOLDER = "_tidemark"
_PROBES = "clock"
_HINT = "Check TIDEMARK_WAREHOUSE_URL, region, endpoint and credentials, and the rights to list, read, write and delete"


@dataclass(frozen=True)
class LakeObject:
    """An object as a listing shows it."""

    name: str
    """Relative to the URL of its LakeObjects."""
    size_bytes: int
    modified_at: datetime
    """Aware, by the store's clock."""


class _Object:
    def __init__(self, body: Any, failures: Callable[[], AbstractContextManager[None]]) -> None:
        self._body, self._failures, self._written = body, failures, 0
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int = -1) -> bytes:
        with self._failures():
            return bytes(self._body.read(None if size < 0 else size))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._failures():
            return int(self._body.seek(offset, whence))

    def write(self, part: bytes) -> int:
        with self._failures():
            self._body.write(part)
        self._written += len(part)
        return len(part)

    def tell(self) -> int:
        return self._written or int(self._body.tell() if hasattr(self._body, "tell") else 0)

    def flush(self) -> None:
        """Do nothing: a new object becomes visible once closed."""

    def close(self) -> None:
        self.closed = True
        with self._failures():
            self._body.close()


class LakeObjects:
    """Objects below one URL; raise LakehouseError where the store refuses, LakehouseUnavailableError where it is out of reach."""

    def __init__(self, url: str) -> None:
        """Take a path, `file:` or `s3://bucket[/prefix]` (also `s3a:`); it need not exist."""
        self.url = re.sub(r"^s3[an]:", "s3:", url.rstrip("/"))
        self._folder = local_path(self.url)
        self._bucket = Bucket.from_url(self.url, None) if self._folder is None else None
        self._store: LocalStore | S3Store | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the place without the connection."""
        return {**self.__dict__, "_store": None}

    @classmethod
    def of(cls, settings: Settings, folder: str = "") -> Self:
        """Open Tidemark's own objects, `<warehouse>/_tidemark[/folder]`."""
        own = f"{settings.warehouse_url.rstrip('/')}/{OWN_FOLDER}"
        return cls(f"{own}/{folder}" if folder else own)

    def replace(self, name: str, body: bytes) -> None:
        """Write an object atomically, also over an existing one."""
        self.put(name, body, "overwrite")

    def put(self, name: str, body: bytes, mode: Literal["create", "overwrite"] = "create") -> bool:
        """Create an object atomically; returns False where the name is taken."""
        with self._failures(name):
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            try:
                obstore.put(self._opened(), name, body, mode=mode)
            except AlreadyExistsError:
                return False
            if self._folder is not None:
                # Both bytes and name: callers go on to write objects that depend on this one.
                sync(self._folder / name, (self._folder / name).parent)
        return True

    def get(self, name: str, first_bytes: int | None = None) -> bytes | None:
        """Return the object's bytes, or the first `first_bytes`; None where there is no such object."""
        if self._is_absent():
            return None
        with suppress(FileNotFoundError), self._reading(name):
            answer = obstore.get(self._opened(), name)
            if first_bytes is None or answer.meta["size"] <= first_bytes:
                return bytes(answer.bytes())
            return bytes(obstore.get_range(self._opened(), name, start=0, end=first_bytes))
        return None

    def create(self, name: str) -> IO[bytes]:
        """Open a new object for writing, under an unused name; it is complete once closed."""
        with self._failures(name):
            if self._folder is None:
                body: Any = obstore.open_writer(self._opened(), name)
            else:
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                body = path.open("xb")
        return cast("IO[bytes]", _Object(body, partial(self._failures, name)))

    def open(self, name: str) -> IO[bytes]:
        """Open an object for random access; raises FileNotFoundError where it is gone, also during a read."""
        with self._reading(name):
            if self._folder is not None:
                return (self._folder / name).open("rb")
            body: Any = obstore.open_reader(self._opened(), name)
        return cast("IO[bytes]", _Object(body, partial(self._reading, name)))

    def list(self, folder: str = "") -> Iterator[LakeObject]:
        """Yield all objects below a folder, unordered, without the folder placeholders of some tools."""
        with self._failures(folder):
            if self._folder is not None:
                yield from _walk(self._folder, folder)
                return
            for page in obstore.list(self._opened(), prefix=folder or None):
                for item in page:
                    if not (item["path"].endswith("/") or (item["size"] == 0 and item["path"] == folder)):
                        yield LakeObject(item["path"], item["size"], item["last_modified"])

    def clock(self) -> datetime | None:
        """Return the time by the store's clock, as listings show it; None for a folder, which uses this machine's."""
        if self._folder is not None:
            return None
        name = f"{_PROBES}/{uuid.uuid4().hex}"
        self.put(name, b"")
        try:
            return next((entry.modified_at for entry in self.list(_PROBES) if entry.name == name), None)
        finally:
            self.delete(name)

    def delete(self, name: str) -> None:
        """Delete an object; does nothing where it is gone."""
        if not self._is_absent():
            with suppress(FileNotFoundError), self._reading(name):
                obstore.delete(self._opened(), name)

    def _is_absent(self) -> bool:
        return self._folder is not None and not self._folder.is_dir()

    def _opened(self) -> LocalStore | S3Store:
        if self._store is None:
            self._store = LocalStore(prefix=self._folder) if self._bucket is None else self._bucket.open()
        return self._store

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """As `_failures`, but FileNotFoundError where only the object is gone."""
        gone: FileNotFoundError | None = None
        with self._failures(name):
            try:
                yield
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                gone = error
        if gone is not None:
            raise gone

    @contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        try:
            with landing_errors(f"{self.url}/{name}".rstrip("/")):
                yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            reason, hint = f"cannot be written: {error.strerror}", "Make room for the warehouse, then load again"
            raise errors.LakehouseError(f"{self.url}/{name}", reason, hint) from error
        except errors.LandingAccessError as error:
            raise errors.LakehouseAccessError(
                error.subject, error.reason.replace("landing", "warehouse", 1), _HINT
            ) from error
        except errors.LandingUnavailableError as error:
            reason = error.reason.replace("landing", "warehouse", 1)
            if isinstance(error.__cause__, NotADirectoryError | FileExistsError):
                raise errors.LakehouseError(error.subject, reason, _HINT) from error
            raise errors.LakehouseUnavailableError(error.subject, reason, "Try again later") from error


def _walk(root: Path, folder: str) -> Iterator[LakeObject]:
    def raise_unless_gone(error: OSError) -> None:
        # An unlistable folder is not empty: its files would look lost.
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, _, names in os.walk(root / folder, onerror=raise_unless_gone):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            relative = str(path.relative_to(root))
            yield LakeObject(relative, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


_APART = timedelta(hours=1)


def require_true_clock(objects: LakeObjects, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
    """Raise LakehouseError where this machine's clock differs from the store's by over an hour."""
    before = now()
    theirs = objects.clock()
    after = now()
    if theirs is not None and not before - _APART <= theirs <= after + _APART:
        times = f"has the time {theirs:%Y-%m-%d %H:%M:%S} UTC, while this machine has {after:%Y-%m-%d %H:%M:%S}"
        reason = f"{times}, so the age of files is unknown, and nothing was touched"
        raise errors.LakehouseError(objects.url, reason, "Correct this machine's clock, then run maintenance again")
