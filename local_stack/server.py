"""The description of a server: how to start it, check its health and stop it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline_assets.domain.errors import PermanentError


class StackError(PermanentError):
    """The stack, or a part of it, did not start or did not stop."""


class ServerError(StackError):
    """A server did not start; `last_lines` is the end of its log."""

    def __init__(self, subject: str, reason: str, hint: str, last_lines: tuple[str, ...]) -> None:
        super().__init__(subject, reason, hint)
        self.last_lines = last_lines


def _nothing() -> None:
    """Do nothing: the default of a server without an extra step."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One process of the stack, which leads a session, with all that it starts."""

    name: str
    command: tuple[str, ...]
    """Must hold no secret: every user of the machine can read it."""
    environment: Mapping[str, str]
    """The complete environment; nothing is inherited."""
    folder: Path
    """The working folder."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Setting -> port that the server listens on."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Setting -> value of all options of the stack, which cannot change while one of its servers runs."""
    is_well: Callable[[], bool]
    """Whether the server answers; must not raise."""
    prepare: Callable[[], None] = _nothing
    """Runs before the start."""
    complete: Callable[[], None] = _nothing
    """Runs once the server answers."""
    stop_signal: signal.Signals = signal.SIGTERM
    user: str | None = None
    """The user to run as; None for the caller."""
    patience_seconds: float = 120
    """How long it may take until it answers."""
