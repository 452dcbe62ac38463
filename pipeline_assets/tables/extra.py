"""Aggregates of a user's own, named in the setting `extra_aggregates` as `package.module:NAME`.

Contains: importing them, and refusing what is none.
Add here: another kind of table that users may bring.
Does not contain: the order of tables (registry.py), what a table is (table.py).
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from pipeline_assets.config import named_value
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.tables.table import AggregateTable

_SETTING = "extra_aggregates"
_VARIABLE = "TIDEMARK_EXTRA_AGGREGATES"


def extra_aggregates(taken: Collection[str]) -> tuple[AggregateTable, ...]:
    """The tables that the setting names, in its order; `taken`: keys of the tables that are built in.

    Raises SettingsError for a name that leads to no aggregate, or to one whose key is taken.
    """
    value = named_value(_SETTING)
    names = value.split(",") if isinstance(value, str) else value or ()
    tables: list[AggregateTable] = []
    for name in (str(part).strip() for part in names):
        if name:
            table = _imported(name)
            if table.key in {*taken, *(other.key for other in tables)}:
                raise SettingsError(_VARIABLE, f"{name} has the key of another table, {table.key}", "Give it its own")
            tables.append(table)
    return tuple(tables)


def _imported(name: str) -> AggregateTable:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f"{name} cannot be imported ({type(error).__name__}: {error})"
        raise SettingsError(_VARIABLE, reason, "Write package.module:NAME, and make the package importable") from error
    if not isinstance(found, AggregateTable):
        raise SettingsError(_VARIABLE, f"{name} is no AggregateTable", "See docs/extending.md")
    if not found.key.startswith("aggregates/"):
        raise SettingsError(_VARIABLE, f"{name} has the key {found.key}", "Name it aggregates/…")
    return found
