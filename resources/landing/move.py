"""Move objects within landing: copy, read back, compare, and only then delete."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Protocol

from botocore.exceptions import ClientError

from pipeline_assets.domain.errors import LandingAccessError, LandingConflictError, ObjectMovedError, SettingsError
from resources.failpoints import Failpoint, failpoint
from resources.landing.bucket import Bucket
from resources.landing.folder import OUTSIDE, Folder, version_of
from resources.landing.place import Place, landing_errors
from resources.landing.store import LandingStore

_ABSENT = 404
_TAKEN = (409, 412)
"""S3's answers where the condition on the current version fails, or another write is in progress."""
_WRITE_CURE = "Check TIDEMARK_LANDING_URL and the rights to write and delete there"


@dataclass(frozen=True, order=True)
class Upload:
    """One version of an object, and when it was written."""

    key: str
    etag: str
    size_bytes: int
    uploaded_at: datetime
    """Timezone-aware: S3's last-modified time, or the file's modification time."""
    is_link: bool = False
    """Whether it is a link in a folder: deleting the link would not delete its target."""


class MovablePlace(Protocol):
    """The calls that a move makes."""

    def uploads(self, folder: str) -> Iterator[Upload]:
        """Yield all objects below a folder, unordered."""

    def find(self, key: str) -> Upload | None:
        """Return the current version; None where there is none."""

    def delete(self, upload: Upload) -> bool:
        """Delete this version; True once it is gone, False, with nothing deleted, where the key has another version."""


def movable(place: Place) -> MovablePlace:
    """Return the calls for a landing; raises SettingsError for a kind that cannot move objects."""
    if isinstance(place, Folder):
        return _MovableFolder(place)
    if isinstance(place, Bucket):
        return _MovableBucket(place)
    raise SettingsError("TIDEMARK_LANDING_URL", f"nothing can be moved within {place.url}", "Use a folder or a bucket")


class _MovableFolder:
    """A folder: system calls relative to a folder descriptor that was opened within landing."""

    def __init__(self, place: Folder) -> None:
        self._place = place

    def uploads(self, folder: str) -> Iterator[Upload]:
        with landing_errors(self._place.url):
            self._place.require()
            for listed in self._place.list_plainly(folder, ""):
                # Oddities are not objects; loads report them.
                found = None if listed.oddity else self.find(listed.key)
                if found is not None:
                    yield found

    def find(self, key: str) -> Upload | None:
        with landing_errors(key, is_object=True), self._folder_of(key) as (descriptor, name):
            if descriptor is None:
                return None
            try:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                return None
            written_at = datetime.fromtimestamp(found.st_mtime, UTC)
            return Upload(key, version_of(found), found.st_size, written_at, not stat.S_ISREG(found.st_mode))

    def delete(self, upload: Upload) -> bool:
        with landing_errors(upload.key, is_object=True), self._folder_of(upload.key) as (descriptor, name):
            present = self.find(upload.key)
            if present is None or descriptor is None:
                return True
            if present.is_link or present.etag != upload.etag:
                return False
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
            os.fsync(descriptor)
        return True

    @contextmanager
    def _folder_of(self, key: str) -> Iterator[tuple[int | None, str]]:
        """Open the folder of an object; yields its descriptor (None where there is no folder) and the object's name in it."""
        folder, _, name = key.rpartition("/")
        root = os.path.realpath(self._place.root)
        try:
            resolved = os.path.realpath(self._place.root / folder, strict=True)
            if os.path.commonpath([root, resolved]) != root:
                raise LandingAccessError(folder, f"is {OUTSIDE}", "Put a plain folder in its place")
            descriptor = os.open(resolved, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None, name
            return
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)


class _MovableBucket:
    """A bucket: boto3 requests with conditions on versions."""

    def __init__(self, place: Bucket) -> None:
        self._place = place
        self._root = f"{place.prefix}/" if place.prefix else ""
        self._opened: Any = None

    def uploads(self, folder: str) -> Iterator[Upload]:
        with landing_errors(self._place.url):
            pages = self._client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._place.bucket, Prefix=f"{self._root}{folder}/"):
                for item in page.get("Contents", ()):
                    key = item["Key"].removeprefix(self._root)
                    if not key.endswith("/"):
                        yield Upload(key, item["ETag"], item["Size"], item["LastModified"].astimezone(UTC))

    def find(self, key: str) -> Upload | None:
        with landing_errors(key, is_object=True):
            try:
                found = self._client().head_object(**self._named(key))
            except ClientError as error:
                if _status(error) == _ABSENT:
                    return None
                raise
        return Upload(key, found["ETag"], found["ContentLength"], found["LastModified"].astimezone(UTC))

    def delete(self, upload: Upload) -> bool:
        # Check first: a server that ignores the condition would delete any version.
        present = self.find(upload.key)
        if present is None:
            return True
        if present.etag != upload.etag:
            return False
        named = self._named(upload.key)
        is_deleted = self._happens(upload.key, lambda: self._client().delete_object(**named, IfMatch=upload.etag))
        # After a lost answer the retried delete finds no version to match the condition.
        return is_deleted or self.find(upload.key) is None

    def _happens(self, key: str, call: Any) -> bool:
        """Run a request; False where its condition fails."""
        try:
            with landing_errors(key, is_object=True):
                try:
                    call()
                except ClientError as error:
                    if _status(error) in _TAKEN:
                        return False
                    raise
        except LandingAccessError as error:
            raise LandingAccessError(error.subject, error.reason, _WRITE_CURE) from error
        return True

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": f"{self._root}{key}"}

    def _client(self) -> Any:
        if self._opened is None:
            self._opened = self._place.client()
        return self._opened


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


_READ_BYTES = 1024**2


class Mover:
    """Copies, verifies and deletes objects of a landing; every step may be repeated after a kill.

    It overwrites nothing, and deletes an object only after reading back an equal copy. Each method raises
    LandingAccessError, LandingUnavailableError and DiskFullError as `LandingStore` does.
    """

    def __init__(self, landing: LandingStore) -> None:
        """Wrap a landing; does no I/O."""
        self._landing = landing
        self._place = movable(landing.place)

    def uploads(self, folder: str) -> Iterator[Upload]:
        """Yield all objects below a project's folder, unordered, with the times they were written."""
        return self._place.uploads(folder)

    def find(self, key: str) -> Upload | None:
        """Return the current version of an object; None where there is none."""
        return self._place.find(key)

    def open(self, key: str, etag: str) -> IO[bytes]:
        """As `LandingStore.open`."""
        return self._landing.open(key, etag)

    def sha256(self, upload: Upload) -> str:
        """Return the SHA-256 of the listed version; raises ObjectMovedError where it is gone."""
        with self.open(upload.key, upload.etag) as content:
            return _hash(content)

    def copy(self, source: Upload, target_key: str) -> Upload:
        """Return a verified copy, equal byte for byte; makes it unless it exists already.

        Raises LandingConflictError where the target holds other bytes, ObjectMovedError where source or copy changed meanwhile.
        """
        with self.open(source.key, source.etag) as content:
            sha256, size = _hash(content), content.tell()
            content.seek(0)
            if self._place.find(target_key) is None and self._landing.create(target_key, content):
                failpoint(Failpoint.AFTER_COPY, source.key)
        copy = self._place.find(target_key)
        if copy is None:
            raise ObjectMovedError(target_key, "was deleted while it was compared", "Run the same command again")
        if copy.size_bytes != size or self.sha256(copy) != sha256:
            raise LandingConflictError(
                source.key,
                f"{target_key} is there already with other bytes ({copy.size_bytes:,} instead of {size:,} bytes)",
                "Compare the two and delete the wrong one, or give one another number behind `#`; then run the command again",
            )
        failpoint(Failpoint.AFTER_VERIFY, source.key)
        return copy

    def mark(self, key: str) -> None:
        """Create an empty object unless the key exists; raises ObjectMovedError where it could not be written."""
        if (
            self._place.find(key) is None
            and not self._landing.create(key, io.BytesIO())
            and self._place.find(key) is None
        ):
            raise ObjectMovedError(key, "was not written, so nothing was deleted", "Run the same command again")
        failpoint(Failpoint.AFTER_MARKER, key)

    def delete(self, source: Upload, copy: Upload) -> None:
        """Delete the copied version while its verified copy still exists; does nothing where the source is gone.

        A bucket compares the version in the delete request. A folder has no such call, so the version is compared just before.
        A versioned bucket keeps the bytes behind a delete marker. Raises ObjectMovedError, with nothing deleted, where source or
        copy has another version by now.
        """
        present = self._place.find(copy.key)
        if present is None or present.etag != copy.etag:
            reason = "was changed or deleted after it was compared, so its source stays"
            raise ObjectMovedError(copy.key, reason, "Run the same command again")
        if not self._place.delete(source):
            reason = f"was overwritten after it was copied to {copy.key}, so it stays"
            raise ObjectMovedError(source.key, reason, "Run the same command again, and compare the two")
        failpoint(Failpoint.AFTER_DELETE, source.key)


def _hash(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := content.read(_READ_BYTES):
        digest.update(part)
    return digest.hexdigest()
