"""The inputs of a slice as comparable values, and the inputs of a refused change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.masking import URL_SETTINGS
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest


class InputDay(NamedTuple):
    """One day of an upstream table, of the same project as the slice that it is an input of."""

    table: str
    day: date


@dataclass(frozen=True)
class InputState:
    """The inputs that a slice was built from, or would be built from now."""

    upstream: Mapping[InputDay, Digest] = field(default_factory=dict)
    """Upstream day -> digest of its content, for days that hold rows."""
    cross_day: str | None = None
    """Digest of the rows on other days that share a key with this slice's rows, marked where content alone decides between them
    (`identity.with_tie`); None where they were not compared."""
    delivered: str | None = None
    """Version of the landing object that the slice was read from; None for slices built from tables."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is no input at all."""
        return not self.upstream and self.cross_day is None and self.delivered is None

    def __str__(self) -> str:
        """Render the inputs; equal inputs give equal texts, in whatever order they were read."""
        days = [f"{name.table} {name.day.isoformat()} {digest}" for name, digest in sorted(self.upstream.items())]
        days += [f"rows on other days {self.cross_day}"] if self.cross_day is not None else []
        return ", ".join([*days, self.delivered] if self.delivered is not None else days)


@dataclass(frozen=True)
class Rejection:
    """A change that was not published: a load does not try it again until one of these values differs."""

    inputs: InputState
    judged_by: str | None = None
    """The code version and bounds that judged it; None in rows that lack them, so that the change is tried again."""
    waits_for: tuple[date, ...] = ()
    """Days of the same project that cannot be published and share events with it; empty where its own checks failed."""


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
