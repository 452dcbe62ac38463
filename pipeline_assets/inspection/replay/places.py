"""Where the rows of a slice of then may be read today: its pinned snapshot, a later one that left it alone, or the head.

Contains: the places worth reading, best first.
Add here: another place where a state of then may be kept.
Does not contain: reading them (inputs.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice


@dataclass(frozen=True)
class Kept:
    """What is kept of a table."""

    snapshot_ids: Collection[int]
    head: int
    today: Mapping[Slice, Digest]
    """What is on record of its slices now."""
    publications: Mapping[Slice, Sequence[PublicationRecord]]
    """Oldest first."""


def places(kept: Kept, key: Slice, digest: Digest, pin: int | None) -> tuple[int, ...]:
    """Kept snapshots in which a slice holds rows of this digest, by what is on record, the pinned one first.

    A pinned snapshot that is kept is among them whatever is on record. The others are the head, and those that a publication of
    this content made or that the next one followed.
    """
    found = [pin, *_recorded(kept, key, digest)]
    return tuple(dict.fromkeys(place for place in found if place is not None and place in kept.snapshot_ids))


def _recorded(kept: Kept, key: Slice, digest: Digest) -> Iterator[int]:
    # First what stays: the head is not expired while it is one.
    if kept.today.get(key, EMPTY) == digest:
        yield kept.head
    records = kept.publications.get(key, ())
    for number, record in enumerate(records):
        if record.digest_after == digest:
            yield record.snapshot_id
            if number + 1 < len(records):
                yield records[number + 1].parent_id
