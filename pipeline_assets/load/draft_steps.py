"""The steps of a draft as one publish records them: each slice told of once, by the last that a load made of it.

Contains: what several steps say of the same slice, and what a batch changes.
Add here: another thing that a later walk says anew.
Does not contain: staged tables (draft.py), writing (resources/ledger/writing.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.quarantine import QUARANTINE
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.ledger.changes import Changes

Place = tuple[str, Slice]
"""(table, slice)."""


def batches_of(step: Changes) -> set[BatchKey]:
    """All that a step tells of."""
    return {*step.batch_days, *(one.batch for one in step.deliveries), *(one.key for one in step.batches)}


def places_of(batch: BatchKey, days: Iterable[date]) -> frozenset[Place]:
    """What an accepted batch changes: event days of raw, and what quarantine holds of its arrival day, for either source."""
    raw = RAW_TABLES[batch.source].key
    quarantined = QUARANTINE.key, Slice(batch.arrival_date, batch.project_id)
    return frozenset({quarantined, *((raw, Slice(day, batch.project_id)) for day in days)})


def last_words(steps: list[tuple[str, Changes]]) -> list[tuple[str, Changes]]:
    """Of a slice only what the last step says, compared with what the first one read; a head with a table's last step alone.

    What a former walk thought was never true for anybody: no notice tells of it.
    """
    first: dict[Place, str | None] = {}
    last: dict[Place, int] = {}
    last_of: dict[str, int] = {}
    for number, (table, step) in enumerate(steps):
        for record in step.slices:
            first.setdefault((record.table, record.key), record.read_hash)
            last[record.table, record.key] = number
        if step.head is not None:
            last_of[table] = number
    return [
        (
            table,
            replace(
                step,
                slices=[
                    replace(record, read_hash=first[record.table, record.key])
                    for record in step.slices
                    if last[record.table, record.key] == number
                ],
                head=step.head if last_of.get(table) == number else None,
            ),
        )
        for number, (table, step) in enumerate(steps)
    ]


def one_publication_per_slice(steps: list[tuple[str, Changes]]) -> list[tuple[str, Changes]]:
    """A slice that two steps of a load changed is published once: from what it was before the first to what the last made it."""
    first: dict[tuple[str, Slice], PublicationRecord] = {}
    last: dict[tuple[str, Slice], int] = {}
    for number, (_, step) in enumerate(steps):
        for record in step.publications:
            first.setdefault((record.table, record.key), record)
            last[record.table, record.key] = number
    return [
        (
            table,
            replace(
                step,
                publications=[
                    replace(record, digest_before=first[record.table, record.key].digest_before)
                    for record in step.publications
                    if last[record.table, record.key] == number
                ],
            ),
        )
        for number, (table, step) in enumerate(steps)
    ]
