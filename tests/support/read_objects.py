"""A task's objects of landing and its records, without Spark."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import IO, Any

from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.errors import ObjectMovedError
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.object_text import Share
from pipeline_assets.transforms.parse import ObjectWork
from tests.support.builders import PROJECT

DAY = date(2026, 2, 2)


def a_share(
    key: str,
    size: int = 1,
    *,
    source: Source = Source.REGULAR,
    project: str = PROJECT,
    day: date = DAY,
    part: int = 0,
    parts: int = 1,
) -> Share:
    return Share(Delivery(BatchKey(source, project, day), 1, 1, key, f"etag of {key}", size), part, parts)


@dataclass(frozen=True)
class Objects:
    """A landing in memory; a missing key has moved, and an error is raised."""

    objects: Mapping[str, bytes | Exception]

    def open(self, key: str, etag: str) -> IO[bytes]:
        body = self.objects.get(key, ObjectMovedError(key, "was overwritten", "Load again"))
        if isinstance(body, Exception):
            raise body
        return io.BytesIO(body)


@dataclass
class Read:
    rows: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Rows of each batch."""

    def as_text(self) -> list[str]:
        """Each record, in any order."""
        return sorted(
            f"{kind} {one}"
            for kind, records in (("row", self.rows), ("refused", self.refused), ("object", self.summaries))
            for one in records
        )


def read(work: ObjectWork, shares: Iterable[Share]) -> Read:
    told = Read()
    for found in work.read(shares):
        if found.rows is not None:
            told.rows += found.rows.to_pylist()
            told.sizes.append(found.rows.num_rows)
        if found.refused is not None:
            told.refused += found.refused.to_pylist()
        told.summaries += found.summaries
    return told
