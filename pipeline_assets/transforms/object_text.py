"""Opens one object of landing at the listed version, hashes it, and decompresses it or refuses it as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

from pipeline_assets.domain.deliveries import NOT_READABLE, Delivery
from pipeline_assets.domain.errors import ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.placement import most_text_bytes, require_room
from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.domain.spool import naming_the_disk
from pipeline_assets.formats.gzip_lines import BadObjectError
from pipeline_assets.formats.whole_objects import open_export
from pipeline_assets.transforms.parsed_batches import Found, Summary, refused_of
from pipeline_assets.transforms.spread import Share

MOVED = "moved"
"""`error` of an object that was overwritten or deleted between listing and reading."""
SAMPLE_BYTES = 512
"""How much of a refused line or object quarantine keeps for inspection."""
_READ_BYTES = 1024**2


class ObjectReader(Protocol):
    """Reads exactly the listed version of an object; picklable (resources/landing/store.py)."""

    def open(self, key: str, etag: str) -> IO[bytes]:
        """Open the object; the caller closes it. Raises ObjectMovedError, LandingAccessError or LandingUnavailableError."""


@dataclass(frozen=True)
class Hashing:
    """The function of a task that hashes objects: object key -> sha256 of the stored bytes.

    Objects that moved, or to which landing denies access, are left out.
    """

    reader: ObjectReader

    def __call__(self, group: Sequence[Share]) -> dict[str, str]:
        """Raises LandingUnavailableError."""
        found = {}
        for one in (share.delivery for share in group):
            with (
                naming_the_disk(),
                suppress(ObjectMovedError, UnreadableObjectError),
                self.reader.open(one.key, one.etag) as stored,
            ):
                found[one.key] = _fingerprint(stored)[0]
        return found


@dataclass(frozen=True)
class ObjectTexts:
    """Opens objects and yields what is known of those that cannot be parsed."""

    reader: ObjectReader
    max_object_bytes: int
    max_line_bytes: int

    def open(self, delivery: Delivery, summary: Summary) -> Generator[Found, None, IO[bytes] | None]:
        """Return the decompressed object, which the caller closes; None after yielding the records of an object not parsed.

        Raises TooLargeHereError where it inflates to more than the driving process should hold.
        """
        if delivery.size_bytes > self.max_object_bytes:
            # An object that is too large as stored is refused without a download.
            size = delivery.size_bytes
            detail = f"{size} bytes as listed, at most {self.max_object_bytes} when decompressed; not read"
            refused = BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, detail)
            yield from _refused_object(delivery, summary, size, refused, b"")
            return None
        try:
            stored = self.reader.open(delivery.key, delivery.etag)
        except ObjectMovedError as error:
            yield Found(summaries=[summary | {"error": MOVED, "error_detail": error.reason}])
            return None
        except UnreadableObjectError as error:
            yield Found(summaries=[summary | {"error": NOT_READABLE, "error_detail": error.reason}])
            return None
        with stored:
            summary["sha256"], size, sample = _fingerprint(stored)
            try:
                return open_export(stored, most_text_bytes(self.max_object_bytes), self.max_line_bytes)
            except BadObjectError as error:
                if error.reason is QuarantineReason.OBJECT_TOO_LARGE:
                    require_room(self.max_object_bytes)
                yield from _refused_object(delivery, summary, size, error, sample)
                return None


def _fingerprint(stored: IO[bytes]) -> tuple[str, int, bytes]:
    """sha256, size and first bytes of an object; afterwards the object is rewound to its start."""
    digest, size, sample = hashlib.sha256(), 0, b""
    while part := stored.read(_READ_BYTES):
        digest.update(part)
        size += len(part)
        sample = sample or part[:SAMPLE_BYTES]
    stored.seek(0)
    return digest.hexdigest(), size, sample


def _refused_object(
    delivery: Delivery, summary: Summary, size: int, error: BadObjectError, sample: bytes
) -> Iterator[Found]:
    reason, detail = error.reason.value, error.detail
    record = {"byte_offset": 0, "byte_length": size, "reason": reason, "detail": detail, "sample": sample}
    yield refused_of(delivery, [record])
    yield Found(summaries=[summary | {"error": reason, "error_detail": detail}])
