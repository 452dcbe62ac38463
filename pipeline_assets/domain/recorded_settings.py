"""Settings as a publication records them, so that a replay can build the slice with the same settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.masking import URL_SETTINGS
from pipeline_assets.domain.settings import Settings

_NEVER = frozenset({*URL_SETTINGS, "spark_config", "notify_urls"})
"""Never recorded, because they may hold a password or a webhook's secret URL."""


def on_record(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    """Name -> value in JSON types, without settings that may hold secrets."""
    values = {name: getattr(settings, name) for name in sorted(names) if name not in _NEVER}
    recorded: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return recorded


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> (value then, value now) of the settings that differ; None where a side lacks the setting."""
    return {
        name: (then.get(name), now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    }


def with_recorded(settings: Settings, recorded: Mapping[str, Any]) -> Settings:
    """The settings with the recorded values in place of the current ones; raises SettingsError for an invalid value.

    A recorded setting that no longer exists is skipped: the code that read it is gone as well.
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
