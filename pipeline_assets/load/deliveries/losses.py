"""What of a batch is lost: objects without a later delivery of their hour, and rows that nothing came in place of.

Contains: these two questions to a plan.
Add here: another way in which rows of a batch are lost, or replaced.
Does not contain: the bound on losses (verdicts.py), the plan itself (plan.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline_assets.domain.records import THIS_LOAD, DeliveryRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.plan import BatchPlan


@dataclass(frozen=True)
class Loss:
    """What raw would lose of a batch."""

    keys: tuple[str, ...] = ()
    """Objects that landing lost, or holds a version of that cannot be read."""
    rows: int = 0
    """By which the hours of these objects shrink."""


def without_successor(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[str, ...]:
    """Of the objects that are gone, those that brought rows in an hour that lists nothing that was delivered after them.

    Told from the ledger, since copying gives objects other times and etags. `read`: listed versions as they were read; before
    it is read, another version counts as a new delivery. An excluded object replaces nothing.
    """
    latest: dict[int | None, str] = {}
    for listed in plan.listed.values():
        known = read.get(listed.key) or plan.recorded.get(listed.key)
        is_new = known is None or (known.etag != listed.etag and known.sha256 is not None)
        at = THIS_LOAD if known is None or is_new else known.recorded_at
        latest[listed.hour] = max(latest.get(listed.hour, ""), at)

    def is_replaced(gone: DeliveryRecord) -> bool:
        return not gone.rows or latest.get(plan.hour_of(gone.object_key, settings), "") > gone.recorded_at

    is_empty = not (plan.listed or plan.excluded)
    return tuple(key for key in plan.gone if is_empty or not is_replaced(plan.recorded[key]))


def loss_of(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> Loss:
    """The objects that a batch loses, and the rows of their hours that nothing came in place of.

    Rows that are read in their place are no loss; nor are those of an hour of which landing lists nothing but what was delivered
    after them, with as many rows: an earlier load read the rewritten hour.
    """
    came = plan.listed.keys() & read.keys()
    broken = [key for key in sorted(came & plan.recorded.keys()) if read[key].error and plan.recorded[key].rows]
    gone: Counter[int | None] = Counter()
    gone_at: dict[int | None, str] = {}
    for key in plan.let_go:
        hour, record = plan.hour_of(key, settings), plan.recorded[key]
        gone[hour] += record.rows
        gone_at[hour] = max(gone_at.get(hour, ""), record.recorded_at)
    left: dict[int | None, list[DeliveryRecord]] = {}
    for key, listed in plan.listed.items():
        known = read.get(key) or plan.recorded.get(key)
        if known is not None:
            left.setdefault(listed.hour, []).append(known)
    lost = Counter(gone)
    for hour, at in gone_at.items():
        is_later = all(record.recorded_at > at for record in left.get(hour, ()))
        if is_later and sum(record.rows for record in left.get(hour, ())) >= gone[hour]:
            lost[hour] = 0
    hours = {*gone, *(plan.listed[key].hour for key in broken)}
    for key in came:
        former = plan.recorded[key].rows if key in plan.recorded else 0
        lost[plan.listed[key].hour] += former - read[key].rows
    return Loss((*plan.let_go, *broken), sum(max(0, lost[hour]) for hour in hours))
