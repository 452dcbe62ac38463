"""Small objects whose lines are parsed together, because an Arrow call costs as much for ten lines as for thousands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.formats.gzip_lines import Block, blocks
from pipeline_assets.transforms.parsed_batches import Summary

_MOST_LINES = 2000
_MOST_BYTES = 4 * 1024**2


@dataclass(frozen=True)
class SmallObject:
    """An object whose lines fit in one block, held until more objects of its arrival day have been read."""

    delivery: Delivery
    summary: Summary
    block: Block


def whole_block(text: IO[bytes], max_line_bytes: int) -> Block | None:
    """All lines of a small object as one block; None if they cannot be joined, with the text rewound to its start."""
    first, second = islice(chain(blocks(text, _MOST_LINES, _MOST_BYTES, max_line_bytes), (None, None)), 2)
    if first is not None and second is None and not first.left_out and not first.is_blank:
        return first
    text.seek(0)
    return None


class SmallObjects:
    """Held objects of one source, project and arrival day."""

    def __init__(self) -> None:
        """Start without objects."""
        self.objects: list[SmallObject] = []
        self._lines = self._bytes = 0

    def takes(self, delivery: Delivery) -> bool:
        """Whether another object can be added."""
        return not self.objects or self.objects[0].delivery.batch == delivery.batch

    def add(self, small: SmallObject) -> None:
        """Hold one more object."""
        self.objects.append(small)
        self._lines += small.block.count
        self._bytes += len(small.block.text)

    @property
    def are_enough(self) -> bool:
        """Whether there are enough lines to be worth a batch, or as many bytes as a task may hold."""
        return self._lines >= _MOST_LINES or self._bytes >= _MOST_BYTES


def names_of_lines(objects: Sequence[SmallObject]) -> dict[str, pa.Array]:
    """For each line of these objects: `_object_key`, `_object_etag` (string) and `_line_number` (int32)."""
    counts = [small.block.count for small in objects]
    owners = pa.array(np.repeat(np.arange(len(objects)), counts))
    numbers = [
        np.arange(small.block.first_number, small.block.first_number + count, dtype=np.int32)
        for small, count in zip(objects, counts, strict=True)
    ]
    keys, etags = ([getattr(small.delivery, name) for small in objects] for name in ("key", "etag"))
    return {
        "_object_key": pa.array(keys, pa.string()).take(owners),
        "_object_etag": pa.array(etags, pa.string()).take(owners),
        "_line_number": pa.array(np.concatenate(numbers)),
    }
