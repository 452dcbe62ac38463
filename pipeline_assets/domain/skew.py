"""Skew: how unevenly a step's work is spread over keys and tasks, and how it is divided."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from pipeline_assets.domain.plain_text import shown

SPLIT_BYTES = 8 * 1024**2
"""Several tasks may read an object of more stored bytes; each decompresses it whole."""
HOT_KEY_ROWS = 100_000
"""A task compares about this many rows that share event keys; a key with more is divided among tasks."""
MOST_TIMES = 4.0
"""A step is uneven if its largest task has more than this many times the median's work."""
MOST_PARTS = 8
_AGAIN = 0.1
"""Cost of decompressing a byte, relative to decompressing, parsing, hashing and writing it."""
READS_PER_CORE = 3
"""Tasks per core that read objects, so that a core that finishes early takes another."""
_FAIR_SHARES = 1.5
"""An object is divided when its work exceeds this many times an even task's."""
_LONGEST_NAME = 200


class Share(NamedTuple):
    """The heaviest value of a key, and its share of a step's work."""

    key: str
    """`object`, `project`, `arrival day`, `event day`, `event key`."""
    value: str
    share: float
    values: int

    @property
    def text(self) -> str:
        """`object 10001/x.gz 60 % of 24`."""
        return f"{self.key} {self.value} {100 * self.share:.0f} % of {self.values:,}"


def share_of(key: str, weights: Iterable[tuple[str, float]]) -> Share:
    """The share of the heaviest of (value, weight) pairs."""
    total: Counter[str] = Counter()
    for value, weight in weights:
        total[value] += weight  # type: ignore[assignment]  # weights may be fractions
    name, heaviest = min(total.items(), key=lambda entry: (-entry[1], entry[0]), default=("", 0.0))
    return Share(key, shown(name, _LONGEST_NAME), heaviest / (total.total() or 1.0), len(total))


def ratio_of(tasks: Sequence[float]) -> float:
    """The largest task's work over the median's, or the mean's where the median is 0; 1 without work."""
    usual = (median(tasks) or sum(tasks) / len(tasks)) if tasks else 0.0
    return max(tasks) / usual if usual else 1.0


@dataclass(frozen=True)
class StepSkew:
    """How one heavy step's work is spread over tasks, as forecast and as measured."""

    table: str
    step: str
    unit: str
    """Of the forecast: `bytes` or `rows`."""
    shares: tuple[Share, ...]
    forecast: tuple[float, ...]
    measured: tuple[float, ...] | None = None
    """Rows of each task; None before the step is done."""

    @property
    def warning(self) -> str | None:
        """Why one task will take long; None where the work is even or short."""
        if not _is_uneven(self.forecast, SPLIT_BYTES if self.unit == "bytes" else HOT_KEY_ROWS):
            return None
        # A key with only one value cannot be the cause.
        heaviest = max((share for share in self.shares if share.values > 1), key=lambda one: one.share, default=None)
        of = f"; {heaviest.text}" if heaviest is not None else ""
        times = f"{ratio_of(self.forecast):.1f} times the {self.unit}"
        return f"the largest task of {self.step} has {times} of the median one{of}"

    @property
    def is_uneven(self) -> bool:
        """Whether it is warned about, or turned out uneven."""
        return self.warning is not None or _is_uneven(self.measured or (), HOT_KEY_ROWS)

    def as_json(self) -> dict[str, Any]:
        """The JSON form that the ledger keeps with the run."""
        named = {"table": self.table, "step": self.step, "unit": self.unit, "warning": self.warning}
        sizes = {"forecast": _summary(self.forecast), "measured": self.measured and _summary(self.measured)}
        return {**named, "keys": [share._asdict() for share in self.shares], **sizes}


def _is_uneven(tasks: Sequence[float], worth: float) -> bool:
    return ratio_of(tasks) > MOST_TIMES and max(tasks) >= worth


def _summary(tasks: Sequence[float]) -> dict[str, float]:
    ratio = round(ratio_of(tasks), 3)
    return {"tasks": len(tasks), "largest": max(tasks, default=0), "total": sum(tasks), "ratio": ratio}


def parts_of(size: int, total: int, tasks: int) -> int:
    """How many tasks read an object of `size` stored bytes: 1 unless it is large, both absolutely and against `total`."""
    even = _FAIR_SHARES * total / max(1, tasks)
    if tasks < 2 or size <= max(even, SPLIT_BYTES):
        return 1
    return max(1, min(MOST_PARTS, math.ceil(size / even), 2 * size // SPLIT_BYTES))


def part_weight(size: int, parts: int) -> float:
    """The work of one part of an object: its own lines, and decompressing the others."""
    return size / parts + _AGAIN * size * (parts - 1) / parts


def balanced(weights: Sequence[float], tasks: int) -> list[int]:
    """The task of each weight, heaviest first to the emptiest task: at most a third above the optimum."""
    heap = [(0.0, index) for index in range(max(1, min(len(weights), tasks)))]
    task_of = [0] * len(weights)
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        done, task = heapq.heappop(heap)
        task_of[at] = task
        heapq.heappush(heap, (done + weights[at], task))
    return task_of


def hashed_sizes(whole: Mapping[str, int], others: int, tasks: int) -> tuple[float, ...]:
    """Rows of each task under hash partitioning: `whole` keys lie on one task each, others evenly."""
    sizes = [others / tasks] * tasks
    task_of = balanced([float(rows) for rows in whole.values()], tasks)
    for task, rows in zip(task_of, whole.values(), strict=True):
        sizes[task] += rows
    return tuple(sizes)
