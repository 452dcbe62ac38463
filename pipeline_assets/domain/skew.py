"""Skew: how unevenly a step's work is spread over the values of a key and over tasks, forecast and measured."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any, Self

from pipeline_assets.domain.plain_text import shown

MOST_PARTS = 8
"""The most parts of one object: each part decompresses the whole object."""
AGAIN = 0.1
"""Cost of decompressing a byte, relative to decompressing, parsing, hashing and writing it."""
READS_PER_CORE = 3
"""Tasks per core that read objects, so that a core that finishes early takes another task."""
_FAIR_SHARES = 1.5
"""An object is divided when its work exceeds this many times the work of an even task."""
_LONGEST_NAME = 200


class Unit(StrEnum):
    """The unit in which a step's work is measured."""

    BYTES = "bytes"
    ROWS = "rows"


@dataclass(frozen=True)
class KeyShare:
    """How a step's work is spread over the values of one key."""

    key: str
    """`object`, `project`, `arrival day`, `event day`, `event key`."""
    values: int
    heaviest: str
    heaviest_share: float
    """Share of all work, 0 to 1."""
    null_share: float = 0.0
    """Share of all work, 0 to 1, on rows without a value."""

    @property
    def text(self) -> str:
        """`object 10001/x.gz 60 % of 24`."""
        if not self.heaviest:
            return f"{self.key} none {100 * self.null_share:.0f} %"
        without = f", none {100 * self.null_share:.0f} %" if self.null_share else ""
        return f"{self.key} {self.heaviest} {100 * self.heaviest_share:.0f} % of {self.values:,}{without}"


def share_of(key: str, weights: Iterable[tuple[str | None, float]]) -> KeyShare:
    """The share of a key's heaviest value; `None` collects rows without a value, and is never the heaviest."""
    by_value: dict[str | None, float] = {}
    for value, weight in weights:
        by_value[value] = by_value.get(value, 0.0) + weight
    total = sum(by_value.values())
    without = by_value.pop(None, 0.0)
    if not total:
        return KeyShare(key, len(by_value), "", 0.0)
    name, heaviest = min(by_value.items(), key=lambda entry: (-entry[1], entry[0] or ""), default=("", 0.0))
    return KeyShare(key, len(by_value), shown(name, _LONGEST_NAME), heaviest / total, without / total)


def null_share(key: str, without: int, rows: int) -> KeyShare:
    """The share of rows without a value, for a key whose values were not counted."""
    return KeyShare(key, 0, "", 0.0, without / rows if rows else 0.0)


@dataclass(frozen=True)
class TaskSizes:
    """The distribution of a step's work over its tasks."""

    tasks: int
    largest: float
    median: float
    total: float

    @property
    def ratio(self) -> float:
        """Largest task to median task, or to the mean where the median is 0; 1 where there is no work."""
        usual = self.median or (self.total / self.tasks if self.tasks else 0.0)
        return self.largest / usual if usual else 1.0

    def exceeds(self, most: float, worth: float) -> bool:
        """Whether the largest task has more than `most` times the usual work, and at least `worth`."""
        return self.ratio > most and self.largest >= worth


def sizes_of(weights: Iterable[float]) -> TaskSizes:
    """The distribution, from the work of each task."""
    listed = list(weights)
    if not listed:
        return TaskSizes(0, 0.0, 0.0, 0.0)
    return TaskSizes(len(listed), max(listed), median(listed), sum(listed))


@dataclass(frozen=True)
class StepSkew:
    """One heavy step: the forecast before it begins, and the measurements of its tasks."""

    table: str
    step: str
    """`read`, `compare`, `write`."""
    unit: Unit
    keys: tuple[KeyShare, ...]
    undivided: TaskSizes
    """The tasks as they would be if no object were divided and no key compared separately."""
    forecast: TaskSizes
    warning: str | None = None
    is_uneven: bool = False
    """Whether to show it to people: it has a warning, or would have one if nothing were divided."""
    measured: TaskSizes | None = None
    """Rows per task, where tasks count them; None before the step is done."""
    measured_bytes: TaskSizes | None = None
    """The same in bytes, as held in memory."""

    @property
    def text(self) -> str:
        """One line for a log."""
        apart = f" ({self.undivided.ratio:.1f} undivided)" if self.undivided != self.forecast else ""
        keys = "; ".join(share.text for share in self.keys)
        return (
            f"{self.step}: work of {self.forecast.total:,.0f} {self.unit.value} in {self.forecast.tasks} tasks, "
            f"largest to median {self.forecast.ratio:.1f}{apart}: {keys}"
        )

    def judged(self, most: float, worth: float) -> Self:
        """The step with its warning, if one task exceeds `most` times the median and has at least `worth` units."""
        sizes = self.forecast
        if not sizes.exceeds(most, worth):
            return replace(self, warning=None, is_uneven=self.undivided.exceeds(most, worth))
        # A key with only one value cannot be the cause.
        several = [share for share in self.keys if share.values > 1]
        heaviest = max(several, key=lambda share: share.heaviest_share, default=None)
        of = f"; {heaviest.text}" if heaviest is not None else ""
        text = (
            f"the largest task of {self.step} has {sizes.ratio:.1f} times the {self.unit.value} of the median one{of}"
        )
        return replace(self, warning=text, is_uneven=True)

    def as_json(self) -> dict[str, Any]:
        """The JSON form that the ledger keeps with the run."""
        sizes = {
            name: None if told is None else asdict(told) | {"ratio": round(told.ratio, 3)}
            for name, told in (
                ("undivided", self.undivided),
                ("forecast", self.forecast),
                ("measured", self.measured),
                ("measured_bytes", self.measured_bytes),
            )
        }
        keys = [asdict(share) for share in self.keys]
        named = {"table": self.table, "step": self.step, "unit": self.unit.value, "warning": self.warning}
        return {**named, "keys": keys, **sizes}


def parts_of(size: int, total: int, tasks: int, split_bytes: int) -> int:
    """How many tasks read one object of `size` stored bytes: 1 unless it is large, both absolutely and compared with `total`.

    Each part decompresses the whole object, so there are few parts, and none is smaller than half of `split_bytes`.
    """
    even = _FAIR_SHARES * total / max(1, tasks)
    if tasks < 2 or size <= max(even, split_bytes):
        return 1
    return max(1, min(MOST_PARTS, math.ceil(size / even), 2 * size // split_bytes))


def part_weight(size: int, parts: int) -> float:
    """The work of one part of an object: its own lines, and decompressing the lines of the others."""
    return size / parts + AGAIN * size * (parts - 1) / parts


def balanced(weights: Sequence[float], tasks: int) -> list[int]:
    """The task of each weight, assigned heaviest first to the emptiest task: at most a third above the optimum."""
    heap = [(0.0, index) for index in range(max(1, min(len(weights), tasks)))]
    task_of = [0] * len(weights)
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        done, task = heapq.heappop(heap)
        task_of[at] = task
        heapq.heappush(heap, (done + weights[at], task))
    return task_of


def hashed_sizes(hot: Mapping[str, int], others: int, tasks: int) -> TaskSizes:
    """Rows per task where rows are partitioned by the hash of their key, so that one task gets all rows of a hot key.

    `hot`: key -> rows; `others`: rows of all other keys, each with few. Hot keys are assumed to land on different tasks as
    long as there are enough tasks.
    """
    sizes = [others / tasks] * tasks
    task_of = balanced([float(rows) for rows in hot.values()], tasks)
    for task, rows in zip(task_of, hot.values(), strict=True):
        sizes[task] += rows
    return sizes_of(sizes)
