"""What of a batch is lost: objects without a later delivery of their hour, and rows that nothing came in place of."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline_assets.domain.records import THIS_LOAD, DeliveryRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.plan import BatchPlan


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


def loss_of(plan: BatchPlan, read: Mapping[str, DeliveryRecord], settings: Settings) -> tuple[tuple[str, ...], int]:
    """The objects that landing lost, or holds a version of that cannot be read, and the rows by which their hours shrink.

    Rows that are read in their place are no loss; nor are those of an hour of which landing lists nothing but what was delivered
    after them, with as many rows: an earlier load read the rewritten hour.
    """
    came = plan.listed.keys() & read.keys()
    broken = [key for key in sorted(came & plan.recorded.keys()) if read[key].error and plan.recorded[key].rows]
    rows, keys = 0, (*plan.let_go, *broken)
    for hour in {plan.hour_of(key, settings) for key in keys}:
        gone = [plan.recorded[key] for key in plan.let_go if plan.hour_of(key, settings) == hour]
        names = {key for key, found in plan.listed.items() if found.hour == hour}
        left = [record for key in names if (record := read.get(key) or plan.recorded.get(key)) is not None]
        lost, last = sum(record.rows for record in gone), max((record.recorded_at for record in gone), default="")
        if all(record.recorded_at > last for record in left) and sum(record.rows for record in left) >= lost:
            lost = 0
        former = sum(plan.recorded[key].rows for key in came & names & plan.recorded.keys())
        rows += max(0, lost + former - sum(read[key].rows for key in came & names))
    return keys, rows
