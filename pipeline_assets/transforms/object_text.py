"""Opens one object of landing at the listed version, hashes it, and decompresses it or refuses it as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

import pyarrow as pa

from pipeline_assets.domain.deliveries import NOT_READABLE
from pipeline_assets.domain.errors import ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.quarantine_reasons import QuarantineReason
from pipeline_assets.formats.gzip_lines import BadObjectError
from pipeline_assets.formats.whole_objects import open_export
from pipeline_assets.transforms.parsed_batches import OBJECT, QUARANTINED, batch_of_records

MOVED = "moved"
"""`error` of an object that was overwritten or deleted between listing and reading."""
SAME_BYTES = "touched"
"""`error` of an object with bytes that are already known: it is hashed and not parsed."""
SAMPLE_BYTES = 512
"""How much of a refused line or object quarantine keeps for inspection."""
_READ_BYTES = 1024**2


class ObjectReader(Protocol):
    """Reads exactly the listed version of an object; picklable (resources/landing/store.py)."""

    def open(self, key: str, etag: str) -> IO[bytes]:
        """Open the object; the caller closes it. Raises ObjectMovedError, LandingAccessError or LandingUnavailableError."""


@dataclass(frozen=True)
class ObjectTexts:
    """Opens objects and yields the records of those that cannot be parsed."""

    reader: ObjectReader
    max_object_bytes: int
    max_line_bytes: int

    def open(
        self, row: Mapping[str, Any], place: Mapping[str, Any], summary: dict[str, Any]
    ) -> Generator[pa.RecordBatch, None, IO[bytes] | None]:
        """Return the decompressed object, which the caller closes; None after yielding the records of an object not parsed."""
        if row["size_bytes"] > self.max_object_bytes:
            # An object that is too large as stored is refused without a download.
            detail = f"{row['size_bytes']} bytes as listed, at most {self.max_object_bytes} when decompressed; not read"
            refused = BadObjectError(QuarantineReason.OBJECT_TOO_LARGE, detail)
            yield from _refused_object(place, summary, row["size_bytes"], refused, b"")
            return None
        try:
            stored = self.reader.open(row["object_key"], row["object_etag"])
        except ObjectMovedError as error:
            yield batch_of_records(OBJECT, place, [summary | {"error": MOVED, "error_detail": error.reason}])
            return None
        except UnreadableObjectError as error:
            yield batch_of_records(OBJECT, place, [summary | {"error": NOT_READABLE, "error_detail": error.reason}])
            return None
        with stored:
            summary["sha256"], size, sample = _fingerprint(stored)
            if summary["sha256"] == row["known_sha256"]:
                yield batch_of_records(OBJECT, place, [summary | {"error": SAME_BYTES}])
                return None
            try:
                return open_export(stored, self.max_object_bytes, self.max_line_bytes)
            except BadObjectError as error:
                yield from _refused_object(place, summary, size, error, sample)
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
    place: Mapping[str, Any], summary: dict[str, Any], size: int, error: BadObjectError, sample: bytes
) -> Iterator[pa.RecordBatch]:
    reason, detail = error.reason.value, error.detail
    record = {"byte_offset": 0, "byte_length": size, "reason": reason, "detail": detail, "sample": sample}
    yield batch_of_records(QUARANTINED, place, [record])
    yield batch_of_records(OBJECT, place, [summary | {"error": reason, "error_detail": detail}])
