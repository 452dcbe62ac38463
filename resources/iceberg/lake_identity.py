"""One lake: warehouse, catalog, ledger and all tables' places belong together, or nothing is touched."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import URL, make_url

from pipeline_assets.domain.errors import NEWER_TIDEMARK, LakehouseError, LedgerError
from pipeline_assets.domain.places import is_below, is_rest_catalog, resolved
from pipeline_assets.domain.plain_text import sql_text
from pipeline_assets.domain.settings import Settings
from resources.iceberg import catalog_at_rest
from resources.iceberg.lake_objects import LakeObjects

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table
    from resources.iceberg.metadata import JavaTables
    from resources.ledger.store import LakeOfLedger


MARKER = "warehouse.json"
FORMAT = 3
"""Format of the tables and of `_tidemark/`; raised where two versions would misread each other."""
_EARLIER_LAKE = "Load the exports into a new, empty warehouse, with a new catalog and a new ledger"


@dataclass(frozen=True)
class Mark:
    """The identity of the lake in this warehouse."""

    id: str
    """The identity that the one permitted catalog carries too; attaching changes it."""
    lake: str
    """The permanent identity of the lake, which the ledger carries too."""
    catalog: str | None = None
    catalog_url: str | None = None
    """For messages: without user, password and options, like `ledger_url`."""
    place: str | None = None
    ledger: str | None = None
    """The identity of the one permitted ledger."""
    ledger_url: str | None = None
    made_at: str | None = None

    @property
    def owner(self) -> str:
        """The catalog, for messages."""
        return f"catalog {self.catalog or 'without a name'} ({self.catalog_url or 'its address is not on record'})"

    def here(self, settings: Settings) -> Mark:
        """Return the mark with the catalog and place of these settings."""
        url, place = bare_url(settings.catalog_url), settings.warehouse_url
        return replace(self, catalog=settings.catalog_name, catalog_url=url, place=place)

    def of_ledger(self, identity: str, url: str) -> Mark:
        """Return the mark with this ledger."""
        return replace(self, ledger=identity, ledger_url=bare_url(url))

    def write(self, settings: Settings, *, is_first: bool = False) -> None:
        """Write the mark atomically; with `is_first` only where there is none, as another process may create the lake too."""
        body = {"format": FORMAT, **asdict(self), "made_at": datetime.now(UTC).isoformat()}
        objects = LakeObjects.of(settings)
        (objects.put if is_first else objects.replace)(MARKER, json.dumps(body, indent=1).encode())


def bare_url(url: str) -> str:
    """Return a database's URL without user, password and options; a REST catalog's address holds none."""
    if is_rest_catalog(url):
        return url
    parsed = make_url(url)
    bare = URL.create(parsed.drivername, host=parsed.host, port=parsed.port, database=parsed.database)
    return bare.render_as_string()


def read_mark(settings: Settings) -> Mark | None:
    """Return the warehouse's mark, None without one; raises LakehouseError for an unreadable one."""
    objects = LakeObjects.of(settings)
    subject = f"{objects.url}/{MARKER}"
    if (body := objects.get(MARKER)) is None:
        return None
    try:
        given = json.loads(body)
        written_in = int(given.get("format", 1))
        if written_in != FORMAT:
            age, remedy = ("a newer", NEWER_TIDEMARK) if written_in > FORMAT else ("an earlier", _EARLIER_LAKE)
            known = f"(format {written_in}; this one knows {FORMAT}), and nothing was touched"
            raise LakehouseError(subject, f"{age} Tidemark wrote this warehouse {known}", remedy)
        identities = {name: str(uuid.UUID(given[name])) for name in ("id", "lake")}
        texts = {field.name: str(given[field.name]) for field in fields(Mark) if given.get(field.name) is not None}
        return Mark(**{**texts, **identities})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        hint = "Restore it, or remove it: the next load writes it"
        raise LakehouseError(subject, "is no identity of a warehouse", hint) from None


PROPERTY = "tidemark.warehouse-id"
_LAKE_PROPERTY = "tidemark.lake-id"
NAMESPACE = "raw"
"""Its properties hold the identity: it exists as long as the tables, in every type of catalog."""
_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between checks: a mismatch may come from another process that is creating the same lake."""
_CHECK_SETTINGS = "Check TIDEMARK_CATALOG_URL, TIDEMARK_CATALOG_NAME and TIDEMARK_WAREHOUSE_URL"
_ABSOLUTE = (
    "Another lake begins with an empty warehouse, a catalog and a ledger of its own; to use this one, restore, mount or link it "
    "where its tables lie, as Iceberg's paths are absolute"
)


class Purpose(IntEnum):
    """The caller's intention; each value permits all that earlier ones permit."""

    LOOK = 1
    KEEP = 2
    """Also change tables, and complete the mark of a lake that this catalog knows."""
    BEGIN = 3
    """Also create a lake where there is none."""


def require_own_lake(
    tables: JavaTables, settings: Settings, ours: Collection[Table], purpose: Purpose, ledger: LakeOfLedger | None
) -> None:
    """Raise LakehouseError or LedgerError unless the parts belong together; writes missing marks where the purpose allows it.

    The next process completes the marks after a crash. `ledger`: None while another one is attached.
    """

    def outside() -> list[str]:
        # Load the tables instead of listing them: an unmounted warehouse has the same address and no files.
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
            # An empty ledger needs a mark that names it: the process that wrote both died in between.
            if ledger is not None and not is_bound and is_lake and (mark is None or mark.ledger is None):
                raise ledger.stranger("whose records it does not hold")
        except (LakehouseError, LedgerError):
            if pause is None:
                raise
            time.sleep(pause)
            continue
        if purpose < (Purpose.KEEP if is_lake else Purpose.BEGIN):
            return
        if mark is None or mark.place is None or (ledger is not None and mark.ledger is None):
            identity = of_catalog.get(PROPERTY) or str(uuid.uuid4())
            whole = (mark or Mark(identity, lake_of(None, of_catalog) or identity)).here(settings)
            if ledger is not None:
                whole = whole.of_ledger(ledger.identity(), ledger.url)
            whole.write(settings, is_first=mark is None)
            mark = read_mark(settings) or whole
            if ledger is not None:
                ledger.require(mark.lake, mark)
        tables.set_namespace_properties(NAMESPACE, {PROPERTY: mark.id, _LAKE_PROPERTY: mark.lake})
        if ledger is not None:
            ledger.bind(mark.lake)


def is_one_lake(
    settings: Settings,
    of_catalog: Mapping[str, str] | None,
    outside: Callable[[], Sequence[str] | None],
    purpose: Purpose,
    ledger: LakeOfLedger | None,
) -> bool:
    """Whether all parts name each other, False where uncertain; raises LakehouseError or LedgerError where they differ.

    `of_catalog`: properties of NAMESPACE. `outside` returns tables' locations outside of the warehouse; None if unknown.
    """
    mark, here = read_mark(settings), settings.warehouse_url
    carried = None if of_catalog is None else of_catalog.get(PROPERTY)
    if mark is not None and carried not in (None, mark.id):
        both = f"one carries the identity {mark.id} of {mark.owner}, the other {carried}, and nothing was touched"
        hint = f"{_CHECK_SETTINGS}; where the other catalog took the lake by mistake, take it back: tidemark attach"
        raise LakehouseError(here, f"belongs to another catalog than {catalog_place(settings)}: {both}", hint)
    places: Sequence[str] | None = ()
    if purpose > Purpose.LOOK:
        named = here if mark is None or mark.place is None else mark.place
        if resolved(named) != resolved(here):
            reason = f"is a copy of a lake whose place is {named}, and nothing was touched"
            raise LakehouseError(here, reason, f"{_ABSOLUTE}: {named}")
        places = outside()
        if places:
            owner = f"{catalog_place(settings)}, whose tables lie in {places[0]}"
            hint = f"Check TIDEMARK_WAREHOUSE_URL and TIDEMARK_CATALOG_URL. {_ABSOLUTE}: {places[0]}"
            raise LakehouseError(here, f"is not the warehouse of {owner}, and nothing was touched", hint)
    if mark is None or mark.place is None or carried is None or places is None:
        return False
    return ledger is None or (ledger.require(mark.lake, mark) and mark.ledger is not None)


def lake_of(mark: Mark | None, of_catalog: Mapping[str, str]) -> str | None:
    """Return the identity that the lake keeps in every catalog; None for a lake without marks."""
    return mark.lake if mark is not None else of_catalog.get(_LAKE_PROPERTY, of_catalog.get(PROPERTY))


def catalog_place(settings: Settings) -> str:
    """Describe the catalog for messages: name and address, without credentials."""
    return f"catalog {settings.catalog_name} ({bare_url(settings.catalog_url)})"


def unknown_lake(settings: Settings, identity: str) -> LakehouseError:
    """Return the error for a warehouse whose tables the catalog does not know."""
    mark = read_mark(settings)
    owner = "" if mark is None or mark.catalog is None else f" of {mark.owner}"
    reason = f"holds tables{owner} ({identity}) that {catalog_place(settings)} does not know, and nothing was touched"
    lost = "a mistyped catalog is not a lost one; only where it is lost, tidemark attach shows whose lake an empty one would take"
    return LakehouseError(settings.warehouse_url, reason, f"{_CHECK_SETTINGS}: {lost}")


def _is_known(tables: JavaTables, settings: Settings, ours: Collection[Table]) -> bool:
    """True for a lake that the catalog knows, False for none; raises LakehouseError for another catalog's."""
    if any(map(tables.exists, ours)):
        return True
    for objects in (LakeObjects(tables.place(table)) for table in ours):
        if (used := catalog_at_rest.first_use(objects)) is not None:
            raise unknown_lake(settings, f"{objects.url}/{used}")
    return False


@dataclass(frozen=True)
class Attachable:
    """The newest state of one table in the warehouse."""

    table: Table
    metadata_file: str | None = None
    updated_at: datetime | None = None
    snapshot_id: int | None = None
    rows: int = 0
    known_at: str | None = None
    """The metadata file that the catalog names; None where it does not know the table."""
    is_attached: bool = False
    left_out: int = 0
    """Newer metadata files that are ahead of this machine's clock, or of a failed commit or publish."""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def taken_from(tables: JavaTables, settings: Settings) -> Mark | None:
    """Return the mark of another catalog that owns the lake; raises LakehouseError where this catalog belongs to another lake."""
    mark = read_mark(settings)
    of_catalog = tables.namespace_properties(NAMESPACE)
    carried = of_catalog.get(PROPERTY)
    if carried is not None and (mark is None or lake_of(None, of_catalog) != mark.lake):
        reason = f"belongs to another warehouse than {settings.warehouse_url}"
        hint = "Attach to an empty catalog: set TIDEMARK_CATALOG_URL, or TIDEMARK_CATALOG_NAME"
        raise LakehouseError(catalog_place(settings), reason, hint)
    return None if mark is None or carried == mark.id else mark


def attachable(tables: JavaTables, settings: Settings, ours: Sequence[Table]) -> list[Attachable]:
    """Return the newest metadata below each table's location; raises LakehouseError for none, two tables, or another lake."""
    may_be_behind = taken_from(tables, settings) is not None
    never: set[str | None] = set()
    while True:
        candidates = [_attachable(tables, table, never, may_be_behind=may_be_behind) for table in ours]
        if not (
            half := catalog_at_rest.half_published({one.table.key: one.metadata for one in candidates if one.metadata})
        ):
            break
        never |= half
    if all(candidate.metadata_file is None for candidate in candidates):
        hint = "Check TIDEMARK_WAREHOUSE_URL; there is nothing to attach"
        raise LakehouseError(settings.warehouse_url, "holds no metadata of our tables", hint)
    return candidates


def attach(tables: JavaTables, settings: Settings, candidates: Sequence[Attachable]) -> list[Attachable]:
    """Register the tables at their newest state, then mark the catalog; returns the registered ones. A retry completes it."""
    mark = read_mark(settings)
    if mark is None or taken_from(tables, settings) is not None:
        # Fence first: a former catalog that is alive must not commit beside this one, delete this one's files as orphans
        # or write its own mark again.
        identity = str(uuid.uuid4())
        mark = (Mark(identity, identity) if mark is None else replace(mark, id=identity)).here(settings)
        mark.write(settings)
    done = [candidate for candidate in candidates if candidate.metadata_file is not None and not candidate.is_attached]
    for candidate in done:
        namespace = candidate.table.identifier.split(".", maxsplit=1)[0]
        tables.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {settings.catalog_name}.{namespace}")
        if candidate.known_at is not None:
            tables.spark.sql(f"DROP TABLE {tables.identifier(candidate.table)}")
        tables.spark.sql(
            f"CALL {settings.catalog_name}.system.register_table(table => '{candidate.table.identifier}', "
            f"metadata_file => {sql_text(str(candidate.metadata_file))})"
        )
    # Last, so that a catalog with the identity of a lake knows all of its tables.
    tables.set_namespace_properties(NAMESPACE, {PROPERTY: mark.id, _LAKE_PROPERTY: mark.lake})
    return done


def _attachable(tables: JavaTables, table: Table, never: Collection[str | None], *, may_be_behind: bool) -> Attachable:
    place = tables.place(table)
    objects = LakeObjects(place)
    by_table = catalog_at_rest.histories(catalog_at_rest.read_metadata_files(objects, objects.list()))
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
    timely = files if known_at is not None else catalog_at_rest.not_ahead(files, datetime.now(UTC))
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
    name, known = catalog_at_rest.base_name(file.name), catalog_at_rest.base_name(known_at or "")
    if known not in ("", name) and not (may_be_behind and catalog_at_rest.follows(objects, file.name, known)):
        raise LakehouseError(
            tables.identifier(table),
            f"is known to the catalog at {known_at}, while the newest in the warehouse is {file.name}",
            "Where this catalog owns the lake, go on with it as it is; else attach to an empty one, which takes the newest and "
            "loses commits that it does not follow: set TIDEMARK_CATALOG_URL, or TIDEMARK_CATALOG_NAME",
        )
    head, left_out = catalog_at_rest.snapshot_of(whole), files.index(file)
    of_head = int(head["snapshot-id"]), int(head.get("summary", {}).get("total-records", 0))
    return Attachable(table, path, file.updated_at, *of_head, known_at, known == name, left_out, whole)


def _whole(
    objects: LakeObjects, file: catalog_at_rest.MetadataFile, never: Collection[str | None]
) -> dict[str, Any] | None:
    """The parsed metadata; None for that of a failed commit: a truncated file, or one whose snapshot is gone."""
    with suppress(ValueError, KeyError, TypeError):
        whole = catalog_at_rest.content(objects, file.name)
        head = catalog_at_rest.snapshot_of(whole)
        manifests = f"metadata/{catalog_at_rest.base_name(str(head['manifest-list']))}"
        if catalog_at_rest.publish_of(head) not in never and objects.get(manifests, first_bytes=1) is not None:
            return whole
    return None
