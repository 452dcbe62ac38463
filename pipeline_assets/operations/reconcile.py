"""Reconcile golden totals on request: read them from landing and the query, record them, compare with published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.errors import GoldenQueryError
from pipeline_assets.domain.golden import GoldenComparison, GoldenFault, GoldenReading, GoldenSource
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.golden_csv import GoldenNames
from pipeline_assets.load.golden import golden_names, record_comparison
from resources.golden_query import read_query
from resources.landing.golden import read_landing
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Reconciliation:
    """The golden totals of a range compared with published figures."""

    first: date
    last: date
    comparisons: tuple[GoldenComparison, ...]
    faults: tuple[GoldenFault, ...] = ()
    """Invalid totals, which were not compared."""

    @property
    def is_good(self) -> bool:
        """Whether there is at least one total, all were readable, and all agree."""
        return bool(self.comparisons) and not self.faults and not self.mismatches

    @property
    def mismatches(self) -> tuple[GoldenComparison, ...]:
        """Totals that do not agree."""
        return tuple(one for one in self.comparisons if not one.is_good)

    @property
    def lacking(self) -> dict[Slice, bool]:
        """Slice that does not agree -> whether too little is published."""
        found: dict[Slice, bool] = {}
        for one in self.mismatches:
            found[one.total.key] = found.get(one.total.key, False) or one.is_lacking
        return found


def reconcile(
    ledger: Ledger, landing: LandingStore, settings: Settings, projects: Sequence[str], first: date, last: date
) -> Reconciliation:
    """Read the totals of the days, record them in the ledger, compare, and record the result.

    A failed query becomes a fault next to the totals of landing. Raises the errors of landing and ledger where they cannot
    be reached.
    """
    names = golden_names(settings)
    readings = [read_landing(landing, names, first, last)]
    if settings.golden_query is not None:
        readings.append(_asked(ledger, settings, names, first, last))
    for reading in readings:
        ledger.golden.replace(reading)
    comparisons = record_comparison(ledger, settings, projects, first, last, None)
    faults = tuple(fault for reading in readings for fault in reading.faults)
    return Reconciliation(first, last, tuple(comparisons), faults)


def _asked(ledger: Ledger, settings: Settings, names: GoldenNames, first: date, last: date) -> GoldenReading:
    """The totals of the query; one fault where it fails, or returns none although it did before, as an emptied table would."""
    try:
        reading = read_query(settings, names, first, last)
    except GoldenQueryError as error:
        fault = GoldenFault(error.subject, error.reason, error.hint)
        return GoldenReading(GoldenSource.QUERY, faults=(fault,), asked=(first, last))
    recorded = ledger.golden.of(settings.projects, first, last)
    if reading.totals or reading.faults or all(total.source is not GoldenSource.QUERY for total in recorded):
        return reading
    reason = f"told of no day between {first} and {last}; the totals on record are kept"
    hint = "Check the database and TIDEMARK_GOLDEN_QUERY; to retract these totals, compare a range with a day that it tells"
    fault = GoldenFault("the golden query", reason, hint)
    return GoldenReading(GoldenSource.QUERY, faults=(fault,), asked=(first, last))
