"""How often something is tried, and how long is waited in between.

Contains: tries with pauses that double; pauses with jitter that heed what a server asks for.
Add here: another rhythm of trying.
Does not contain: which failures are tried again (resources/iceberg/errors.py,
resources/ledger/engine.py, resources/export_api/), when a sensor tries a day again
(orchestration/sensors/cursor.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def tries(count: int, first_pause_seconds: float) -> Iterator[bool]:
    """Yield `count` times whether this try is the last; sleep before each further one, twice as long as before the one before.

    Seven tries with a first pause of 0.1 s last about six seconds.
    """
    for number in range(count - 1):
        yield False
        time.sleep(first_pause_seconds * 2**number)
    yield True


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
