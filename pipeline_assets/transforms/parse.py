"""Parses objects to good lines, refused lines and one summary per object, in one pass over Arrow batches."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline_assets.domain.deliveries import UNREADABLE, Delivery
from pipeline_assets.formats.base import BlockParser, LineParser, ParsedLine
from pipeline_assets.formats.gzip_lines import Block, blocks
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms import object_text

_MOST_LINES = 2000
_MOST_BYTES = 4 * 1024**2


class SmallObject(NamedTuple):
    """An object of one block, held to be parsed with others of its arrival day."""

    delivery: Delivery
    summary: object_text.Summary
    block: Block


def whole_block(text: IO[bytes], max_line_bytes: int) -> Block | None:
    """All lines of a small object as one block; None if they cannot be joined, with the text rewound to its start."""
    first, second = islice(chain(blocks(text, _MOST_LINES, _MOST_BYTES, max_line_bytes), (None, None)), 2)
    if first is not None and second is None and not first.left_out and not first.is_blank:
        return first
    text.seek(0)
    return None


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


_DETAIL_CHARACTERS = 1000
_BATCH_ROWS = 10_000
_ODD_LINES = 100
"""Up to so many lines are parsed one by one if any is odd."""
_BATCH_BYTES = 2 * 1024**2
"""Of lines: the results of one step stay in the processor's caches for the next."""
_PART_BYTES = 1024**2
_SMALL_BYTES = 64 * 1024


@dataclass(frozen=True)
class ObjectWork:
    """Reads and parses objects, within a task."""

    reader: object_text.ObjectReader
    max_object_bytes: int
    max_line_bytes: int
    only_refused: bool = False

    def read(self, shares: Iterable[object_text.Share]) -> Iterator[object_text.Found]:
        """Yield good lines, refused lines and summaries; a summary follows the lines of its object.

        A moved or unreadable object has no rows. Small objects are parsed together, because Arrow calls have a fixed cost.
        """
        held: list[SmallObject] = []
        lines = size = 0
        for share in shares:
            delivery = share.delivery
            if held and (held[0].delivery.batch != delivery.batch or lines >= _MOST_LINES or size >= _MOST_BYTES):
                yield from self._together(held)
                held, lines, size = [], 0, 0
            summary = object_text.begun_summary(delivery)
            text = yield from object_text.export_text(
                self.reader, delivery, summary, self.max_object_bytes, self.max_line_bytes
            )
            if text is None:
                continue
            with text:
                is_small = delivery.size_bytes <= _SMALL_BYTES and share.parts == 1
                block = whole_block(text, self.max_line_bytes) if is_small else None
                if block is None:
                    yield from self._lines(text, share, summary)
                    yield object_text.Found(summaries=[summary])
                    continue
            held.append(SmallObject(delivery, summary, block))
            lines += block.count
            size += len(block.text)
        if held:
            yield from self._together(held)

    def _together(self, objects: Sequence[SmallObject]) -> Iterator[object_text.Found]:
        first = objects[0].delivery
        known = (first.batch.project_id, first.batch.arrival_date, self.max_line_bytes)
        columns = EXPORT_FORMAT.block_parser(*known)
        parsed = columns.parse(
            b"".join(small.block.text for small in objects), sum(small.block.count for small in objects)
        )
        if parsed is None and len(objects) > 1:
            middle = len(objects) // 2
            yield from chain(self._together(objects[:middle]), self._together(objects[middle:]))
            return
        if parsed is None:
            (small,) = objects
            yield from self._block(
                small.block, small.delivery, small.summary, columns, EXPORT_FORMAT.line_parser(*known)
            )
        else:
            for small in objects:
                small.summary["lines"] = small.summary["rows"] = small.block.count
            if not self.only_refused:
                yield object_text.rows_of(first, {**parsed, **names_of_lines(objects)}, len(parsed["event_date"]))
        yield object_text.Found(summaries=[small.summary for small in objects])

    def _lines(
        self, text: IO[bytes], share: object_text.Share, summary: object_text.Summary
    ) -> Iterator[object_text.Found]:
        size = text.seek(0, io.SEEK_END)
        text.seek(0)
        batch, part, parts = share.delivery.batch, share.part, share.parts
        known = (batch.project_id, batch.arrival_date, self.max_line_bytes)
        columns, parser = EXPORT_FORMAT.block_parser(*known), EXPORT_FORMAT.line_parser(*known)
        # Several blocks for each part make the parts about equal.
        most = _BATCH_BYTES if parts == 1 else min(_BATCH_BYTES, max(_PART_BYTES, size // (4 * parts)))
        for block in blocks(text, _BATCH_ROWS, most, self.max_line_bytes):
            if block.first_offset * parts // max(1, size) == part:
                yield from self._block(block, share.delivery, summary, columns, parser)

    def _block(
        self, block: Block, delivery: Delivery, summary: object_text.Summary, columns: BlockParser, parser: LineParser
    ) -> Iterator[object_text.Found]:
        """Parse a block at once if no line is odd; else halve it until few lines remain around the odd ones."""
        count = block.count
        if block.is_blank:
            # Counted at once: a small object may decompress to a billion blank lines.
            summary["lines"] += count
            summary["blank"] += count
            return
        parsed = columns.parse(block.text, count)
        if parsed is None and count > _ODD_LINES:
            for half in block.halves():
                yield from self._block(half, delivery, summary, columns, parser)
        elif parsed is None:
            yield from self._odd_lines(block, delivery, summary, parser)
        else:
            summary["lines"] += count
            summary["rows"] += count
            if not self.only_refused:
                numbers = pa.array(range(block.first_number, block.first_number + count), pa.int32())
                yield object_text.rows_of(delivery, {**parsed, "_line_number": numbers}, count)

    def _odd_lines(
        self, block: Block, delivery: Delivery, summary: object_text.Summary, parser: LineParser
    ) -> Iterator[object_text.Found]:
        events: list[ParsedLine] = []
        numbers: list[int] = []
        refused: list[dict[str, Any]] = []
        reasons = Counter(json.loads(summary["line_reasons"] or "{}"))
        for line in block.each():
            summary["lines"] += 1
            if line.is_blank:
                summary["blank"] += 1
                continue
            parsed = parser.parse(line.text, line.length)
            if isinstance(parsed, ParsedLine):
                if not self.only_refused:
                    events.append(parsed)
                    numbers.append(line.number)
                summary["rows"] += 1
                reasons.update(f"{UNREADABLE}{column}" for column in parsed.unreadable)
            else:
                summary["quarantined"] += 1
                reasons[parsed.counted_as] += 1
                refused.append(
                    {
                        "line_number": line.number,
                        "byte_offset": line.offset,
                        "byte_length": line.length,
                        "reason": parsed.reason.value,
                        "detail": parsed.detail[:_DETAIL_CHARACTERS],
                        "sample": line.text[: object_text.SAMPLE_BYTES],
                    }
                )
        if events:
            yield object_text.rows_of_events(delivery, events, numbers)
        if reasons:
            summary["line_reasons"] = json.dumps(reasons, sort_keys=True)
        if refused:
            yield object_text.refused_of(delivery, refused)
