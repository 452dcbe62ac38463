"""Several folders of a bucket are asked for at once: each costs some requests one after the other, whatever it holds.

Contains: the order and the bound of what is asked at once.
Add here: another way to ask.
Does not contain: what is asked (store.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_AT_ONCE = 16
"""What is not yet taken is in memory, so that no more is asked for ahead."""
_T = TypeVar("_T")


def each_at_once(ask: Callable[[str], _T], names: Sequence[str]) -> Iterator[tuple[str, _T]]:
    """Name and answer, in the order of the names; raises what the first of them raises."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            yield from zip(part, pool.map(ask, part), strict=True)
