"""What a move needs from a folder and a bucket: upload times, and deletes of one version."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from botocore.exceptions import ClientError

from pipeline_assets.domain.errors import LandingAccessError, SettingsError
from resources.landing.backends import Bucket
from resources.landing.errors import landing_errors
from resources.landing.folder import OUTSIDE, Folder, version_of
from resources.landing.place import Place

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
