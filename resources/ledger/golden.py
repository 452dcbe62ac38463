"""Golden totals as last read, and the notices of comparing them; `status` and the health page read these, not landing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import sqlalchemy as sa

from pipeline_assets.domain.golden import (
    GoldenFault,
    GoldenMeasure,
    GoldenReading,
    GoldenSource,
    GoldenTotal,
    golden_notice,
)
from pipeline_assets.domain.notices import Notice, NoticeKind, Place
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.golden_csv import is_origin_between
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.engine import Writes, in_parts, upsert
from resources.ledger.notices import last_notices, write_notice
from resources.ledger.schema import GOLDEN_FAULTS, GOLDEN_TOTALS, NOTICES


class GoldenTotals(Writes):
    """Reads and writes golden totals; each write is one transaction."""

    def of(
        self,
        projects: Sequence[str],
        first: date | None = None,
        last: date | None = None,
        tables: Collection[str] | None = None,
    ) -> list[GoldenTotal]:
        """Return the recorded totals of the days, in order of day; a missing bound means unbounded."""
        columns = GOLDEN_TOTALS.c
        query = sa.select(GOLDEN_TOTALS).where(
            columns.project_id.in_(projects),
            columns.event_date.between(first or date.min, last or date.max),
            *([] if tables is None else [columns.table_name.in_(tables)]),
        )
        order = columns.event_date, columns.project_id, columns.table_name, columns.measure, columns.source
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
        """Replace the recorded totals of the days in a reading of one source, the totals of other days that it has, and faults.

        A day that is not in the reading keeps its totals: a missing file retracts nothing, an empty file does. Faults of files
        are replaced for the days asked for, those of a query all.
        """
        common = {"source": reading.source.value, "recorded_at": datetime.now(UTC).isoformat()}
        totals = [
            {
                **common,
                "event_date": total.key.event_date,
                "project_id": total.key.project_id,
                "table_name": total.measure.table,
                "measure": total.measure.name,
                "value": f"{total.value:f}",
                "origin": recordable(total.origin),
            }
            for total in reading.totals
        ]
        faults = [
            common | {"origin": recordable(one.origin), "reason": recordable(one.reason), "fix": recordable(one.hint)}
            for one in reading.faults
        ]
        of_totals, of_faults = (table.c.source == reading.source.value for table in (GOLDEN_TOTALS, GOLDEN_FAULTS))
        with self._write() as connection:
            if reading.asked is not None:
                known = connection.execute(sa.select(GOLDEN_FAULTS.c.id, GOLDEN_FAULTS.c.origin).where(of_faults))
                is_query = reading.source is GoldenSource.QUERY
                gone = [number for number, origin in known if is_query or is_origin_between(origin, *reading.asked)]
                for part in in_parts(gone):
                    connection.execute(GOLDEN_FAULTS.delete().where(GOLDEN_FAULTS.c.id.in_(part)))
                if faults:
                    connection.execute(GOLDEN_FAULTS.insert(), faults)
            for days in in_parts(sorted(reading.days)):
                connection.execute(GOLDEN_TOTALS.delete().where(of_totals, GOLDEN_TOTALS.c.event_date.in_(days)))
            upsert(connection, GOLDEN_TOTALS, totals)

    def faults(self, sources: Collection[GoldenSource]) -> list[GoldenFault]:
        """Return the faults of the last reading of these sources, by source."""
        columns = (GOLDEN_FAULTS.c.origin, GOLDEN_FAULTS.c.reason, GOLDEN_FAULTS.c.fix)
        query = sa.select(*columns).where(GOLDEN_FAULTS.c.source.in_([source.value for source in sources]))
        with self._read() as connection:
            rows = connection.execute(query.order_by(GOLDEN_FAULTS.c.source, GOLDEN_FAULTS.c.id)).all()
        return [GoldenFault(origin, reason, fix or "") for origin, reason, fix in rows]

    def record(
        self,
        mismatches: Mapping[Place, str | None],
        projects: Sequence[str],
        first: date,
        last: date,
        run_id: str | None,
    ) -> list[Notice]:
        """Tell what comparing these days found; returns the notices written for days that began or ceased to differ.

        Runs in one transaction. A day in the range that differed before and has no totals any more counts as agreeing.
        """
        now = datetime.now(UTC).isoformat()
        with self._write() as connection:
            last_told = last_notices(
                connection,
                (NoticeKind.GOLDEN_MISMATCH, NoticeKind.GOLDEN_AGREEMENT),
                NOTICES.c.table_name.in_([table.key for table in DERIVED]),
                NOTICES.c.event_date.between(first, last),
                NOTICES.c.project_id.in_(projects),
            )
            found = dict.fromkeys(sorted(last_told)) | dict(mismatches)
            notices = [
                notice
                for place, mismatch in found.items()
                if (notice := golden_notice(place, mismatch, last_told.get(place), now, run_id)) is not None
            ]
            for notice in notices:
                write_notice(connection, notice, {"run_id": run_id, "recorded_at": now})
        return notices
