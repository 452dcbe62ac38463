"""Register tables that exist in the warehouse with a catalog that does not know them, or no longer owns them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.places import resolved
from pipeline_assets.domain.plain_text import sql_text
from resources.iceberg.lake_identity import NAMESPACE, PROPERTY, catalog_place, enter_catalog, lake_of
from resources.iceberg.lake_mark import Mark, read_mark
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import JavaTables
from resources.iceberg.metadata_files import (
    MetadataFile,
    base_name,
    content,
    follows,
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
    known_at: str | None = None
    """The metadata file at which the catalog knows the table; None where it does not."""
    is_attached: bool = False
    """Whether that is the newest one."""
    left_out: int = 0
    """Number of newer metadata files: dated ahead of this machine's clock, so that Iceberg would refuse every commit on top, or
    left by a commit or publish that failed."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The file, parsed."""


def taken_from(spark: SparkSession, settings: Settings) -> Mark | None:
    """Return the mark of the catalog that owns the lake, None where that is this one, or the warehouse has no mark.

    Raises LakehouseError where this catalog belongs to another lake.
    """
    mark = read_mark(settings)
    of_catalog = JavaTables(spark, settings.catalog_name).namespace_properties(NAMESPACE)
    carried = of_catalog.get(PROPERTY)
    if carried is not None and (mark is None or lake_of(None, of_catalog) != mark.lake):
        reason = f"belongs to another warehouse than {settings.warehouse_url}"
        hint = "Attach to an empty catalog: set TIDEMARK_CATALOG_URL, or TIDEMARK_CATALOG_NAME"
        raise LakehouseError(catalog_place(settings), reason, hint)
    return None if mark is None or carried == mark.id else mark


def attachable(spark: SparkSession, settings: Settings, ours: Sequence[Table]) -> list[Attachable]:
    """Return the newest metadata found below the location of each table; writes nothing.

    Raises LakehouseError where there is no metadata, where one location holds the files of two tables, and where the catalog
    belongs to another lake or has another state of one of the tables. A catalog that owned the lake before may know an earlier
    state, from which the newest follows.
    """
    tables = JavaTables(spark, settings.catalog_name)
    may_be_behind = taken_from(spark, settings) is not None
    never: set[str | None] = set()
    while True:
        candidates = [_attachable(tables, table, never, may_be_behind=may_be_behind) for table in ours]
        if not (half := half_published({one.table.key: one.metadata for one in candidates if one.metadata})):
            break
        never |= half
    if all(candidate.metadata_file is None for candidate in candidates):
        hint = "Check TIDEMARK_WAREHOUSE_URL; there is nothing to attach"
        raise LakehouseError(settings.warehouse_url, "holds no metadata of our tables", hint)
    return candidates


def attach(spark: SparkSession, settings: Settings, candidates: Sequence[Attachable]) -> list[Attachable]:
    """Register the tables at their newest state, then give the catalog the warehouse's identity; returns the registered ones.

    Tables are registered one by one: after a failure, repeating the call registers the rest. A catalog that owned the lake
    before is refused from then on.
    """
    tables, mark = JavaTables(spark, settings.catalog_name), read_mark(settings)
    if mark is None or taken_from(spark, settings) is not None:
        # Fence first, in one step: the former catalog may not be lost after all. It must not commit beside this one, nor delete
        # this one's files as orphans, nor write its own mark again.
        identity = str(uuid.uuid4())
        mark = (Mark(identity, identity) if mark is None else replace(mark, id=identity)).here(settings)
        mark.write(settings)
    done = [candidate for candidate in candidates if candidate.metadata_file is not None and not candidate.is_attached]
    for candidate in done:
        namespace = candidate.table.identifier.split(".", maxsplit=1)[0]
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {settings.catalog_name}.{namespace}")
        if candidate.known_at is not None:
            # Without PURGE only the catalog's row goes.
            spark.sql(f"DROP TABLE {tables.identifier(candidate.table)}")
        spark.sql(
            f"CALL {settings.catalog_name}.system.register_table(table => '{candidate.table.identifier}', "
            f"metadata_file => {sql_text(str(candidate.metadata_file))})"
        )
    # Mark last, so that a catalog carries the identity of a lake only once it knows all of its tables.
    enter_catalog(tables, mark)
    return done


def _attachable(tables: JavaTables, table: Table, never: Collection[str | None], *, may_be_behind: bool) -> Attachable:
    """The newest state of a table that no publish of `never` left."""
    place = tables.place(table)
    objects = LakeObjects(place)
    by_table = histories(read_metadata_files(objects, objects.list()))
    if len(by_table) > 1:
        named = "; ".join(
            f"{table_uuid}: {files[0].name}, {files[0].updated_at:%Y-%m-%d %H:%M:%S}, {files[0].commits} commits"
            for table_uuid, files in sorted(by_table.items())
        )
        hint = "Move the metadata files of the one that is not meant elsewhere, then attach again"
        raise LakehouseError(place, f"holds the files of {len(by_table)} tables ({named})", hint)
    files = next(iter(by_table.values()), [])
    current = tables.load(table).operations().current() if tables.exists(table) else None
    known_at = None if current is None else str(current.metadataFileLocation())
    timely = files if known_at is not None else not_ahead(files, datetime.now(UTC))
    newest = next(((file, whole) for file in timely if (whole := _whole(objects, file, never)) is not None), None)
    if newest is None:
        if known_at is not None:
            reason = f"is known to the catalog at {known_at}, and {place} holds nothing"
            raise LakehouseError(tables.identifier(table), reason, "Restore it there")
        return Attachable(table)
    file, whole = newest
    path = f"{place}/{file.name}"
    if resolved(str(whole["location"])) != resolved(place):
        reason = f"names files in {whole['location']}, and Iceberg's paths are absolute"
        hint = "Restore the warehouse where it was, and set TIDEMARK_WAREHOUSE_URL to that place"
        raise LakehouseError(path, reason, hint)
    name, known = base_name(file.name), base_name(known_at or "")
    if known not in ("", name) and not (may_be_behind and follows(objects, file.name, known)):
        raise LakehouseError(
            tables.identifier(table),
            f"is known to the catalog at {known_at}, while the newest in the warehouse is {file.name}",
            "Where this catalog owns the lake, go on with it as it is; else attach to an empty one, which takes the newest and "
            "loses commits that it does not follow: set TIDEMARK_CATALOG_URL, or TIDEMARK_CATALOG_NAME",
        )
    head = snapshot_of(whole)
    rows = int(head.get("summary", {}).get("total-records", 0))
    return Attachable(
        table,
        path,
        file.updated_at,
        int(head["snapshot-id"]),
        rows,
        known_at,
        is_attached=known == name,
        left_out=files.index(file),
        metadata=whole,
    )


def _whole(objects: LakeObjects, file: MetadataFile, never: Collection[str | None]) -> dict[str, Any] | None:
    """The parsed metadata; None for what a failed commit leaves behind: a truncated file, or one whose snapshot is gone."""
    try:
        whole = content(objects, file.name)
        head = snapshot_of(whole)
        manifests = base_name(str(head["manifest-list"]))
    except (ValueError, KeyError, TypeError):
        return None
    is_there = publish_of(head) not in never and objects.get(f"metadata/{manifests}", first_bytes=1) is not None
    return whole if is_there else None
