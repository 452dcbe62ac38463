"""A server of the set, as a value: how it is started, what says that it is well, how it is asked to end.

Contains: the value, and the errors of a set that does not come up or does not go.
Add here: another thing that every server has to tell.
Does not contain: any one server (postgres.py, objects.py, spark.py, dagster.py), starting and ending
them (supervisor.py).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline_assets.domain.errors import PermanentError


class StackError(PermanentError):
    """The set, or a part of it, did not come up or did not go."""


class ServerError(StackError):
    """A server did not come up; `last_lines` is the end of what it wrote."""

    def __init__(self, subject: str, reason: str, hint: str, last_lines: tuple[str, ...]) -> None:
        super().__init__(subject, reason, hint)
        self.last_lines = last_lines


def _nothing() -> None:
    """Where a server needs no step of its own."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One process of the set, the leader of a session, with all that it starts."""

    name: str
    command: tuple[str, ...]
    """Whoever may look at this machine's processes reads it: it holds no secret."""
    environment: Mapping[str, str]
    """All of it; nothing is inherited."""
    folder: Path
    """Where it runs."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Setting -> port of this machine that the server listens to."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Setting -> value, of all that the set was started with: no server of it can take another one while it runs."""
    is_well: Callable[[], bool]
    """Whether it answers; raises nothing."""
    prepare: Callable[[], None] = _nothing
    """Before it starts."""
    complete: Callable[[], None] = _nothing
    """Once it is well."""
    stop_signal: signal.Signals = signal.SIGTERM
    user: str | None = None
    """Who runs it, where that is another user than the caller."""
    patience_seconds: float = 120
    """Until it answers at the latest."""
