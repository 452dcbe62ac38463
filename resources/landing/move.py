"""Move objects within landing: copy, read back, compare, and only then delete."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import IO

from pipeline_assets.domain.errors import LandingConflictError, ObjectMovedError
from resources.failpoints import Failpoint, failpoint
from resources.landing.move_places import Upload, movable
from resources.landing.store import LandingStore

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
