"""What a move asks of a folder and of a bucket: upload times, and deletes of one version.

Contains: these calls for each kind of place.
Add here: another kind of place.
Does not contain: their order (move.py), listing, reading and create-only writes (folder.py, backends.py).
"""

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
"""What S3 answers where a condition on the present version does not hold, or another write is under way."""
_WRITE_CURE = "Check TIDEMARK_LANDING_URL and the rights to write and delete there"


@dataclass(frozen=True, order=True)
class Upload:
    """One version of an object, and when it was written."""

    key: str
    etag: str
    size_bytes: int
    uploaded_at: datetime
    """Aware; by the clock of the place: S3's, or the file's time of last change."""
    is_link: bool = False
    """A link within a folder: deleting it would not delete what it leads to."""


class MovablePlace(Protocol):
    """The calls of a move."""

    def uploads(self, folder: str) -> Iterator[Upload]:
        """All objects below a folder, in no order."""

    def find(self, key: str) -> Upload | None:
        """The present version; None where there is none."""

    def delete(self, upload: Upload) -> bool:
        """Delete this version; True where it is gone by now, False, and nothing deleted, where another one is there."""


def movable(place: Place) -> MovablePlace:
    """The calls for a kind of place."""
    if isinstance(place, Folder):
        return _MovableFolder(place)
    if isinstance(place, Bucket):
        return _MovableBucket(place)
    raise SettingsError("TIDEMARK_LANDING_URL", f"nothing can be moved within {place.url}", "Use a folder or a bucket")


class _MovableFolder:
    """By the system's own calls, relative to a folder that was opened without leaving landing."""

    def __init__(self, place: Folder) -> None:
        self._place = place

    def uploads(self, folder: str) -> Iterator[Upload]:
        with landing_errors(self._place.url):
            self._place.require()
            for listed in self._place.list_plainly(folder, ""):
                # Oddities are no objects; loads name them.
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
        """The opened folder of an object, None where there is none, and the object's name in it."""
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
    """By boto3, whose requests carry conditions on versions."""

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
        # A server that passes the condition over would delete any version.
        present = self.find(upload.key)
        if present is None:
            return True
        if present.etag != upload.etag:
            return False
        named = self._named(upload.key)
        is_deleted = self._happens(upload.key, lambda: self._client().delete_object(**named, IfMatch=upload.etag))
        # An answer that was lost is asked for again, and then nothing is there to fit the condition.
        return is_deleted or self.find(upload.key) is None

    def _happens(self, key: str, call: Any) -> bool:
        """False where the condition of a request does not hold."""
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
