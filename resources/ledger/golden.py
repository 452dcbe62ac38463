"""Golden totals as last read, and the results of comparing them; `status` and the health page read these, not landing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.golden import GoldenFault, GoldenMeasure, GoldenReading, GoldenSource, GoldenTotal
from pipeline_assets.domain.golden_notices import GoldenResult, GoldenStanding, golden_notice
from pipeline_assets.domain.notices import Notice
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.golden_csv import is_origin_between
from resources.ledger.engine import in_parts, insert_into
from resources.ledger.notices import write_notice
from resources.ledger.schema import GOLDEN_FAULTS, GOLDEN_RESULTS, GOLDEN_TOTALS

_MEASURED = ("event_date", "project_id", "table_name", "measure")
"""A source has one value for each combination of these."""
_Connect = Callable[[], AbstractContextManager[Connection]]


class GoldenTotals:
    """Reads and writes golden totals; each write is one transaction."""

    def __init__(self, read: _Connect, write: _Connect) -> None:
        """Take `read` and `write`, which open a connection, the latter in a transaction."""
        self._read, self._write = read, write

    def of(
        self,
        projects: Sequence[str],
        first: date | None = None,
        last: date | None = None,
        tables: Collection[str] | None = None,
    ) -> list[GoldenTotal]:
        """Return the recorded totals of the days, in order of day; a missing bound means unbounded."""
        query = sa.select(GOLDEN_TOTALS).where(GOLDEN_TOTALS.c.project_id.in_(projects))
        if first is not None:
            query = query.where(GOLDEN_TOTALS.c.event_date >= first)
        if last is not None:
            query = query.where(GOLDEN_TOTALS.c.event_date <= last)
        if tables is not None:
            query = query.where(GOLDEN_TOTALS.c.table_name.in_(tables))
        order = [GOLDEN_TOTALS.c[name] for name in ("event_date", "project_id", "table_name", "measure", "source")]
        with self._read() as connection:
            return [
                GoldenTotal(
                    GoldenSource(row["source"]),
                    Slice(row["event_date"], row["project_id"]),
                    GoldenMeasure(row["table_name"], row["measure"]),
                    Decimal(row["value"]),
                    row["origin"] or "",
                )
                for row in connection.execute(query.order_by(*order)).mappings()
            ]

    def replace(self, reading: GoldenReading) -> None:
        """Replace the recorded totals of the days in a reading of one source.

        A day that is not in the reading keeps its totals: a missing file retracts nothing, an empty file does. For a partly read
        day only the measures that were read are replaced.
        """
        if not reading.days and reading.asked is None:
            return
        source, now = reading.source.value, datetime.now(UTC).isoformat()
        rows = [
            {
                "source": source,
                "event_date": total.key.event_date,
                "project_id": total.key.project_id,
                "table_name": total.measure.table,
                "measure": total.measure.name,
                "value": f"{total.value:f}",
                "origin": recordable(total.origin),
                "recorded_at": now,
            }
            for total in reading.totals
        ]
        with self._write() as connection:
            _replace_faults(connection, reading, now)
            for days in in_parts(sorted(reading.days - reading.partial_days)):
                connection.execute(
                    GOLDEN_TOTALS.delete().where(GOLDEN_TOTALS.c.source == source, GOLDEN_TOTALS.c.event_date.in_(days))
                )
            told = [
                {f"of_{name}": row[name] for name in _MEASURED}
                for row in rows
                if row["event_date"] in reading.partial_days
            ]
            if told:
                same = [GOLDEN_TOTALS.c[name] == sa.bindparam(f"of_{name}") for name in _MEASURED]
                connection.execute(GOLDEN_TOTALS.delete().where(GOLDEN_TOTALS.c.source == source, *same), told)
            if rows:
                connection.execute(GOLDEN_TOTALS.insert(), rows)

    def faults(self, sources: Collection[GoldenSource]) -> list[GoldenFault]:
        """Return the faults of the last reading of these sources, by source."""
        columns = (GOLDEN_FAULTS.c.origin, GOLDEN_FAULTS.c.reason, GOLDEN_FAULTS.c.fix)
        query = sa.select(*columns).where(GOLDEN_FAULTS.c.source.in_([source.value for source in sources]))
        with self._read() as connection:
            rows = connection.execute(query.order_by(GOLDEN_FAULTS.c.source, GOLDEN_FAULTS.c.id)).all()
        return [GoldenFault(origin, reason, fix or "") for origin, reason, fix in rows]

    def record(
        self,
        results: Sequence[GoldenResult],
        projects: Sequence[str],
        first: date,
        last: date,
        run_id: str | None,
    ) -> list[Notice]:
        """Record the results of comparing these days; returns the notices written for days that began or ceased to differ.

        Runs in one transaction. A day in the range that differed before and has no totals any more counts as agreeing.
        """
        stamp = {"run_id": run_id, "recorded_at": datetime.now(UTC).isoformat()}
        told: list[Notice] = []
        with self._write() as connection:
            before = _standing(connection, projects, first, last)
            gone = before.keys() - {(one.table, one.key) for one in results}
            ended = [GoldenResult(*place, None) for place in sorted(gone) if before[place].mismatch is not None]
            for result in (*results, *ended):
                standing = before.get((result.table, result.key))
                notice = golden_notice(result, standing or GoldenStanding(), stamp["recorded_at"] or "", run_id)
                if notice is None and standing is not None:
                    continue
                if notice is not None:
                    write_notice(connection, notice, stamp)
                    told.append(notice)
                self._upsert(connection, result, notice, stamp)
        return told

    def _upsert(
        self, connection: Connection, result: GoldenResult, notice: Notice | None, stamp: dict[str, str | None]
    ) -> None:
        row = {"mismatch": result.mismatch, "notice_id": notice.id if notice is not None else None, **stamp}
        place = {"table_name": result.table, "event_date": result.key.event_date, "project_id": result.key.project_id}
        statement = insert_into(connection, GOLDEN_RESULTS).on_conflict_do_update(index_elements=list(place), set_=row)
        connection.execute(statement, place | row)


def _replace_faults(connection: Connection, reading: GoldenReading, now: str) -> None:
    """Replace a source's faults: for files those of the requested days, for a query all of them."""
    if reading.asked is None:
        return
    source = reading.source.value
    known = sa.select(GOLDEN_FAULTS.c.id, GOLDEN_FAULTS.c.origin).where(GOLDEN_FAULTS.c.source == source)
    is_file = reading.source is GoldenSource.LANDING
    gone = [
        number
        for number, origin in connection.execute(known)
        if not is_file or is_origin_between(origin, *reading.asked)
    ]
    for numbers in in_parts(gone):
        connection.execute(GOLDEN_FAULTS.delete().where(GOLDEN_FAULTS.c.id.in_(numbers)))
    rows = [
        {
            "source": source,
            "origin": recordable(fault.origin),
            "reason": recordable(fault.reason),
            "fix": recordable(fault.hint),
            "recorded_at": now,
        }
        for fault in reading.faults
    ]
    if rows:
        connection.execute(GOLDEN_FAULTS.insert(), rows)


def _standing(
    connection: Connection, projects: Sequence[str], first: date, last: date
) -> dict[tuple[str, Slice], GoldenStanding]:
    query = sa.select(GOLDEN_RESULTS).where(
        GOLDEN_RESULTS.c.project_id.in_(projects), GOLDEN_RESULTS.c.event_date.between(first, last)
    )
    return {
        (row["table_name"], Slice(row["event_date"], row["project_id"])): GoldenStanding(
            row["mismatch"], row["notice_id"]
        )
        for row in connection.execute(query).mappings()
    }
