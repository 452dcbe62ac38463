"""Settings as a publication records them, so that it can be built again with the settings of then.

Contains: their form on record, what differs between two of them, settings made from it.
Add here: another question about recorded settings.
Does not contain: which settings a table reads (tables/), where they are kept
(resources/ledger/rows.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.masking import URL_SETTINGS
from pipeline_assets.domain.settings import Settings

_NEVER = frozenset({*URL_SETTINGS, "spark_config", "notify_urls"})
"""They may hold a password or open a webhook, so that no record holds them."""


def on_record(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    """Name -> value, as JSON has it; without those that may hold secrets."""
    values = {name: getattr(settings, name) for name in sorted(names) if name not in _NEVER}
    recorded: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return recorded


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> value then and now, of the settings whose values differ; None for one that is not on that side."""
    return {
        name: (then.get(name), now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    }


def with_recorded(settings: Settings, recorded: Mapping[str, Any]) -> Settings:
    """The settings with the recorded values in place of their own; raises SettingsError for one that means nothing now.

    A recorded name that is no setting any more is left out: the code that read it is not here either.
    """
    values = {}
    for name, value in recorded.items():
        if name not in type(settings).model_fields:
            continue
        kind: Any = type(settings).model_fields[name].annotation
        try:
            values[name] = TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            reason = f"has the recorded value {value!r}, which this Tidemark cannot read"
            raise SettingsError(name, reason, "Replay it with the version of Tidemark that published it") from error
    return settings.model_copy(update=values)
