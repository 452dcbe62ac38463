"""Where the earlier rows of a slice can still be read: its pinned snapshot, a later one with the same content, or the head."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice


@dataclass(frozen=True)
class Kept:
    """The remaining snapshots and records of a table."""

    snapshot_ids: Collection[int]
    head: int
    today: Mapping[Slice, Digest]
    """Slice -> its recorded digest now."""
    publications: Mapping[Slice, Sequence[PublicationRecord]]
    """Slice -> its publications, oldest first."""


def places(kept: Kept, key: Slice, digest: Digest, pin: int | None) -> tuple[int, ...]:
    """Existing snapshots in which the slice has this digest according to the ledger; the pinned one first.

    The pinned snapshot is included whatever the ledger says. The others are the head, snapshots that published this content,
    and the parents of the publications that replaced it.
    """
    found = [pin, *_recorded(kept, key, digest)]
    return tuple(dict.fromkeys(place for place in found if place is not None and place in kept.snapshot_ids))


def _recorded(kept: Kept, key: Slice, digest: Digest) -> Iterator[int]:
    # The head comes first because maintenance never expires it.
    if kept.today.get(key, EMPTY) == digest:
        yield kept.head
    records = kept.publications.get(key, ())
    for number, record in enumerate(records):
        if record.digest_after == digest:
            yield record.snapshot_id
            if number + 1 < len(records):
                yield records[number + 1].parent_id
