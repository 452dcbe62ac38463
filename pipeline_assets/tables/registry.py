"""All tables in topological order: the one list for the load, the asset graph and the command line."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from pipeline_assets.config import named_value
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import ENV_PREFIX, KEYS_ADDED, KEYS_CHANGED, KEYS_REMOVED, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.snapshot_lines import folder_of_intervals
from pipeline_assets.tables.aggregates import ACTIVE_USERS, DAILY_REVENUE, EVENT_COUNTS
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM
from pipeline_assets.tables.events import QUARANTINE, RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable, AsOfTable, Dimension, Table

_Kind = TypeVar("_Kind", AggregateTable, Dimension)


def _named(setting: str, kind: type[_Kind], built_in: tuple[_Kind, ...]) -> tuple[_Kind, ...]:
    """Built-in ones, then those named as `package.module:NAME`. Raises SettingsError for an unknown or taken name."""
    found = {one.name: one for one in built_in}
    value = named_value(setting)
    for named in filter(None, map(str.strip, value.split(",") if isinstance(value, str) else value or ())):
        module, _, attribute = named.partition(":")
        reason, hint = "", "See docs/extending.md"
        try:
            one = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            reason = f"cannot be imported ({type(error).__name__}: {error})"
            hint = "Write package.module:NAME, and make the package importable"
        else:
            if not isinstance(one, kind):
                reason = f"is no {kind.__name__}"
            elif one.name in found:
                reason, hint = f"has the name of another {kind.__name__}, {one.name}", "Give it its own"
        if reason:
            raise SettingsError(f"{ENV_PREFIX}{setting.upper()}", f"{named} {reason}", hint)
        found[one.name] = one
    return tuple(found.values())


AGGREGATES = _named("extra_aggregates", AggregateTable, (DAILY_REVENUE, EVENT_COUNTS, ACTIVE_USERS))
DERIVED: tuple[Table, ...] = (REFINED_EVENTS, *AGGREGATES)
ASSET_TABLES: tuple[Table, ...] = (*RAW_TABLES.values(), *DERIVED)
ALL_TABLES: tuple[Table, ...] = (*ASSET_TABLES, QUARANTINE)

DIMENSIONS = _named("extra_dimensions", Dimension, (ITEM,))
AS_OF_TABLES: tuple[AsOfTable, ...] = (ACTIVE_ITEM_EVENTS,)
DIMENSION_TABLES: tuple[Table, ...] = (*(one.snapshot for one in DIMENSIONS), *(one.validity for one in DIMENSIONS))
OPTIONAL_TABLES: tuple[Table, ...] = (*DIMENSION_TABLES, *AS_OF_TABLES)
"""Tables that need delivered dimensions; without these nothing creates the tables or waits for them."""
GRAPH_TABLES: tuple[Table, ...] = (*ASSET_TABLES, *OPTIONAL_TABLES)
EVERY_TABLE: tuple[Table, ...] = (*ALL_TABLES, *OPTIONAL_TABLES)
RESTORABLE: tuple[Table, ...] = (*DERIVED, *OPTIONAL_TABLES)

_BY_KEY = {table.key: table for table in EVERY_TABLE}
SOURCE_OF_TABLE: dict[str, Source] = {table.key: source for source, table in RAW_TABLES.items()}


def table_by_key(key: str) -> Table:
    """Return the table of an asset key such as `refined/events`; raises KeyError for an unknown key."""
    return _BY_KEY[key]


def ancestors(table: Table) -> tuple[Table, ...]:
    """All tables that this table is built from, directly or indirectly, in topological order."""
    wanted = {table.key}
    for other in reversed(EVERY_TABLE):
        wanted |= set(other.upstream) if other.key in wanted else set()
    return tuple(other for other in EVERY_TABLE if other.key in wanted - {table.key})


def with_descendants(table: Table) -> tuple[Table, ...]:
    """The table and all tables built from it, directly or indirectly, in topological order."""
    return (table, *downstream_of(table.key))


def downstream_of(key: str) -> tuple[Table, ...]:
    """All tables built from the table with this key, directly or indirectly, in topological order; raises KeyError."""
    table = table_by_key(key)
    return tuple(other for other in EVERY_TABLE if table in ancestors(other))


def measures_of(key: str) -> tuple[str, ...]:
    """Names of a table's measures, `rows` first; only `rows` for an unknown table."""
    own = _BY_KEY[key].measures if key in _BY_KEY else ()
    return ("rows", *(name for name in own if name != "rows"))


def require_known_dimensions(settings: Settings) -> None:
    """Raise SettingsError if a name in `delivered_intervals` is no dimension, or if its folder belongs to another one."""
    subject, names = "TIDEMARK_DELIVERED_INTERVALS", [dimension.name for dimension in DIMENSIONS]
    for name in settings.delivered_intervals:
        if name not in names:
            raise SettingsError(subject, f"{name[:50]} is no dimension", f"There are {', '.join(names)}")
        if folder_of_intervals(name) in names:
            reason = f"the intervals of {name} would lie in the folder of the dimension {folder_of_intervals(name)}"
            raise SettingsError(subject, reason, "Give that dimension another name")


def require_known_bounds(settings: Settings) -> None:
    """Raise SettingsError if a name in `change_bounds` is not a bounded measure and so would have no effect."""
    shares = (KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED)
    known = {
        f"{table.key}:{name}"
        for table in RESTORABLE
        for name in (*table.measures, *(shares if table.kind.bounds_keys else ()))
    }
    for name in settings.change_bounds:
        if name not in known:
            reason = f"{name} is not a bounded measure"
            raise SettingsError("TIDEMARK_CHANGE_BOUNDS", reason, f"Bounded are {', '.join(sorted(known))}")
