"""A reader's view of the deployment without Spark: the catalog's pointers and the ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import sqlalchemy as sa
from pyiceberg.table import StaticTable

from pipeline_assets.tables.registry import ALL_TABLES


def digests(database_url: str, s3_url: str) -> dict[str, str]:
    """Table and slice -> digest of its rows, by PyIceberg and the catalog's pointers; and the ledger's digests."""
    engine = sa.create_engine(database_url.replace("postgresql:", "postgresql+psycopg2:"))
    with engine.connect() as connection:
        pointers = connection.execute(
            sa.text("SELECT table_namespace || '/' || table_name, metadata_location FROM iceberg_tables")
        ).all()
        recorded = connection.execute(
            sa.text("SELECT table_name, event_date, project_id, digest FROM tidemark_slices")
        ).all()
    engine.dispose()
    columns = {table.key: [column.name for column in table.columns] for table in ALL_TABLES}
    found = {
        f"{name} {place}": digest
        for name, location in pointers
        if name in columns
        for place, digest in _live(location, columns[name], s3_url).items()
    }
    return found | {f"ledger {name} {day} {project}": digest for name, day, project, digest in recorded}


def _live(location: str, columns: Sequence[str], s3_url: str) -> dict[str, str]:
    properties = {
        "s3.endpoint": s3_url,
        "s3.access-key-id": "test",
        "s3.secret-access-key": "test",
        "s3.region": "us-east-1",
    }
    table = StaticTable.from_metadata(location, properties)
    rows: dict[str, list[str]] = {}
    for row in table.scan().to_arrow().to_pylist():
        place = f"{row.get('event_date') or row.get('_arrival_date')} {row['project_id']}"
        rows.setdefault(place, []).append(repr([row.get(name) for name in columns]))
    return {place: f"{len(of)} rows {_hash(of)}" for place, of in rows.items()}


def _hash(rows: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()[:16]
