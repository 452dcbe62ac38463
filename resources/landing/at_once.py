"""List several folders of a bucket in parallel: each costs a few sequential requests, even an empty one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_AT_ONCE = 16
"""Answers that the caller has not taken yet are held in memory, so no more than this are requested ahead."""
_T = TypeVar("_T")


def each_at_once(ask: Callable[[str], _T], names: Sequence[str]) -> Iterator[tuple[str, _T]]:
    """Yield name and answer in the order of the names; raises the error of the first request that failed."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            yield from zip(part, pool.map(ask, part), strict=True)
