"""A reader's view at one moment: every table by the catalog, and the ledger's rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from pyiceberg.table import StaticTable
from sqlalchemy.engine import Connection, make_url

from pipeline_assets.domain.slices import Digest
from pipeline_assets.tables.registry import ASSET_TABLES
from resources.iceberg.slice_changes import share_a_database

REFINED, COUNTS, REVENUE, USERS = (
    "refined/events", "aggregates/event_counts", "aggregates/daily_revenue", "aggregates/active_users",
)  # fmt: skip
_COLUMNS = {
    REFINED: ("event_properties", "platform", "amplitude_id"), COUNTS: ("events",), REVENUE: ("revenue", "purchases"),
    USERS: ("active_users",),
}  # fmt: skip
"""Columns of a table's figures, beside day and project."""

_POINTERS = """
SELECT table_namespace || '/' || table_name, metadata_location, NULL, NULL
FROM iceberg_tables WHERE catalog_name = :catalog
"""
_LEDGER = "SELECT table_name, digest, CAST(event_date AS VARCHAR), project_id FROM tidemark_slices"
_BOTH = f"{_POINTERS} UNION ALL {_LEDGER}"

Place = tuple[str, str]
"""Day and project, as text."""
Figures = dict[Place, dict[str, Decimal]]
TableOfCut = tuple[int | None, Figures]
"""Main's snapshot, and each slice's rows and measures."""


@dataclass(frozen=True)
class Cut:
    """Every table's metadata file and every slice's rows on record, at one moment."""

    pointers: Mapping[str, str]
    """Table -> metadata file."""
    rows_on_record: Mapping[tuple[str, Place], int]
    """(table, slice) -> rows, of slices with rows."""


@dataclass
class Findings:
    heads: dict[str, int | None]
    """Table -> main's snapshot; staged snapshots change pointers and no head."""
    aggregates: list[str] = field(default_factory=list)
    """Slices for which refined and an aggregate differ."""
    ledger: list[str] = field(default_factory=list)
    """Slices for which a table and the ledger differ in rows."""


class Cuts:
    """Takes cuts of one lake; reads each metadata file once, because it never changes."""

    def __init__(self, catalog: Connection, ledger: Connection | None, catalog_name: str) -> None:
        """`ledger`: its address in another database, so that no statement reads both."""
        self._catalog, self._ledger, self._name = catalog, ledger, catalog_name
        self._read: dict[tuple[str, str], TableOfCut] = {}

    def take(self) -> Cut:
        """One statement, or one for each database, the catalog's first."""
        if self._ledger is None:
            rows = self._select(self._catalog, _BOTH)
        else:
            rows = [*self._select(self._catalog, _POINTERS), *self._select(self._ledger, _LEDGER)]
        pointers = {name: text for name, text, day, _ in rows if day is None}
        told = {(name, (day, project)): Digest.parse(text).rows for name, text, day, project in rows if day is not None}
        return Cut(pointers, {place: count for place, count in told.items() if count})

    def findings(self, cut: Cut) -> Findings:
        """Read a cut's unknown tables, and compare."""
        tables = {table.key: self._table(table.key, cut.pointers[table.key]) for table in ASSET_TABLES}
        figures = {name: of_slices for name, (_, of_slices) in tables.items()}
        found = Findings({name: head for name, (head, _) in tables.items()})
        refined = figures[REFINED]
        for name, measures in ((COUNTS, ["events"]), (REVENUE, ["revenue", "purchases"]), (USERS, ["active_users"])):
            for place in sorted(refined.keys() | figures[name].keys()):
                told, meant = figures[name].get(place, {}), refined.get(place, {})
                found.aggregates += [
                    f"{name} {' '.join(place)}: {measure} {told.get(measure, 0)}, refined has {meant.get(measure, 0)}"
                    for measure in measures
                    if told.get(measure, 0) != meant.get(measure, 0)
                ]
        live = {
            (name, place): int(one["rows"])
            for name, of_slices in figures.items()
            for place, one in of_slices.items()
            if one["rows"]
        }
        on_record = {place: rows for place, rows in cut.rows_on_record.items() if place[0] in figures}
        found.ledger = [
            f"{name} {' '.join(place)}: {live.get((name, place), 0)} rows, the ledger tells {on_record.get((name, place), 0)}"
            for name, place in sorted(live.keys() | on_record.keys())
            if live.get((name, place)) != on_record.get((name, place))
        ]
        return found

    def _select(self, connection: Connection, statement: str) -> list[Any]:
        # Each statement in its own transaction: it sees all commits so far.
        with connection.begin():
            parameters = {"catalog": self._name} if ":catalog" in statement else {}
            return list(connection.execute(sa.text(statement), parameters).all())

    def _table(self, name: str, location: str) -> TableOfCut:
        if (name, location) not in self._read:
            before = {key: read for key, read in self._read.items() if key[0] == name}
            table = StaticTable.from_metadata(location)
            head = table.metadata.current_snapshot_id
            same = [read for read in before.values() if read[0] == head]
            self._read = {key: read for key, read in self._read.items() if key not in before}
            self._read[name, location] = same[0] if same else (head, _figures_of(name, table))
        return self._read[name, location]


@contextmanager
def cuts_of(catalog_url: str, ledger_url: str | None, catalog_name: str) -> Iterator[Cuts]:
    with _connected(catalog_url) as catalog:
        if ledger_url is None or share_a_database(ledger_url, catalog_url):
            yield Cuts(catalog, None, catalog_name)
            return
        with _connected(ledger_url) as ledger:
            yield Cuts(catalog, ledger, catalog_name)


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg2")
    engine = sa.create_engine(parsed)
    try:
        with closing(engine.connect()) as connection:
            yield connection
    finally:
        engine.dispose()


def _figures_of(name: str, table: StaticTable) -> Figures:
    columns = _COLUMNS.get(name, ())
    scan = table.scan(selected_fields=("event_date", "project_id", *columns))
    found: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    users: set[tuple[Place, Any, Any]] = set()
    for row in scan.to_arrow().to_pylist():
        place = (str(row["event_date"]), row["project_id"])
        figures: Counter[Any] = found[place]
        figures["rows"] += 1
        if name == REFINED:
            figures["events"] += 1
            revenue = json.loads(row["event_properties"] or "{}", parse_float=Decimal).get("$revenue")
            if revenue is not None:
                figures["revenue"] += Decimal(revenue)
                figures["purchases"] += 1
            user = (place, row["platform"], row["amplitude_id"])
            figures["active_users"] += user not in users
            users.add(user)
        else:
            figures.update({column: row[column] for column in columns})
    return {place: {measure: Decimal(value) for measure, value in one.items()} for place, one in found.items()}
