"""How long to wait before something is tried again.

Contains: the pause before each attempt.
Add here: another rule of waiting.
Does not contain: what is tried, and which failures are worth it (domain/errors.py names them).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Pauses that double, with jitter, so that many who failed together do not come back together."""

    attempts: int
    """How often something is tried, the first time included."""
    first_seconds: float = 1.0
    longest_seconds: float = 60.0
    longest_asked_seconds: float = 900.0
    """A server that asks for a longer pause than this is not waited for."""

    def pause_seconds(
        self, attempt: int, asked_seconds: float | None = None, chance: Callable[[], float] = random.random
    ) -> float:
        """The pause after an attempt (from 1): half to all of its share, and on top of what the server asked for."""
        share = min(self.longest_seconds, self.first_seconds * 2.0 ** (attempt - 1))
        jittered = share * (0.5 + chance() / 2)
        return jittered if asked_seconds is None else asked_seconds + min(jittered, self.first_seconds)
