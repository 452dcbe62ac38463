"""Retries: how many, and how long to pause in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def tries(count: int, first_pause_seconds: float) -> Iterator[bool]:
    """Yield, for each of `count` tries, whether it is the last; sleep before each further try, twice as long each time.

    Seven tries with a first pause of 0.1 s last about six seconds.
    """
    for number in range(count - 1):
        yield False
        time.sleep(first_pause_seconds * 2**number)
    yield True


@dataclass(frozen=True)
class Backoff:
    """Doubling pauses with jitter, so that clients that failed together do not retry together."""

    attempts: int
    """Number of tries, including the first."""
    first_seconds: float = 1.0
    longest_seconds: float = 60.0
    longest_asked_seconds: float = 900.0
    """If a server requests a longer pause than this, the caller gives up."""

    def pause_seconds(
        self, attempt: int, asked_seconds: float | None = None, chance: Callable[[], float] = random.random
    ) -> float:
        """Seconds to pause after attempt 1, 2, ...: 50 to 100 % of its share, or slightly more than the server requested."""
        share = min(self.longest_seconds, self.first_seconds * 2.0 ** (attempt - 1))
        jittered = share * (0.5 + chance() / 2)
        return jittered if asked_seconds is None else asked_seconds + min(jittered, self.first_seconds)
