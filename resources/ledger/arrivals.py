"""Deliveries that arrived or were excluded since a slice was last published, to explain where a change came from.

Contains: one query, run inside the transaction that records the change.
Add here: another event that changes the content of a slice.
Does not contain: which changes get a notice (notices.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.notices import Arrivals
from pipeline_assets.domain.slices import Slice
from resources.ledger.schema import BATCH_DAYS, DELIVERIES, EXCLUSIONS

Place = tuple[str, Slice]
"""Table and slice; for deliveries of a raw table the slice holds the arrival day."""


def arrivals_since(connection: Connection, since: Mapping[Place, str]) -> dict[Place, Arrivals]:
    """Return what arrived, was excluded or was included since each slice's time, in batches with rows of the slice's day."""
    if not since:
        return {}
    days = [key.event_date for _, key in since]
    earliest = min(since.values())
    of_batch = [
        BATCH_DAYS.c.event_date.between(min(days), max(days)),
        BATCH_DAYS.c.project_id.in_({key.project_id for _, key in since}),
    ]
    delivered = _recorded_since(connection, DELIVERIES, DELIVERIES.c.recorded_at, earliest, of_batch)
    excluded = _recorded_since(connection, EXCLUSIONS, EXCLUSIONS.c.excluded_at, earliest, of_batch)
    lifted = _recorded_since(connection, EXCLUSIONS, EXCLUSIONS.c.lifted_at, earliest, of_batch)
    return {
        place: Arrivals.of(
            _later(delivered.get(place[1], ()), at),
            _later([*excluded.get(place[1], ()), *lifted.get(place[1], ())], at),
        )
        for place, at in since.items()
    }


def _recorded_since(
    connection: Connection, table: sa.Table, at: sa.Column[str], since: str, of_batch: Sequence[Any]
) -> dict[Slice, list[tuple[str, str]]]:
    """Slice -> (object, time) of this table's rows since `since`, of batches with rows of the slice's day."""
    names = ("source", "project_id", "arrival_date")
    same_batch = [table.c[name] == BATCH_DAYS.c[name] for name in names]
    accepted = [DELIVERIES.c.is_accepted] if table is DELIVERIES else []
    query = sa.select(BATCH_DAYS.c.event_date, BATCH_DAYS.c.project_id, table.c.object_key, at).where(
        *of_batch, *same_batch, *accepted, at > since
    )
    found: dict[Slice, list[tuple[str, str]]] = {}
    for day, project, object_key, recorded_at in connection.execute(query):
        found.setdefault(Slice(day, project), []).append((object_key, recorded_at))
    return found


def _later(objects: Collection[tuple[str, str]], at: str) -> list[str]:
    return sorted({object_key for object_key, recorded_at in objects if recorded_at > at})
