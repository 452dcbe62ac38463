"""Assigns objects to tasks: every task reads about as many bytes, in the order of names; several tasks share a large object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.skew import balanced, part_weight, parts_of

_OBJECT_COST_BYTES = 64 * 1024
"""The cost of a request, in bytes read: thousands of empty hours are work too."""


@dataclass(frozen=True)
class Share:
    """The part of an object that one task reads: number `part` of `parts`, from 0."""

    delivery: Delivery
    part: int = 0
    parts: int = 1

    @property
    def weight(self) -> float:
        """The cost of reading it, in bytes: stored bytes plus a fixed cost per request."""
        return part_weight(self.delivery.size_bytes, self.parts) + _OBJECT_COST_BYTES

    @property
    def order(self) -> tuple[str, date, str, int]:
        """Its place within a task."""
        batch = self.delivery.batch
        return batch.project_id, batch.arrival_date, self.delivery.key, self.part


def shares(deliveries: Sequence[Delivery], parallelism: int, split_bytes: int | None = None) -> list[list[Share]]:
    """The shares of each task, so that every task reads about as many bytes, those of a project and arrival day together.

    An object larger than `split_bytes` that far exceeds an even share of the work is divided; None divides no object.
    """
    total = sum(delivery.size_bytes + _OBJECT_COST_BYTES for delivery in deliveries)
    listed = [
        Share(delivery, part, parts)
        for delivery in deliveries
        for parts in [1 if split_bytes is None else parts_of(delivery.size_bytes, total, parallelism, split_bytes)]
        for part in range(parts)
    ]
    listed.sort(key=lambda share: (-share.weight, share.delivery.key, share.part))
    tasks: list[list[Share]] = [[] for _ in range(max(1, min(len(listed), parallelism)))]
    for share, task in zip(listed, balanced([share.weight for share in listed], parallelism), strict=True):
        tasks[task].append(share)
    return [sorted(task, key=lambda share: share.order) for task in tasks]


def weights(tasks: Iterable[Iterable[Share]]) -> list[float]:
    """The sum of the weights of each task's shares."""
    return [sum(share.weight for share in task) for task in tasks]
