"""Skew: how unevenly a step's work is spread over the values of a key and over tasks, and what divides it."""

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
"""An object of more stored bytes may be read by several tasks, each of which decompresses it whole."""
HOT_KEY_ROWS = 100_000
"""A task compares about this many rows that share event keys; the rows of a key with more are divided among tasks."""
MOST_TIMES = 4.0
"""A step is uneven if its largest task has more than this many times the work of the median one."""
MOST_PARTS = 8
"""The most parts of one object: each part decompresses the whole object."""
_AGAIN = 0.1
"""Cost of decompressing a byte, relative to decompressing, parsing, hashing and writing it."""
READS_PER_CORE = 3
"""Tasks per core that read objects, so that a core that finishes early takes another task."""
_FAIR_SHARES = 1.5
"""An object is divided when its work exceeds this many times the work of an even task."""
_LONGEST_NAME = 200


class Share(NamedTuple):
    """The heaviest value of a key, and its share of a step's work."""

    key: str
    """`object`, `project`, `arrival day`, `event day`, `event key`."""
    value: str
    share: float
    """0 to 1."""
    values: int

    @property
    def text(self) -> str:
        """`object 10001/x.gz 60 % of 24`."""
        return f"{self.key} {self.value} {100 * self.share:.0f} % of {self.values:,}"


def share_of(key: str, weights: Iterable[tuple[str, float]]) -> Share:
    """The share of the heaviest value of a key, from values and weights."""
    total: Counter[str] = Counter()
    for value, weight in weights:
        total[value] += weight  # type: ignore[assignment]  # weights may be fractions
    name, heaviest = min(total.items(), key=lambda entry: (-entry[1], entry[0]), default=("", 0.0))
    return Share(key, shown(name, _LONGEST_NAME), heaviest / (total.total() or 1.0), len(total))


def ratio_of(tasks: Sequence[float]) -> float:
    """The work of the largest task over that of the median, or of the mean where the median is 0; 1 where there is no work."""
    usual = (median(tasks) or sum(tasks) / len(tasks)) if tasks else 0.0
    return max(tasks) / usual if usual else 1.0


@dataclass(frozen=True)
class StepSkew:
    """One heavy step: how its work is spread over tasks, as forecast before it begins and as measured after it."""

    table: str
    step: str
    """`read`, `compare`, `write`."""
    unit: str
    """`bytes` or `rows`: the unit of the forecast."""
    shares: tuple[Share, ...]
    forecast: tuple[float, ...]
    """The work of each task."""
    measured: tuple[float, ...] | None = None
    """Rows of each task; None before the step is done."""

    @property
    def text(self) -> str:
        """One line for a log."""
        return (
            f"{self.step}: work of {sum(self.forecast):,.0f} {self.unit} in {len(self.forecast)} tasks, "
            f"largest to median {ratio_of(self.forecast):.1f}: {'; '.join(share.text for share in self.shares)}"
        )

    @property
    def warning(self) -> str | None:
        """Why one task will take long; None where the work is even, or too little to wait for."""
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
    """How many tasks read one object of `size` stored bytes: 1 unless it is large, both absolutely and compared with `total`.

    Each part decompresses the whole object, so there are few parts, and none is smaller than half of `SPLIT_BYTES`.
    """
    even = _FAIR_SHARES * total / max(1, tasks)
    if tasks < 2 or size <= max(even, SPLIT_BYTES):
        return 1
    return max(1, min(MOST_PARTS, math.ceil(size / even), 2 * size // SPLIT_BYTES))


def part_weight(size: int, parts: int) -> float:
    """The work of one part of an object: its own lines, and decompressing the lines of the others."""
    return size / parts + _AGAIN * size * (parts - 1) / parts


def balanced(weights: Sequence[float], tasks: int) -> list[int]:
    """The task of each weight, assigned heaviest first to the emptiest task: at most a third above the optimum."""
    heap = [(0.0, index) for index in range(max(1, min(len(weights), tasks)))]
    task_of = [0] * len(weights)
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        done, task = heapq.heappop(heap)
        task_of[at] = task
        heapq.heappush(heap, (done + weights[at], task))
    return task_of


def hashed_sizes(whole: Mapping[str, int], others: int, tasks: int) -> tuple[float, ...]:
    """Rows of each task where rows are partitioned by the hash of their key: `whole` keys lie on one task each, others evenly."""
    sizes = [others / tasks] * tasks
    task_of = balanced([float(rows) for rows in whole.values()], tasks)
    for task, rows in zip(task_of, whole.values(), strict=True):
        sizes[task] += rows
    return tuple(sizes)
