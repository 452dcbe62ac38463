"""Aggregates and dimensions that users define themselves and name in settings as `package.module:NAME`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import import_module
from typing import TypeVar

from pipeline_assets.config import named_value
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import ENV_PREFIX
from pipeline_assets.tables.table import AggregateTable, Dimension

_Kind = TypeVar("_Kind")
_AGGREGATES, _DIMENSIONS = "extra_aggregates", "extra_dimensions"


def extra_aggregates(taken: Collection[str]) -> tuple[AggregateTable, ...]:
    """The aggregates that the setting names, in its order; `taken` holds the keys of the built-in tables.

    Raises SettingsError if a name does not lead to an aggregate, or if its key is malformed or taken.
    """
    tables: dict[str, AggregateTable] = {}
    for name, found in _named(_AGGREGATES, AggregateTable):
        if not found.key.startswith("aggregates/"):
            raise _refusal(_AGGREGATES, f"{name} has the key {found.key}", "Name it aggregates/…")
        if found.key in {*taken, *tables}:
            raise _refusal(_AGGREGATES, f"{name} has the key of another table, {found.key}", "Give it its own")
        tables[found.key] = found
    return tuple(tables.values())


def extra_dimensions(taken: Collection[str]) -> tuple[Dimension, ...]:
    """The dimensions that the setting names, in its order; `taken` holds the names of the built-in dimensions.

    Raises SettingsError if a name does not lead to a dimension, or if the dimension's name is taken.
    """
    dimensions: dict[str, Dimension] = {}
    for name, found in _named(_DIMENSIONS, Dimension):
        if found.name in {*taken, *dimensions}:
            raise _refusal(_DIMENSIONS, f"{name} has the name of another dimension, {found.name}", "Give it its own")
        dimensions[found.name] = found
    return tuple(dimensions.values())


def _named(setting: str, kind: type[_Kind]) -> Iterator[tuple[str, _Kind]]:
    value = named_value(setting)
    names = value.split(",") if isinstance(value, str) else value or ()
    for name in filter(None, (str(part).strip() for part in names)):
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            reason = f"{name} cannot be imported ({type(error).__name__}: {error})"
            raise _refusal(setting, reason, "Write package.module:NAME, and make the package importable") from error
        if not isinstance(found, kind):
            raise _refusal(setting, f"{name} is no {kind.__name__}", "See docs/extending.md")
        yield name, found


def _refusal(setting: str, reason: str, hint: str) -> SettingsError:
    return SettingsError(f"{ENV_PREFIX}{setting.upper()}", reason, hint)
