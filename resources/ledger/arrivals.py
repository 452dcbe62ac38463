"""Deliveries that arrived or were excluded since a slice was last published, to explain where a change came from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.notices import Arrivals
from pipeline_assets.domain.slices import Slice, Source
from resources.ledger.engine import in_parts
from resources.ledger.schema import BATCH_DAYS, DELIVERIES, EXCLUSIONS

Place = tuple[str, Slice]
"""Table and slice; for deliveries of a raw table the slice holds the arrival day."""
_Batch = tuple[str, str, date]
"""Source, project and arrival day, as the ledger's rows have them."""


def arrivals_since(connection: Connection, since: Mapping[Place, str]) -> dict[Place, Arrivals]:
    """Return what arrived, was excluded or was included since each slice's time, in batches with rows of the slice's day."""
    if not since:
        return {}
    earliest = min(since.values())
    batches = _batches_of(connection, {key for _, key in since})
    delivered = _recorded_since(connection, DELIVERIES.c.recorded_at, earliest, batches)
    excluded = _recorded_since(connection, EXCLUSIONS.c.excluded_at, earliest, batches)
    lifted = _recorded_since(connection, EXCLUSIONS.c.lifted_at, earliest, batches)
    return {
        place: Arrivals.of(
            _later(delivered.get(place[1], ()), at),
            _later([*excluded.get(place[1], ()), *lifted.get(place[1], ())], at),
        )
        for place, at in since.items()
    }


def _batches_of(connection: Connection, slices: Collection[Slice]) -> dict[_Batch, list[Slice]]:
    """Batches that hold, or held, rows of these slices -> which of the slices."""
    found: dict[_Batch, list[Slice]] = {}
    # The indexes begin with source and project.
    for (source, project), days in _grouped(
        (one.value, key.project_id, key.event_date) for one in Source for key in slices
    ):
        for part in in_parts(days):
            query = sa.select(BATCH_DAYS.c.arrival_date, BATCH_DAYS.c.event_date).where(
                BATCH_DAYS.c.source == source, BATCH_DAYS.c.project_id == project, BATCH_DAYS.c.event_date.in_(part)
            )
            for arrival, day in connection.execute(query):
                found.setdefault((source, project, arrival), []).append(Slice(day, project))
    return found


def _recorded_since(
    connection: Connection, at: sa.Column[str], since: str, batches: Mapping[_Batch, Sequence[Slice]]
) -> dict[Slice, list[tuple[str, str]]]:
    """Slice -> object and time, of rows with a later time in the table of the column `at`, of these batches.

    The batches are asked for by their key: a join would leave it to the database to read every delivery that is on record.
    """
    table = at.table
    accepted = [DELIVERIES.c.is_accepted] if table is DELIVERIES else []
    found: dict[Slice, list[tuple[str, str]]] = {}
    for (source, project), arrivals in _grouped(batches):
        for part in in_parts(arrivals):
            query = sa.select(table.c.arrival_date, table.c.object_key, at).where(
                table.c.source == source,
                table.c.project_id == project,
                table.c.arrival_date.in_(part),
                *accepted,
                at > since,
            )
            for arrival, object_key, recorded_at in connection.execute(query):
                for key in batches[source, project, arrival]:
                    found.setdefault(key, []).append((object_key, recorded_at))
    return found


def _grouped(places: Iterable[_Batch]) -> Iterator[tuple[tuple[str, str], list[date]]]:
    """Source and project -> the days."""
    found: dict[tuple[str, str], set[date]] = {}
    for source, project, day in places:
        found.setdefault((source, project), set()).add(day)
    for place in sorted(found):
        yield place, sorted(found[place])


def _later(objects: Collection[tuple[str, str]], at: str) -> list[str]:
    return sorted({object_key for object_key, recorded_at in objects if recorded_at > at})
