"""Golden totals from a database: one query of the deployment's own, asked so that it can change nothing and not run for ever."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.pool import NullPool

from pipeline_assets.domain.days import days_between
from pipeline_assets.domain.errors import GoldenQueryError
from pipeline_assets.domain.golden import GoldenReading, GoldenSource
from pipeline_assets.domain.masking import masked, scrubbed
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats.golden_csv import COLUMNS, GoldenNames, read_rows

MOST_ROWS = 100_000
QUERY_SECONDS = 60
"""The longest that the query may take."""
_CONNECT_SECONDS = 10
_STEPS_BETWEEN_LOOKS = 10_000
"""Of SQLite's machine; it has no time limit of its own."""


def read_query(settings: Settings, names: GoldenNames, first: date, last: date) -> GoldenReading:
    """The totals that the query gives of the days from `first` to `last`; none where no query is set.

    It was asked for each of these days, so that a day without rows is one without totals.

    Raises GoldenQueryError for a database that is out of reach, a query that fails, takes too long, gives too many rows, or
    gives other columns than day, project, measure and value.
    """
    if settings.golden_url is None or settings.golden_query is None:
        return GoldenReading(GoldenSource.QUERY)
    rows = _rows(settings.golden_url, settings.golden_query, QUERY_SECONDS, first, last)
    numbered = ((f"row {number} of the golden query", row) for number, row in enumerate(rows, 1))
    reading = read_rows(GoldenSource.QUERY, numbered, names)
    # What the query gave of other days was not asked for.
    totals = tuple(total for total in reading.totals if first <= total.key.event_date <= last)
    days = frozenset[date]() if reading.faults else frozenset(days_between(first, last))
    return GoldenReading(reading.source, days, totals, reading.faults, (first, last))


def _rows(url: str, query: str, seconds: int, first: date, last: date) -> list[Mapping[str, str]]:
    engine = _engine(url, seconds)
    try:
        with _failures(url), engine.connect() as connection:
            _limit(connection, seconds)
            # A driver that streams holds no more of an endless answer than what is fetched.
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
    """The same bound for SQLite, which opens the file to read alone."""
    raw: Any = connection.connection.dbapi_connection
    if isinstance(raw, sqlite3.Connection):
        end = time.monotonic() + seconds
        raw.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_LOOKS)


@contextmanager
def _failures(url: str) -> Iterator[None]:
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        # What a driver says may repeat the address; the statement is the deployment's own and stays out.
        said = scrubbed(" ".join(str(getattr(error, "orig", None) or error).split()))[:300]
        hint = "Check TIDEMARK_GOLDEN_URL and TIDEMARK_GOLDEN_QUERY; it is asked with the right to read alone"
        raise GoldenQueryError(masked(url), f"the golden query failed: {said}", hint) from None


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    return "" if value is None else str(value)[: len("2026-01-31")] if isinstance(value, date) else str(value)
