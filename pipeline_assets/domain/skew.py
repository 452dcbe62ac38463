"""Skew: how unevenly the work of a step lies on the values of a key and on its tasks, told before the step and after it.

Contains: shares, sizes of tasks, when an unevenness is worth a warning, how an object is divided.
Add here: another rule about uneven work.
Does not contain: reading weights and telling (load/skew.py), spreading work (transforms/spread.py,
refine_files.py), comparing a hot key apart (transforms/hot_keys.py).
"""

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
"""Of one object: each of them decompresses the whole object."""
AGAIN = 0.1
"""What it takes to decompress a byte, beside what it takes to decompress, parse, hash and write it."""
READS_PER_CORE = 3
"""Tasks that read objects, of each core: so a core that has less to do takes another."""
_FAIR_SHARES = 1.5
"""So many times the work of an even task one object may be before it is divided."""
_LONGEST_NAME = 200


class Unit(StrEnum):
    """What the work of a step is measured in."""

    BYTES = "bytes"
    ROWS = "rows"


@dataclass(frozen=True)
class KeyShare:
    """How the work of a step lies on the values of one key."""

    key: str
    """`object`, `project`, `arrival day`, `event day`, `event key`."""
    values: int
    heaviest: str
    heaviest_share: float
    """Of all work, 0 to 1."""
    null_share: float = 0.0
    """Of all work, that of rows without a value."""

    @property
    def text(self) -> str:
        """`object 10001/x.gz 60 % of 24`."""
        if not self.heaviest:
            return f"{self.key} none {100 * self.null_share:.0f} %"
        without = f", none {100 * self.null_share:.0f} %" if self.null_share else ""
        return f"{self.key} {self.heaviest} {100 * self.heaviest_share:.0f} % of {self.values:,}{without}"


def share_of(key: str, weights: Iterable[tuple[str | None, float]]) -> KeyShare:
    """The heaviest value of a key; None is the bucket of what has no value, and never the heaviest."""
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
    """Of a key whose values nobody counted: the share of rows that have none."""
    return KeyShare(key, 0, "", 0.0, without / rows if rows else 0.0)


@dataclass(frozen=True)
class TaskSizes:
    """How much the tasks of a step have to do."""

    tasks: int
    largest: float
    median: float
    total: float

    @property
    def ratio(self) -> float:
        """The largest task to the median one, to the mean where half of them have nothing; 1 where there is no work."""
        usual = self.median or (self.total / self.tasks if self.tasks else 0.0)
        return self.largest / usual if usual else 1.0

    def exceeds(self, most: float, worth: float) -> bool:
        """Whether the largest task has more than `most` times the usual one, and at least `worth`."""
        return self.ratio > most and self.largest >= worth


def sizes_of(weights: Iterable[float]) -> TaskSizes:
    """The sizes of tasks by what each of them has to do."""
    listed = list(weights)
    if not listed:
        return TaskSizes(0, 0.0, 0.0, 0.0)
    return TaskSizes(len(listed), max(listed), median(listed), sum(listed))


@dataclass(frozen=True)
class StepSkew:
    """One heavy step: what is known of it before it begins, and what its tasks told."""

    table: str
    step: str
    """`read`, `compare`, `write`."""
    unit: Unit
    keys: tuple[KeyShare, ...]
    undivided: TaskSizes
    """As tasks would be if no object were divided and no key were compared apart."""
    forecast: TaskSizes
    warning: str | None = None
    is_uneven: bool = False
    """Whether it is worth a line for people: it is warned of, or would be if nothing were divided."""
    measured: TaskSizes | None = None
    """Rows of its tasks, where these count what they did; None before the step is done."""
    measured_bytes: TaskSizes | None = None
    """The same in bytes, as rows are held in memory."""

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
        """The same with its warning: one task has more than `most` times the median, and at least `worth` of its unit."""
        sizes = self.forecast
        if not sizes.exceeds(most, worth):
            return replace(self, warning=None, is_uneven=self.undivided.exceeds(most, worth))
        # What has one value only is no cause.
        several = [share for share in self.keys if share.values > 1]
        heaviest = max(several, key=lambda share: share.heaviest_share, default=None)
        of = f"; {heaviest.text}" if heaviest is not None else ""
        text = (
            f"the largest task of {self.step} has {sizes.ratio:.1f} times the {self.unit.value} of the median one{of}"
        )
        return replace(self, warning=text, is_uneven=True)

    def as_json(self) -> dict[str, Any]:
        """What the ledger keeps with the run."""
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
    """How many tasks read one object of so many stored bytes, 1 unless it is large for itself and beside `total`.

    Each part decompresses the whole object, so there are few of them, and none smaller than half of `split_bytes`.
    """
    even = _FAIR_SHARES * total / max(1, tasks)
    if tasks < 2 or size <= max(even, split_bytes):
        return 1
    return max(1, min(MOST_PARTS, math.ceil(size / even), 2 * size // split_bytes))


def part_weight(size: int, parts: int) -> float:
    """What one part of an object weighs: its own lines, and decompressing those of the others."""
    return size / parts + AGAIN * size * (parts - 1) / parts


def balanced(weights: Sequence[float], tasks: int) -> list[int]:
    """The task of each weight, heaviest first to the emptiest task: the largest ends at most a third above the best possible."""
    heap = [(0.0, index) for index in range(max(1, min(len(weights), tasks)))]
    task_of = [0] * len(weights)
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        done, task = heapq.heappop(heap)
        task_of[at] = task
        heapq.heappush(heap, (done + weights[at], task))
    return task_of


def hashed_sizes(hot: Mapping[str, int], others: int, tasks: int) -> TaskSizes:
    """Rows per task where rows are sent to tasks by the hash of their key: a hot key lies on one task whole.

    `hot`: key -> rows; `others`: rows of keys that are each a small part. Several hot keys are taken to meet on no task as
    long as there are enough.
    """
    sizes = [others / tasks] * tasks
    task_of = balanced([float(rows) for rows in hot.values()], tasks)
    for task, rows in zip(task_of, hot.values(), strict=True):
        sizes[task] += rows
    return sizes_of(sizes)
