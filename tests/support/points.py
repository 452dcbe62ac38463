"""The failpoints of single operations, and something that happens at a failpoint, beside a load or another operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from resources import failpoints
from resources.failpoints import Failpoint

OF_MOVES = {Failpoint.AFTER_COPY, Failpoint.AFTER_VERIFY, Failpoint.AFTER_MARKER, Failpoint.AFTER_DELETE}
OF_RECOVERY = {Failpoint.AFTER_DOWNLOAD, Failpoint.AFTER_OBJECT, Failpoint.BEFORE_MARKER}
OF_REBUILDS = {
    *(Failpoint.AFTER_GREEN, Failpoint.AFTER_CHUNK),
    *(Failpoint.BEFORE_REPORT, Failpoint.BEFORE_SWAP, Failpoint.AFTER_SWAPS),
}
OF_ROLLBACKS = {Failpoint.AFTER_LOOK}
OF_TABLE_BY_TABLE = {Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, Failpoint.BEFORE_LEDGER}
"""Points of a publish where no transaction spans tables and ledger."""


class KilledError(BaseException):
    """The process ends here; what it holds in memory is gone."""


@contextmanager
def watching(watcher: Callable[[Failpoint, str], object]) -> Iterator[None]:
    failpoints.watch(watcher)
    try:
        yield
    finally:
        failpoints.watch()


@contextmanager
def once(point: Failpoint, act: Callable[[], object], of: str = "", *, times: int = 1) -> Iterator[list[str]]:
    """`act` runs unwatched where `point` is met first, `of` one table or any; gives the qualifier of each meeting."""
    met: list[str] = []

    def watcher(at: Failpoint, qualifier: str) -> None:
        if at is point and of in ("", qualifier):
            met.append(qualifier)
            if len(met) <= times:
                failpoints.watch()
                act()
                failpoints.watch(watcher)

    with watching(watcher):
        yield met


def die() -> None:
    raise KilledError("it dies here")


@contextmanager
def killed_at(point: Failpoint, of: str = "") -> Iterator[None]:
    with once(point, die, of), pytest.raises(KilledError):
        yield
