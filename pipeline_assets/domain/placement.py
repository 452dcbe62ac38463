"""Where a task runs: in a worker of Spark, or, where there is very little to do, in the process that drives the load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

MOST_READ_BYTES = 4 * 1024**2
"""Most bytes of column chunks that a step may read of existing files in the driving process. Decoding them takes about 0.1 s
and 30 MB there; a Spark job whose workers run already takes as long before it reads a byte."""
FILE_COST_BYTES = 64 * 1024
"""The cost of opening a file or an object, in bytes read."""
MOST_TEXT_BYTES = 4 * 1024**2
"""Most bytes that an object may inflate to in the driving process."""
MOST_ITEMS = 64
"""More than so many files or objects, however small, Spark opens side by side."""
_IS_HERE: ContextVar[bool] = ContextVar("is_here", default=False)


class TooLargeHereError(Exception):
    """A task met more than the driving process should hold; Spark is to run it."""


@contextmanager
def here() -> Iterator[None]:
    """Tasks in the block run in the driving process."""
    token = _IS_HERE.set(True)
    try:
        yield
    finally:
        _IS_HERE.reset(token)


def most_text_bytes(limit: int) -> int:
    """The most bytes that an object may inflate to where this runs; `limit` holds everywhere."""
    return min(limit, MOST_TEXT_BYTES) if _IS_HERE.get() else limit


def require_room(limit: int) -> None:
    """Raise TooLargeHereError where the driving process met its own bound, which is below `limit`."""
    if most_text_bytes(limit) < limit:
        raise TooLargeHereError


@dataclass
class NewBytes:
    """Stored bytes of the objects that a load has found to read so far."""

    count: int = 0

    def begin(self) -> None:
        """Forget what another load read."""
        self.count = 0

    def add(self, size_bytes: int) -> None:
        """Add the objects of one source."""
        self.count += size_bytes
