"""The identity of a lake: the warehouse and the catalog that knows its tables carry the same one.

Contains: the marks of warehouse and catalog, and the refusal where they differ.
Add here: another check that catalog and warehouse belong together.
Does not contain: creating tables (creation.py), registering the tables of a lost catalog (attach.py).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url

from pipeline_assets.domain.commands import NEWER_TIDEMARK
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.places import local_path
from pipeline_assets.domain.settings import Settings
from resources.iceberg.errors import FAILURES, may_pass
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata_files import first_use

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table
    from resources.iceberg.metadata import JavaTables

MARKER = "warehouse.json"
"""The warehouse's mark, below `_tidemark/`."""
PROPERTY = "tidemark.warehouse-id"
_LAKE_PROPERTY = "tidemark.lake-id"
NAMESPACE = "raw"
"""The namespace whose properties hold the identity: it exists as long as the tables do, in every type of catalog."""
FORMAT = 1
"""Format of the tables and of `_tidemark/`; raised by a change that an earlier Tidemark would misread or undo."""
_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Pauses in seconds between checks: another process may be creating the same lake, so a mismatch is checked again."""


class Purpose(IntEnum):
    """What the caller is about to do; each value permits all that the values before it permit."""

    LOOK = 1
    """Only read."""
    KEEP = 2
    """Also mark a lake that this catalog knows and that has no mark."""
    BEGIN = 3
    """Also create a lake where there is none."""


@dataclass(frozen=True)
class _Mark:
    """The content of the warehouse's mark."""

    fence: str
    """The identity that the one permitted catalog carries as well; attaching changes it."""
    lake: str
    """The identity of the lake, which never changes; the ledger carries it as well."""


@dataclass(frozen=True)
class _Marks:
    of_warehouse: str | None
    of_catalog: str | None

    @property
    def are_equal(self) -> bool:
        return self.of_warehouse is not None and self.of_warehouse == self.of_catalog


def require_own_lake(tables: JavaTables, settings: Settings, ours: Collection[Table], purpose: Purpose) -> None:
    """Raise LakehouseError where the warehouse holds a lake that the catalog does not know, or the other way round."""
    refusal: LakehouseError | None = None
    for pause in (*_PAUSES, None):
        marks = _marks(tables, settings)
        if marks.are_equal:
            return
        try:
            is_lake = _is_known(tables, settings, ours, marks)
        except LakehouseError as error:
            refusal = error
        else:
            if purpose < (Purpose.KEEP if is_lake else Purpose.BEGIN):
                return
            refusal = None
            # Check once more: another process may have marked the warehouse first, and then its mark counts.
            mark(tables, settings, marks.of_warehouse or marks.of_catalog or str(uuid.uuid4()))
            continue
        if pause is not None:
            time.sleep(pause)
    if refusal is not None:
        raise refusal


def mark(tables: JavaTables, settings: Settings, identity: str) -> None:
    """Mark the warehouse with this identity unless it has one, then mark the catalog with the warehouse's identity.

    The warehouse comes first. If the process dies in between, the next process whose catalog knows the tables, or that finds
    no tables, completes the mark.
    """
    lake = tables.namespace_properties(NAMESPACE).get(_LAKE_PROPERTY, identity)
    LakeObjects.of(settings).put(MARKER, _written(settings, _Mark(identity, lake)))
    known = _mark(settings) or _Mark(identity, lake)
    namespace = f"{tables.catalog_name}.{NAMESPACE}"
    for pause in (*_PAUSES, None):
        try:
            tables.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            tables.spark.sql(
                f"ALTER NAMESPACE {namespace} SET PROPERTIES "
                f"('{PROPERTY}'='{known.fence}', '{_LAKE_PROPERTY}'='{known.lake}')"
            )
        except FAILURES as error:
            # Two processes that create the lake at once write the same rows.
            if pause is None or not may_pass(error):
                raise
            time.sleep(pause)
        else:
            return


def fence(settings: Settings) -> None:
    """Give the warehouse a new identity that no catalog carries, so that every earlier catalog is refused from now on."""
    identity = str(uuid.uuid4())
    known = _mark(settings)
    body = _written(settings, _Mark(identity, identity if known is None else known.lake))
    # Replace in one step: if the mark were missing for a moment, the former catalog would write its own again.
    LakeObjects.of(settings).replace(MARKER, body)


def marker(settings: Settings) -> str | None:
    """Return the warehouse's identity, None where it has none; raises LakehouseError for a mark that cannot be parsed."""
    known = _mark(settings)
    return None if known is None else known.fence


def are_marked_alike(settings: Settings, of_catalog: Mapping[str, str]) -> bool:
    """Whether the warehouse carries the identity that the properties of the catalog's NAMESPACE name."""
    known = _mark(settings)
    return known is not None and known.fence == of_catalog.get(PROPERTY)


def marked_lake(settings: Settings) -> str | None:
    """Return the lake's identity from the warehouse's mark, None where there is no mark."""
    known = _mark(settings)
    return None if known is None else known.lake


def lake_of(tables: JavaTables, settings: Settings) -> str | None:
    """Return the identity that the lake keeps in every catalog it is attached to; None for a lake without marks."""
    known = _mark(settings)
    if known is not None:
        return known.lake
    # Somebody removed the warehouse's mark; the catalog still has the identity.
    properties = tables.namespace_properties(NAMESPACE)
    return properties.get(_LAKE_PROPERTY, properties.get(PROPERTY))


def _mark(settings: Settings) -> _Mark | None:
    objects = LakeObjects.of(settings)
    body = objects.get(MARKER)
    if body is None:
        return None
    try:
        fields = json.loads(body)
        # Older marks carry no format number.
        of_mark = int(fields.get("format", FORMAT))
        if of_mark > FORMAT:
            raise LakehouseError(
                f"{objects.url}/{MARKER}",
                f"a newer Tidemark wrote this warehouse (format {of_mark}; this one knows {FORMAT}), and nothing was touched",
                NEWER_TIDEMARK,
            )
        # Older marks carry one identity, which is the lake's as well.
        return _Mark(str(uuid.UUID(fields["id"])), str(uuid.UUID(fields.get("lake", fields["id"]))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LakehouseError(
            f"{objects.url}/{MARKER}",
            "is no identity of a warehouse",
            "Restore it, or remove it: the next load writes it",
        ) from None


def _written(settings: Settings, marked: _Mark) -> bytes:
    made_at = datetime.now(UTC).isoformat()
    made = {
        "format": FORMAT,
        "id": marked.fence,
        "lake": marked.lake,
        "catalog": settings.catalog_name,
        "made_at": made_at,
    }
    return json.dumps(made, indent=1).encode()


def catalog_identity(tables: JavaTables) -> str | None:
    """Return the identity that the catalog carries, None where it has none."""
    return tables.namespace_properties(NAMESPACE).get(PROPERTY)


def catalog_place(settings: Settings) -> str:
    """Describe the catalog for messages: name and address, without user, password and options."""
    url = make_url(settings.catalog_url).set(username=None, password=None, query={})
    return f"catalog {settings.catalog_name} ({url.render_as_string()})"


def unknown_lake(settings: Settings, identity: str) -> LakehouseError:
    """Return the error for a warehouse whose tables the catalog does not know."""
    return LakehouseError(
        settings.warehouse_url,
        f"holds tables ({identity}) that {catalog_place(settings)} does not know, and nothing was touched",
        "Check TIDEMARK_CATALOG_URL, TIDEMARK_CATALOG_NAME and TIDEMARK_WAREHOUSE_URL; where the catalog is lost, attach the "
        "tables to an empty one: tidemark attach",
    )


def _marks(tables: JavaTables, settings: Settings) -> _Marks:
    return _Marks(marker(settings), catalog_identity(tables))


def _is_known(tables: JavaTables, settings: Settings, ours: Collection[Table], marks: _Marks) -> bool:
    """True for a lake that the catalog knows and that lost a mark to a person or a crash, False where there is no lake yet.

    Raises LakehouseError for a lake of another catalog, and for a catalog whose tables lie in another warehouse.
    """
    if marks.of_warehouse and marks.of_catalog:
        raise LakehouseError(
            settings.warehouse_url,
            f"belongs to another catalog than {catalog_place(settings)}: one carries the identity {marks.of_warehouse}, the "
            f"other {marks.of_catalog}, and nothing was touched",
            "Check TIDEMARK_CATALOG_URL, TIDEMARK_CATALOG_NAME and TIDEMARK_WAREHOUSE_URL; where the warehouse's catalog is "
            "lost, attach the tables to an empty one: tidemark attach",
        )
    known = [table for table in ours if tables.exists(table)]
    if known:
        # Load the tables instead of listing them: an unmounted warehouse has the same address and none of the files.
        elsewhere = [place for place in map(tables.location, known) if not is_below(place, settings.warehouse_url)]
        if elsewhere:
            raise LakehouseError(
                settings.warehouse_url,
                f"is not the warehouse of {catalog_place(settings)}, whose tables lie in {elsewhere[0]}, and nothing was touched",
                "Check TIDEMARK_WAREHOUSE_URL and TIDEMARK_CATALOG_URL",
            )
        return True
    for table in ours:
        objects = LakeObjects(tables.place(table))
        used = first_use(objects)
        if used is not None:
            raise unknown_lake(settings, f"{objects.url}/{used}")
    return False


def is_below(location: str, warehouse_url: str) -> bool:
    """Whether a table's location lies in a warehouse, however the two URLs are spelt."""
    return f"{_plain(location)}/".startswith(f"{_plain(warehouse_url)}/")


def _plain(url: str) -> str:
    if url.startswith("file://"):
        # The spelling of settings, which may be encoded; Iceberg's own `file:/` is a plain path.
        return f"{local_path(url)}".rstrip("/")
    scheme, colon, path = url.rstrip("/").partition(":")
    if not colon or scheme not in ("file", "s3", "s3a", "s3n"):
        return url.rstrip("/")
    return f"/{path.lstrip('/')}" if scheme == "file" else f"s3:{path}"
