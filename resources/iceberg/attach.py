"""Register tables that exist in the warehouse with a catalog that does not know them.

Contains: finding the newest metadata below each table's location, and registering it.
Add here: another condition that a table must meet before it is registered.
Does not contain: the command and its output (pipeline_assets/cli/attach.py), the identity of the lake
(lake_identity.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.plain_text import sql_text
from resources.iceberg.lake_identity import catalog_identity, catalog_place, fence, is_below, mark, marker
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import JavaTables
from resources.iceberg.metadata_files import (
    MetadataFile,
    content,
    half_published,
    histories,
    not_ahead,
    publish_of,
    read_metadata_files,
    snapshot_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline_assets.domain.settings import Settings
    from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class Attachable:
    """What the warehouse holds of one table."""

    table: Table
    metadata_file: str | None = None
    """The newest complete metadata file; None where the warehouse holds none."""
    updated_at: datetime | None = None
    snapshot_id: int | None = None
    rows: int = 0
    is_attached: bool = False
    """Whether the catalog already knows the table, at exactly this metadata file."""
    left_out: int = 0
    """Number of newer metadata files: dated ahead of this machine's clock, so that Iceberg would refuse every commit on top, or
    left by a commit or publish that failed."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The file, parsed."""


def attachable(spark: SparkSession, settings: Settings, ours: Sequence[Table]) -> list[Attachable]:
    """Return the newest metadata found below the location of each table; writes nothing.

    Raises LakehouseError where there is no metadata, where one location holds the files of two tables, and where the catalog
    belongs to another lake or has another state of one of the tables.
    """
    tables = JavaTables(spark, settings.catalog_name)
    of_warehouse, of_catalog = marker(settings), catalog_identity(tables)
    if of_catalog is not None and of_catalog != of_warehouse:
        raise LakehouseError(
            catalog_place(settings),
            f"belongs to another warehouse than {settings.warehouse_url}",
            "Attach to an empty catalog: set TIDEMARK_CATALOG_URL, or TIDEMARK_CATALOG_NAME",
        )
    never: set[str | None] = set()
    candidates = [_attachable(tables, table, never) for table in ours]
    while half := half_published({one.table.key: one.metadata for one in candidates if one.metadata}):
        never |= half
        candidates = [_attachable(tables, table, never) for table in ours]
    if all(candidate.metadata_file is None for candidate in candidates):
        raise LakehouseError(
            settings.warehouse_url,
            "holds no metadata of our tables",
            "Check TIDEMARK_WAREHOUSE_URL; there is nothing to attach",
        )
    return candidates


def attach(spark: SparkSession, settings: Settings, candidates: Sequence[Attachable]) -> list[Attachable]:
    """Register the tables that the catalog does not know, then give it the warehouse's identity; returns the registered tables.

    Tables are registered one by one: after a failure, repeating the call registers the rest. A catalog that knew the lake
    before is refused from then on.
    """
    tables = JavaTables(spark, settings.catalog_name)
    if catalog_identity(tables) is None and any(
        candidate.metadata_file and not candidate.is_attached for candidate in candidates
    ):
        # Fence first: the former catalog may not be lost after all. It must not commit beside this one, nor delete this one's
        # files as orphans.
        fence(settings)
    done = []
    for candidate in candidates:
        if candidate.metadata_file is None or candidate.is_attached:
            continue
        namespace = candidate.table.identifier.split(".", maxsplit=1)[0]
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {settings.catalog_name}.{namespace}")
        spark.sql(
            f"CALL {settings.catalog_name}.system.register_table(table => '{candidate.table.identifier}', "
            f"metadata_file => {sql_text(candidate.metadata_file)})"
        )
        done.append(candidate)
    # Mark last, so that a catalog carries the identity of a lake only once it knows all of its tables.
    mark(tables, settings, catalog_identity(tables) or marker(settings) or str(uuid.uuid4()))
    return done


def _attachable(tables: JavaTables, table: Table, never: Collection[str | None]) -> Attachable:
    """The newest state of a table that no publish of `never` left."""
    place = tables.place(table)
    objects = LakeObjects(place)
    by_table = histories(read_metadata_files(objects, objects.list()))
    if len(by_table) > 1:
        named = "; ".join(
            f"{table_uuid}: {files[0].name}, {_when(files[0])}" for table_uuid, files in sorted(by_table.items())
        )
        raise LakehouseError(
            place,
            f"holds the files of {len(by_table)} tables ({named})",
            "Move the metadata files of the one that is not meant elsewhere, then attach again",
        )
    files = next(iter(by_table.values()), [])
    known_at = _known_at(tables, table)
    timely = files if known_at is not None else not_ahead(files, datetime.now(UTC))
    newest = next(((file, whole) for file in timely if (whole := _whole(objects, file, never)) is not None), None)
    if newest is None:
        if known_at is not None:
            raise _other_state(tables, table, known_at, "nothing")
        return Attachable(table)
    file, whole = newest
    path = f"{place}/{file.name}"
    if not (is_below(str(whole["location"]), place) and is_below(place, str(whole["location"]))):
        raise LakehouseError(
            path,
            f"names files in {whole['location']}, and Iceberg's paths are absolute",
            "Restore the warehouse where it was, and set TIDEMARK_WAREHOUSE_URL to that place",
        )
    if known_at is not None and known_at.rpartition("/")[2] != file.name.rpartition("/")[2]:
        raise _other_state(tables, table, known_at, file.name)
    head, newer = snapshot_of(whole), files.index(file)
    rows = int(head.get("summary", {}).get("total-records", 0))
    return Attachable(table, path, file.updated_at, int(head["snapshot-id"]), rows, known_at is not None, newer, whole)


def _whole(objects: LakeObjects, file: MetadataFile, never: Collection[str | None]) -> dict[str, Any] | None:
    """The parsed metadata; None for what a failed commit leaves behind: a truncated file, or one whose snapshot is gone."""
    try:
        whole = content(objects, file.name)
        head = snapshot_of(whole)
        manifests = str(head["manifest-list"]).rpartition("/")[2]
    except (ValueError, KeyError, TypeError):
        return None
    is_there = publish_of(head) not in never and objects.get(f"metadata/{manifests}", first_bytes=1) is not None
    return whole if is_there else None


def _known_at(tables: JavaTables, table: Table) -> str | None:
    if not tables.exists(table):
        return None
    return str(tables.load(table).operations().current().metadataFileLocation())


def _other_state(tables: JavaTables, table: Table, known_at: str, newest: str) -> LakehouseError:
    return LakehouseError(
        tables.identifier(table),
        f"is known to the catalog at {known_at}, while the newest in the warehouse is {newest}",
        "Go on with this catalog as it is, or attach to an empty one: set TIDEMARK_CATALOG_URL, or TIDEMARK_CATALOG_NAME",
    )


def _when(file: MetadataFile) -> str:
    return f"{file.updated_at:%Y-%m-%d %H:%M:%S}, {file.commits} commits"
