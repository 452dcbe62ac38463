"""One lake: warehouse, catalog, ledger and the places of all tables belong together, or nothing is touched."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import LakehouseError, LedgerError
from pipeline_assets.domain.places import is_below, resolved
from pipeline_assets.domain.settings import Settings
from resources.iceberg.errors import again
from resources.iceberg.lake_mark import Mark, bare_url, read_mark
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata_files import first_use

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table
    from resources.iceberg.metadata import JavaTables
    from resources.ledger.store import LakeOfLedger

PROPERTY = "tidemark.warehouse-id"
_LAKE_PROPERTY = "tidemark.lake-id"
NAMESPACE = "raw"
"""The namespace whose properties hold the identity: it exists as long as the tables do, in every type of catalog."""
_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Pauses in seconds between checks: another process may be creating the same lake, so a mismatch is checked again."""
_CHECK_SETTINGS = "Check TIDEMARK_CATALOG_URL, TIDEMARK_CATALOG_NAME and TIDEMARK_WAREHOUSE_URL"
_ABSOLUTE = (
    "Another lake begins with an empty warehouse, a catalog and a ledger of its own; to use this one, restore, mount or link it "
    "where its tables lie, as Iceberg's paths are absolute"
)


class Purpose(IntEnum):
    """What the caller is about to do; each value permits all that the values before it permit."""

    LOOK = 1
    """Only read."""
    KEEP = 2
    """Also change tables, and complete the mark of a lake that this catalog knows."""
    BEGIN = 3
    """Also create a lake where there is none."""


def require_own_lake(
    tables: JavaTables, settings: Settings, ours: Collection[Table], purpose: Purpose, ledger: LakeOfLedger | None
) -> None:
    """Raise LakehouseError or LedgerError unless the parts belong together; `ledger`: None while another one is attached."""

    def outside() -> list[str]:
        # Load the tables instead of listing them: an unmounted warehouse has the same address and none of the files.
        places = (str(tables.load(table).location()) for table in ours if tables.exists(table))
        return [place for place in places if not is_below(place, settings.warehouse_url)]

    for pause in (*_PAUSES, None):
        of_catalog = tables.namespace_properties(NAMESPACE)
        if is_one_lake(settings, of_catalog, outside, purpose, ledger):
            return
        mark = read_mark(settings)
        try:
            is_lake = _is_known(tables, settings, ours)
            is_bound = ledger is None or ledger.require(lake_of(mark, of_catalog), mark)
            # Only a mark that names this very ledger lets an empty one in: the process that wrote both died in between.
            if ledger is not None and not is_bound and is_lake and (mark is None or mark.ledger is None):
                raise ledger.stranger("whose records it does not hold")
        except (LakehouseError, LedgerError):
            if pause is None:
                raise
            time.sleep(pause)
            continue
        if purpose < (Purpose.KEEP if is_lake else Purpose.BEGIN):
            return
        # Check once more: another process may have marked the warehouse first, and then its mark counts.
        _complete(tables, settings, mark, of_catalog, ledger)


def is_one_lake(
    settings: Settings,
    of_catalog: Mapping[str, str] | None,
    outside: Callable[[], Sequence[str] | None],
    purpose: Purpose,
    ledger: LakeOfLedger | None,
) -> bool:
    """Whether all parts name each other; False where that is not certain. Raises LakehouseError or LedgerError where they differ.

    `of_catalog`: properties of NAMESPACE; `outside` returns locations of known tables outside of the warehouse; None if unknown.
    """
    mark, here = read_mark(settings), settings.warehouse_url
    carried = None if of_catalog is None else of_catalog.get(PROPERTY)
    if mark is not None and carried not in (None, mark.id):
        raise LakehouseError(
            here,
            f"belongs to another catalog than {catalog_place(settings)}: one carries the identity {mark.id} of {mark.owner}, "
            f"the other {carried}, and nothing was touched",
            f"{_CHECK_SETTINGS}; where the other catalog took the lake by mistake, take it back: tidemark attach",
        )
    places: Sequence[str] | None = ()
    if purpose > Purpose.LOOK:
        named = here if mark is None or mark.place is None else mark.place
        if resolved(named) != resolved(here):
            reason = f"is a copy of a lake whose place is {named}, and nothing was touched"
            raise LakehouseError(here, reason, f"{_ABSOLUTE}: {named}")
        places = outside()
        if places:
            owner, place = catalog_place(settings), places[0]
            reason = f"is not the warehouse of {owner}, whose tables lie in {place}, and nothing was touched"
            hint = f"Check TIDEMARK_WAREHOUSE_URL and TIDEMARK_CATALOG_URL. {_ABSOLUTE}: {place}"
            raise LakehouseError(here, reason, hint)
    if mark is None or mark.place is None or carried is None or places is None:
        return False
    return ledger is None or (ledger.require(mark.lake, mark) and mark.ledger is not None)


def enter_catalog(tables: JavaTables, mark: Mark) -> None:
    """Let the catalog carry the mark's identities."""
    namespace, properties = f"{tables.catalog_name}.{NAMESPACE}", {PROPERTY: mark.id, _LAKE_PROPERTY: mark.lake}
    listed = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    # Two processes that create the lake at once write the same rows.
    again(lambda: tables.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}"))
    again(lambda: tables.spark.sql(f"ALTER NAMESPACE {namespace} SET PROPERTIES ({listed})"))


def lake_of(mark: Mark | None, of_catalog: Mapping[str, str]) -> str | None:
    """Return the identity that the lake keeps in every catalog it is attached to; None for a lake without marks."""
    # Where somebody removed the warehouse's mark, the catalog still has the identity.
    return mark.lake if mark is not None else of_catalog.get(_LAKE_PROPERTY, of_catalog.get(PROPERTY))


def catalog_place(settings: Settings) -> str:
    """Describe the catalog for messages: name and address, without user, password and options."""
    return f"catalog {settings.catalog_name} ({bare_url(settings.catalog_url)})"


def unknown_lake(settings: Settings, identity: str) -> LakehouseError:
    """Return the error for a warehouse whose tables the catalog does not know."""
    mark = read_mark(settings)
    owner = "" if mark is None or mark.catalog is None else f" of {mark.owner}"
    return LakehouseError(
        settings.warehouse_url,
        f"holds tables{owner} ({identity}) that {catalog_place(settings)} does not know, and nothing was touched",
        f"{_CHECK_SETTINGS}: a mistyped catalog is not a lost one; only where it is lost, tidemark attach shows whose lake an "
        "empty one would take",
    )


def _complete(
    tables: JavaTables,
    settings: Settings,
    mark: Mark | None,
    of_catalog: Mapping[str, str],
    ledger: LakeOfLedger | None,
) -> None:
    """Mark the warehouse, then the catalog with the warehouse's identity, then the ledger with the lake's.

    If the process dies in between, the next one whose catalog knows the tables, or that finds no tables, completes the marks.
    """
    if mark is None or mark.place is None or (ledger is not None and mark.ledger is None):
        identity = of_catalog.get(PROPERTY) or str(uuid.uuid4())
        whole = (mark or Mark(identity, lake_of(None, of_catalog) or identity)).here(settings)
        if ledger is not None:
            whole = whole.of_ledger(ledger.identity(), ledger.url)
        whole.write(settings, is_first=mark is None)
        mark = read_mark(settings) or whole
        if ledger is not None:
            ledger.require(mark.lake, mark)
    enter_catalog(tables, mark)
    if ledger is not None:
        ledger.bind(mark.lake)


def _is_known(tables: JavaTables, settings: Settings, ours: Collection[Table]) -> bool:
    """True for a lake that the catalog knows, False where there is none yet; raises LakehouseError for one of another catalog."""
    if any(map(tables.exists, ours)):
        return True
    for objects in (LakeObjects(tables.place(table)) for table in ours):
        if (used := first_use(objects)) is not None:
            raise unknown_lake(settings, f"{objects.url}/{used}")
    return False
