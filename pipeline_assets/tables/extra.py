"""Aggregates and dimensions that users define themselves and name in settings as `package.module:NAME`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Any

from pipeline_assets.config import named_value
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import ENV_PREFIX
from pipeline_assets.tables.table import AggregateTable, Dimension

_AGGREGATES, _DIMENSIONS = "extra_aggregates", "extra_dimensions"


def extra_aggregates(taken: Collection[str]) -> tuple[AggregateTable, ...]:
    """The aggregates that the setting names, in its order; `taken` holds the keys of the built-in tables.

    Raises SettingsError if a name does not lead to an aggregate, or if its key is malformed or taken.
    """
    tables: list[AggregateTable] = []
    for name, found in _named(_AGGREGATES):
        if not isinstance(found, AggregateTable):
            raise _refusal(_AGGREGATES, f"{name} is no AggregateTable", "See docs/extending.md")
        if not found.key.startswith("aggregates/"):
            raise _refusal(_AGGREGATES, f"{name} has the key {found.key}", "Name it aggregates/…")
        if found.key in {*taken, *(other.key for other in tables)}:
            raise _refusal(_AGGREGATES, f"{name} has the key of another table, {found.key}", "Give it its own")
        tables.append(found)
    return tuple(tables)


def extra_dimensions(taken: Collection[str]) -> tuple[Dimension, ...]:
    """The dimensions that the setting names, in its order; `taken` holds the names of the built-in dimensions.

    Raises SettingsError if a name does not lead to a dimension, or if the dimension's name is taken.
    """
    dimensions: list[Dimension] = []
    for name, found in _named(_DIMENSIONS):
        if not isinstance(found, Dimension):
            raise _refusal(_DIMENSIONS, f"{name} is no Dimension", "See docs/extending.md")
        if found.name in {*taken, *(other.name for other in dimensions)}:
            raise _refusal(_DIMENSIONS, f"{name} has the name of another dimension, {found.name}", "Give it its own")
        dimensions.append(found)
    return tuple(dimensions)


def _named(setting: str) -> Iterator[tuple[str, Any]]:
    value = named_value(setting)
    names = value.split(",") if isinstance(value, str) else value or ()
    for name in (str(part).strip() for part in names):
        if name:
            yield name, _imported(setting, name)


def _imported(setting: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f"{name} cannot be imported ({type(error).__name__}: {error})"
        raise _refusal(setting, reason, "Write package.module:NAME, and make the package importable") from error


def _refusal(setting: str, reason: str, hint: str) -> SettingsError:
    return SettingsError(f"{ENV_PREFIX}{setting.upper()}", reason, hint)
