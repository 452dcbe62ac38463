"""Golden totals as they were read last: for `status` and the page of health, which read no landing.

Contains: reading and replacing them.
Add here: another question about them.
Does not contain: comparing them (pipeline_assets/load/golden.py), where they come from
(resources/landing/golden.py, resources/golden_query.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pipeline_assets.domain.golden import GoldenMeasure, GoldenReading, GoldenSource, GoldenTotal
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.slices import Slice
from resources.ledger.engine import in_parts
from resources.ledger.schema import GOLDEN_TOTALS

_MEASURED = ("event_date", "project_id", "table_name", "measure")
"""What a source tells one value of."""
_Connect = Callable[[], AbstractContextManager[Connection]]


class GoldenTotals:
    """Reads and writes of golden totals; each write is one transaction."""

    def __init__(self, read: _Connect, write: _Connect) -> None:
        """Wrap a ledger's ways of connecting."""
        self._read, self._write = read, write

    def of(
        self,
        projects: Sequence[str],
        first: date | None = None,
        last: date | None = None,
        tables: Collection[str] | None = None,
    ) -> list[GoldenTotal]:
        """What is on record of the days (of all, where a bound is not given), in their order."""
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
        """What a source says of its days takes the place of what it said of them before.

        A day that it no longer tells of keeps its totals: a file that is gone retracts nothing, one without lines does. Of a
        day that was read in part, only the measures that were read are replaced.
        """
        if not reading.days:
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
