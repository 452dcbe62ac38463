"""Golden totals: read from landing and from the deployment's query, compared with published figures, recorded."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.pool import NullPool

from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.errors import GoldenQueryError, ObjectMovedError, TidemarkError, UnreadableObjectError
from pipeline_assets.domain.golden import (
    COLUMNS,
    MOST_BYTES,
    PREFIX,
    GoldenComparison,
    GoldenFault,
    GoldenMeasure,
    GoldenNames,
    GoldenReading,
    GoldenSource,
    compare,
    figure_of,
    golden_day,
    golden_key,
    mismatches_by_day,
    read_file,
    read_rows,
)
from pipeline_assets.domain.masking import masked, scrubbed
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import DERIVED, measures_of
from resources.landing.bucket import Listed
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

MOST_ROWS = 100_000
QUERY_SECONDS = 60
_CONNECT_SECONDS = 10
_STEPS_BETWEEN_LOOKS = 10_000
"""SQLite has no time limit: its progress handler checks the clock."""


def read_query(settings: Settings, names: GoldenNames, first: date, last: date) -> GoldenReading:
    """The query's totals of the days from `first` to `last`; none where no query is set.

    Each of these days counts as read, so a day without rows has no totals. Raises GoldenQueryError if the database is
    unreachable, or the query fails, takes too long, or returns too many rows or other columns than day, project, measure, value.
    """
    if settings.golden_url is None or settings.golden_query is None:
        return GoldenReading(GoldenSource.QUERY)
    rows = _rows(settings.golden_url, settings.golden_query, QUERY_SECONDS, first, last)
    numbered = ((f"row {number} of the golden query", row) for number, row in enumerate(rows, 1))
    reading = read_rows(GoldenSource.QUERY, numbered, names)
    totals = tuple(total for total in reading.totals if first <= total.key.event_date <= last)
    days = frozenset[date]() if reading.faults else frozenset(days_between(first, last))
    return GoldenReading(reading.source, days, totals, reading.faults, (first, last))


def _rows(url: str, query: str, seconds: int, first: date, last: date) -> list[Mapping[str, str]]:
    engine = _engine(url, seconds)
    try:
        with _failures(url), engine.connect() as connection:
            _limit(connection, seconds)
            asked = connection.execution_options(stream_results=True).execute(
                sa.text(query), {"first_day": first.isoformat(), "last_day": last.isoformat()}
            )
            columns = list(asked.keys())
            if sorted(columns) != sorted(COLUMNS):
                reason = f"the query gives the columns {', '.join(columns)}"
                raise GoldenQueryError(masked(url), reason, f"Let it give {', '.join(COLUMNS)}, in any order")
            found = asked.fetchmany(MOST_ROWS + 1)
            if len(found) > MOST_ROWS:
                reason = f"the query gives more than {MOST_ROWS:,} rows; none of them was compared"
                raise GoldenQueryError(masked(url), reason, "Let it give totals, of the days asked for alone")
            return [{name: _text(row[name]) for name in COLUMNS} for row in (one._mapping for one in found)]
    finally:
        engine.dispose()


def _engine(url: str, seconds: int) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        place = f"file:{quote(parsed.database or '')}?mode=ro"
        return sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(place, uri=True, timeout=_CONNECT_SECONDS), poolclass=NullPool
        )
    options = f"-c default_transaction_read_only=on -c statement_timeout={seconds * 1000}"
    return sa.create_engine(
        parsed.set(drivername="postgresql+psycopg2"),
        connect_args={"connect_timeout": _CONNECT_SECONDS, "options": options},
        poolclass=NullPool,
        hide_parameters=True,
    )


def _limit(connection: Connection, seconds: int) -> None:
    raw: Any = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection):
        end = time.monotonic() + seconds
        raw.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_LOOKS)


@contextmanager
def _failures(url: str) -> Iterator[None]:
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        # Drivers may repeat the address; the deployment's own statement stays out too.
        said = scrubbed(" ".join(str(getattr(error, "orig", None) or error).split()))[:300]
        hint = "Check TIDEMARK_GOLDEN_URL and TIDEMARK_GOLDEN_QUERY; it is asked with the right to read alone"
        raise GoldenQueryError(masked(url), f"the golden query failed: {said}", hint) from None


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    return "" if value is None else str(value)[: len("2026-01-31")] if isinstance(value, date) else str(value)


GOLDEN_TABLES = tuple(table for table in DERIVED if table.measures)
MEASURES = frozenset(GoldenMeasure(table.key, name) for table in GOLDEN_TABLES for name in measures_of(table.key))


def golden_names(settings: Settings) -> GoldenNames:
    """The measures and projects that a line may name."""
    return GoldenNames(MEASURES, settings.projects)


def read_landing(landing: LandingStore, names: GoldenNames, first: date, last: date) -> GoldenReading:
    """The totals of the days from `first` to `last`, with unreadable files as faults.

    Raises LandingAccessError and LandingUnavailableError.
    """
    read = [_read(landing, entry, names) for entry in landing.list_folder(PREFIX, golden_key(first), golden_key(last))]
    return GoldenReading(
        GoldenSource.LANDING,
        frozenset(day for one in read for day in one.days),
        tuple(total for one in read for total in one.totals),
        tuple(fault for one in read for fault in one.faults),
        (first, last),
    )


def _read(landing: LandingStore, entry: Listed, names: GoldenNames) -> GoldenReading:
    day = golden_day(entry.key)
    if day is None:
        reason = "is not named after a day, so that nothing of it was compared"
        hint = f"Name it {golden_key(date(2026, 1, 31))}, or move it out of {PREFIX}/"
    elif entry.oddity:
        reason, hint = f"is {entry.oddity}", "Put a plain file in its place"
    elif entry.size_bytes > MOST_BYTES:
        reason = f"has {entry.size_bytes:,} bytes, more than the {MOST_BYTES:,} of a file of totals; it was not read"
        hint = "Put totals of a day there, one line for each project and measure"
    else:
        try:
            with landing.open(entry.key, entry.etag) as content:
                return read_file(entry.key, day, content.read(MOST_BYTES + 1), names)
        except (UnreadableObjectError, ObjectMovedError) as error:
            reason, hint = error.reason, error.hint
    return GoldenReading(GoldenSource.LANDING, faults=(GoldenFault(entry.key, reason, hint),))


def take_golden(runtime: Runtime, first: date, last: date) -> None:
    """Read golden totals of these days from landing into the ledger; log faults and errors."""
    try:
        reading = read_landing(runtime.landing, golden_names(runtime.settings), first, last)
        if reading.days or reading.faults or runtime.ledger.golden.is_in_use():
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


def _sources(settings: Settings) -> list[GoldenSource]:
    return [one for one in GoldenSource if one is not GoldenSource.QUERY or settings.golden_query is not None]


def faults_on_record(ledger: Ledger, settings: Settings) -> list[GoldenFault]:
    """Faults of the last reading."""
    return ledger.golden.faults(_sources(settings))


def compare_recorded(
    ledger: Ledger,
    settings: Settings,
    projects: Sequence[str],
    first: date | None = None,
    last: date | None = None,
    tables: Collection[str] | None = None,
) -> list[GoldenComparison]:
    """Compare every recorded total of these days with its published figure; by day, project and measure."""
    counted = _sources(settings)
    totals = [total for total in ledger.golden.of(projects, first, last, tables) if total.source in counted]
    days = {total.key.event_date for total in totals}
    slices = {name: ledger.slices(name, projects, days) for name in {total.measure.table for total in totals}}
    found = []
    for total in totals:
        name, record = total.measure.name, slices[total.measure.table].get(total.key)
        # A slice refused before its first publication has a record without rows.
        if record is None or not (record.knows_inputs or record.digest != EMPTY):
            found.append(compare(total, None, settings, is_loaded=False))
            continue
        is_counted = name == "rows" or record.digest == EMPTY
        published = Decimal(record.digest.rows) if is_counted else figure_of(record.figures, name)
        found.append(compare(total, published, settings, is_loaded=True))
    return found


@dataclass(frozen=True)
class Reconciliation:
    """The golden totals of a range compared with published figures."""

    first: date
    last: date
    comparisons: tuple[GoldenComparison, ...]
    faults: tuple[GoldenFault, ...] = ()

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
    """Read the totals of the days, record them, compare, and record the result. Raises the errors of landing and ledger."""
    names = golden_names(settings)
    readings = [read_landing(landing, names, first, last)]
    readings += [_asked(ledger, settings, names, first, last)] if settings.golden_query is not None else []
    for reading in readings:
        ledger.golden.replace(reading)
    comparisons = record_comparison(ledger, settings, projects, first, last, None)
    faults = tuple(fault for reading in readings for fault in reading.faults)
    return Reconciliation(first, last, tuple(comparisons), faults)


def _asked(ledger: Ledger, settings: Settings, names: GoldenNames, first: date, last: date) -> GoldenReading:
    """The query's totals; one fault if it fails, or returns none although it did before."""
    try:
        reading = read_query(settings, names, first, last)
        recorded = ledger.golden.of(settings.projects, first, last)
        if reading.totals or reading.faults or all(total.source is not GoldenSource.QUERY for total in recorded):
            return reading
        reason = f"told of no day between {first} and {last}; the totals on record are kept"
        hint = "Check the database and TIDEMARK_GOLDEN_QUERY; to retract these totals, compare a range with a day that it tells"
        fault = GoldenFault("the golden query", reason, hint)
    except GoldenQueryError as error:
        fault = GoldenFault(error.subject, error.reason, error.hint)
    return GoldenReading(GoldenSource.QUERY, faults=(fault,), asked=(first, last))
