"""Read the catalog's database and a table's metadata file without a JVM."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.places import is_below
from pipeline_assets.domain.settings import Settings
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import RUN_PROPERTY

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table

_TABLES = sa.table(
    "iceberg_tables", *map(sa.column, ("catalog_name", "table_namespace", "table_name", "metadata_location"))
)
_PROPERTIES = sa.table(
    "iceberg_namespace_properties", *map(sa.column, ("catalog_name", "namespace", "property_key", "property_value"))
)
_UNCERTAIN = (sa.exc.SQLAlchemyError, TidemarkError, OSError, ValueError, KeyError, TypeError)
"""After any of these the caller asks Iceberg itself, which gives the answer or a proper error."""


@dataclass(frozen=True)
class TableAtRest:
    """A table as its current metadata file describes it."""

    head: int | None
    """Main's snapshot; None for a table that was never written."""
    refs: frozenset[str]
    columns: frozenset[str]
    is_ordered: bool
    properties: dict[str, str]
    snapshots: int = 0
    """Number of snapshots that the table keeps."""
    oldest_at: datetime | None = None
    """When the oldest kept snapshot was committed; None where there is none."""
    is_head_ours: bool = True
    """Whether a run of ours committed main's snapshot, or a compaction did, which leaves the rows as they were."""
    snapshot_ids: frozenset[int] = frozenset()
    """All snapshots that the table keeps."""
    location: str = ""
    """Location of the metadata file."""
    place: str = ""
    """The table's own location, below which its next files are written."""
    deletes: int = 0
    """Delete files that apply to main's snapshot. Only other programs write them."""
    manifest_list: str | None = None
    """The file that lists the manifests of main's snapshot."""


class CatalogAtRest:
    """Reads one catalog; an answer that is not certain is None."""

    def __init__(self, settings: Settings) -> None:
        """Open no connection yet."""
        self._settings = settings
        self._engine: sa.Engine | None = None
        self._known: dict[str, TableAtRest] = {}

    def table(self, table: Table) -> TableAtRest | None:
        """Return the table's current state; None where that is not certain or the catalog does not know the table."""
        try:
            location = self._locations([table])
            return self._metadata(location[0]) if location else None
        except _UNCERTAIN:
            return None

    def outside(self, ours: Collection[Table]) -> list[str] | None:
        """Return the locations of these tables outside of the warehouse; None where that is not certain."""
        try:
            listed = self._locations(ours)
            # The files' own places come first: those of a copy whose original is gone cannot be read.
            return self._not_below(listed) or self._not_below([self._metadata(one).place for one in listed])
        except _UNCERTAIN:
            return None

    def lists(self, table: Table) -> bool | None:
        """Whether the catalog lists the table; None where its database cannot be read."""
        try:
            return bool(self._locations([table]))
        except _UNCERTAIN:
            return None

    def namespace_properties(self, namespace: str) -> dict[str, str] | None:
        """Return the properties that the catalog keeps for a namespace; None where its database cannot be read."""
        wanted = sa.select(_PROPERTIES.c.property_key, _PROPERTIES.c.property_value).where(
            _PROPERTIES.c.catalog_name == self._settings.catalog_name, _PROPERTIES.c.namespace == namespace
        )
        try:
            return {str(row[0]): str(row[1]) for row in self._rows(wanted)}
        except _UNCERTAIN:
            return None

    def close(self) -> None:
        """Close the connection to the catalog's database."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _not_below(self, places: Sequence[str]) -> list[str]:
        return [place for place in places if not is_below(place, self._settings.warehouse_url)]

    def _metadata(self, location: str) -> TableAtRest:
        """The parsed metadata file; raises ValueError for one of a kind that only Iceberg reads."""
        if not location.endswith(".metadata.json") or location.endswith(".gz.metadata.json"):
            raise ValueError(location)
        if location not in self._known:
            self._known = {
                name: metadata for name, metadata in self._known.items() if not name.startswith(_folder(location))
            }
            self._known[location] = _read(location)
        return self._known[location]

    def _locations(self, tables: Collection[Table]) -> list[str]:
        """The current metadata files of those tables that the catalog lists."""
        names = [tuple(table.identifier.rsplit(".", 1)) for table in tables]
        wanted = sa.select(_TABLES.c.metadata_location).where(
            _TABLES.c.catalog_name == self._settings.catalog_name,
            sa.tuple_(_TABLES.c.table_namespace, _TABLES.c.table_name).in_(names),
        )
        return [str(row[0]) for row in self._rows(wanted)]

    def _rows(self, wanted: sa.Select[Any]) -> list[Any]:
        if self._engine is None:
            self._engine = _opened(self._settings.catalog_url)
        with self._engine.connect() as connection:
            return list(connection.execute(wanted))


def _opened(text: str) -> sa.Engine:
    url = make_url(text)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg2")
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, hide_parameters=True, poolclass=sa.pool.NullPool)
    if not url.database or not Path(url.database).is_file():
        # Connecting would create an empty database.
        raise FileNotFoundError(url.database)
    return sa.create_engine(url, hide_parameters=True, poolclass=sa.pool.NullPool, connect_args={"timeout": 30})


def _folder(location: str) -> str:
    return location.rpartition("/")[0] + "/"


def _read(location: str) -> TableAtRest:
    folder, _, name = location.rpartition("/")
    body = LakeObjects(folder).get(name)
    if body is None:
        raise FileNotFoundError(location)
    fields = json.loads(body)
    schema = next(schema for schema in fields["schemas"] if schema["schema-id"] == fields["current-schema-id"])
    head = fields.get("current-snapshot-id")
    snapshots = fields.get("snapshots", ())
    made = [int(snapshot["timestamp-ms"]) for snapshot in snapshots]
    current: Any = next((one for one in snapshots if one["snapshot-id"] == head), {"summary": {"operation": "replace"}})
    return TableAtRest(
        None if head in (None, -1) else int(head),
        frozenset(fields.get("refs", {})),
        frozenset(str(column["name"]) for column in schema["fields"]),
        fields["default-sort-order-id"] != 0,
        dict(fields.get("properties", {})),
        len(made),
        datetime.fromtimestamp(min(made) / 1000, UTC) if made else None,
        _is_ours(current),
        frozenset(int(snapshot["snapshot-id"]) for snapshot in snapshots),
        location,
        str(fields["location"]),
        int(current.get("summary", {}).get("total-delete-files", 0)),
        current.get("manifest-list"),
    )


def _is_ours(snapshot: dict[str, Any]) -> bool:
    summary = snapshot.get("summary", {})
    return RUN_PROPERTY in summary or summary.get("operation") == "replace"
