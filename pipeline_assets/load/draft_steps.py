"""Merges the steps of a draft for the publish, so that the ledger gets each slice once, in its last state."""

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
"""(table key, slice)."""


def batches_of(step: Changes) -> set[BatchKey]:
    """All batches that a step has records of."""
    return {*step.batch_days, *(one.batch for one in step.deliveries), *(one.key for one in step.batches)}


def places_of(batch: BatchKey, days: Iterable[date]) -> frozenset[Place]:
    """The slices that an accepted batch changes: its event days of raw, and its arrival day in quarantine (of both sources)."""
    raw = RAW_TABLES[batch.source].key
    quarantined = QUARANTINE.key, Slice(batch.arrival_date, batch.project_id)
    return frozenset({quarantined, *((raw, Slice(day, batch.project_id)) for day in days)})


def last_words(steps: list[tuple[str, Changes]]) -> list[tuple[str, Changes]]:
    """Keep only the last record of each slice, with the hash that the first step read; keep only a table's last head.

    Records of earlier passes were never visible to readers, so no notice mentions them.
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
    """Merge the publications of a slice into one: from the digest before the first step to the result of the last."""
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
