"""Golden totals: read by a load or on request, kept in the ledger, and compared with published figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.golden import (
    GoldenComparison,
    GoldenFault,
    GoldenMeasure,
    GoldenSource,
    GoldenTotal,
    compare,
    figure_of,
    mismatches_by_day,
)
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY
from pipeline_assets.formats.golden_csv import GoldenNames, golden_day
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import DERIVED, measures_of
from resources.landing.golden import read_landing
from resources.ledger.store import Ledger

GOLDEN_TABLES = tuple(table for table in DERIVED if table.measures)
"""Tables that golden totals may name."""
MEASURES = frozenset(GoldenMeasure(table.key, name) for table in GOLDEN_TABLES for name in measures_of(table.key))


def golden_names(settings: Settings) -> GoldenNames:
    """The measures and projects that a line may name."""
    return GoldenNames(MEASURES, settings.projects)


def take_golden(runtime: Runtime, first: date, last: date) -> None:
    """Read the golden totals of these days from landing into the ledger; faults and errors are logged, never raised.

    Costs one listing if there are none.
    """
    try:
        reading = read_landing(runtime.landing, golden_names(runtime.settings), first, last)
        runtime.ledger.golden.replace(reading)
    except TidemarkError as error:
        runtime.log(f"golden totals were not read: {error}")
        return
    for fault in reading.faults:
        runtime.log(f"golden: {fault}")
    if kept := {str(day) for fault in reading.faults if (day := golden_day(fault.origin)) is not None}:
        runtime.log(f"golden: what is on record of {few(sorted(kept))} stays where no good line replaces it")
    if days := {str(total.key.event_date) for total in reading.totals}:
        runtime.log(f"golden: {len(reading.totals):,} totals of {few(sorted(days))}")


def record_comparison(
    ledger: Ledger, settings: Settings, projects: Sequence[str], first: date, last: date, run_id: str | None
) -> list[GoldenComparison]:
    """Compare every recorded total of these days; record the results with their notices. Returns the comparisons."""
    comparisons = compare_recorded(ledger, settings, projects, first, last)
    mismatches = mismatches_by_day(comparisons, settings, datetime.now(UTC))
    ledger.golden.record(mismatches, projects, first, last, run_id)
    return comparisons


def faults_on_record(ledger: Ledger, settings: Settings) -> list[GoldenFault]:
    """Faults of the last reading; those of a query only if one is set, because otherwise nobody could correct them."""
    is_asked = settings.golden_query is not None
    return ledger.golden.faults([one for one in GoldenSource if one is not GoldenSource.QUERY or is_asked])


def compare_recorded(
    ledger: Ledger,
    settings: Settings,
    projects: Sequence[str],
    first: date | None = None,
    last: date | None = None,
    tables: Collection[str] | None = None,
) -> list[GoldenComparison]:
    """Compare every recorded total of these days with its published figure; by day, project and measure.

    Totals of a query are left out if no query is set, because nobody could correct them.
    """
    totals = [
        total
        for total in ledger.golden.of(projects, first, last, tables)
        if total.source is not GoldenSource.QUERY or settings.golden_query is not None
    ]
    days = {total.key.event_date for total in totals}
    slices = {
        table: ledger.slices(table, projects, days) for table in dict.fromkeys(total.measure.table for total in totals)
    }
    return [_compared(total, slices[total.measure.table].get(total.key), settings) for total in totals]


def _compared(total: GoldenTotal, record: SliceRecord | None, settings: Settings) -> GoldenComparison:
    # A slice that was refused before its first publication has a record without rows.
    if record is None or not (record.knows_inputs or record.digest != EMPTY):
        return compare(total, None, settings, is_loaded=False)
    if total.measure.name == "rows" or record.digest == EMPTY:
        return compare(total, Decimal(record.digest.rows), settings, is_loaded=True)
    return compare(total, figure_of(record.figures, total.measure.name), settings, is_loaded=True)
