"""Revisions: changes of final days, with measures, time, cause and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pipeline_assets.domain.slices import EMPTY, Digest
from resources.ledger.engine import in_parts
from resources.ledger.schema import PUBLICATIONS, RUNS, SLICES

_Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Revision:
    """A publication that changed a final day."""

    table: str
    day: date
    project_id: str
    published_at: str
    cause: str
    accepted_reason: str | None
    run_id: str | None
    rows_before: int
    rows_after: int
    number: int
    measures: Mapping[str, tuple[float | None, float]]
    """Measure -> (before, after), where they differ; before is None where no earlier publication is on record."""


class Revisions:
    """Reads revisions, and creates records of these publications only."""

    def __init__(self, read: _Connect) -> None:
        """Take `read`, which opens a connection."""
        self._read = read

    def all(self, tables: Sequence[str], projects: Sequence[str]) -> list[Revision]:
        """Return the publications that changed a day after it had become final, newest first, without measures.

        As in notices, a day was final if the ledger said so at the time of the publication. Rows of older versions do not record
        this: their publication counts if its run began after the day had become final, unless it filled an empty day.
        """
        begun = sa.func.coalesce(RUNS.c.started_at, PUBLICATIONS.c.published_at)
        was_final_before = (
            PUBLICATIONS.c.was_final.is_(None),
            PUBLICATIONS.c.digest_before != str(EMPTY),
            begun > SLICES.c.final_at,
        )
        same = [PUBLICATIONS.c[name] == SLICES.c[name] for name in ("table_name", "event_date", "project_id")]
        names = ("table_name", "event_date", "project_id", "published_at", "cause", "accepted_reason", "run_id", "id")
        found: list[Revision] = []
        # Run two queries, so that an index finds the few rows of each among millions of first publications.
        for is_final in ((PUBLICATIONS.c.was_final.is_(sa.true()),), was_final_before):
            query = (
                sa.select(*(PUBLICATIONS.c[name] for name in (*names, "digest_before", "digest_after")))
                .join(SLICES, sa.and_(*same))
                .outerjoin(RUNS, RUNS.c.run_id == PUBLICATIONS.c.run_id)
                .where(
                    PUBLICATIONS.c.table_name.in_(tables),
                    PUBLICATIONS.c.project_id.in_(projects),
                    PUBLICATIONS.c.digest_before != PUBLICATIONS.c.digest_after,
                    *is_final,
                )
            )
            with self._read() as connection:
                found += [_revision(row) for row in connection.execute(query).mappings()]
        return sorted(found, key=lambda one: one.number, reverse=True)

    def measures_of(self, revisions: Sequence[Revision]) -> dict[int, Mapping[str, tuple[float | None, float]]]:
        """Return publication number -> measure -> (before, after), where they differ."""
        found: dict[int, Mapping[str, tuple[float | None, float]]] = {}
        wanted = {revision.number for revision in revisions}
        figures: dict[tuple[str, date, str], dict[int, dict[str, float] | None]] = {}
        c = PUBLICATIONS.c
        query = sa.select(c.table_name, c.event_date, c.project_id, c.id, c.figures)
        with self._read() as connection:
            for part in in_parts(sorted({revision.day for revision in revisions})):
                for table, day, project, number, measured in connection.execute(query.where(c.event_date.in_(part))):
                    figures.setdefault((table, day, project), {})[number] = measured
        for history in figures.values():
            before: Mapping[str, float] = {}
            for number, measured in sorted(history.items()):
                after = measured or {}
                if number in wanted:
                    pairs = {name: (before.get(name), value) for name, value in after.items()}
                    found[number] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
                before = after
        return found


def _revision(row: RowMapping) -> Revision:
    return Revision(
        row["table_name"],
        row["event_date"],
        row["project_id"],
        row["published_at"] or "",
        row["cause"] or "",
        row["accepted_reason"],
        row["run_id"],
        Digest.parse(row["digest_before"]).rows,
        Digest.parse(row["digest_after"]).rows,
        row["id"],
        {},
    )
