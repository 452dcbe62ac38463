"""Objects that came again with bytes that are known: those that a person excluded, and those that raw holds."""

from __future__ import annotations

from dataclasses import replace

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.records import Exclusion
from pipeline_assets.load.deliveries.attempt import Attempt
from pipeline_assets.load.deliveries.plan import BatchPlan, Plan
from pipeline_assets.load.deliveries.read import hashes_of


def skip_excluded(attempt: Attempt, plan: Plan) -> Plan:
    """Excluded bytes that came again under another etag stay excluded, which is recorded of that version as well.

    Returns the plan without them.
    """
    doubtful: dict[str, tuple[BatchPlan, Delivery]] = {
        delivery.key: (batch, delivery)
        for batch in plan.work
        for delivery in batch.changed
        if any(exclusion.sha256 is not None for exclusion in batch.exclusions.get(delivery.key, ()))
    }
    if not doubtful:
        return plan
    again: list[Exclusion] = []
    batches = dict(plan.batches)
    for key, sha256 in hashes_of(attempt, [delivery for _, delivery in doubtful.values()]).items():
        batch, delivery = doubtful[key]
        same = [exclusion for exclusion in batch.exclusions[key] if exclusion.sha256 == sha256]
        if same:
            again.append(replace(same[-1], etag=delivery.etag))
            batches[batch.key] = batches[batch.key].without(again[-1])
    attempt.runtime.ledger.interventions.exclude(again, attempt.request.run_id)
    if again:
        attempt.runtime.log(f"{attempt.table.key}: {len(again)} excluded objects came again with the same bytes")
    return replace(plan, batches=batches)


def skip_touched(attempt: Attempt, plan: Plan) -> Plan:
    """Objects with another etag that may hold the bytes already loaded are hashed, and need no parsing if they do.

    Returns the plan that knows these.
    """
    known = {key: sha256 for batch in plan.work for key, sha256 in batch.known_bytes.items()}
    recorded = {key: record for batch in plan.work for key, record in batch.recorded.items()}
    doubtful = [
        delivery
        for batch in plan.work
        for delivery in batch.changed
        if delivery.key in known and delivery.size_bytes == recorded[delivery.key].size_bytes
    ]
    if not doubtful:
        return plan
    hashes = hashes_of(attempt, doubtful)
    same = [delivery for delivery in doubtful if hashes.get(delivery.key) == known[delivery.key]]
    touched = {
        delivery.key: replace(recorded[delivery.key], etag=delivery.etag, size_bytes=delivery.size_bytes)
        for delivery in same
    }
    if touched:
        attempt.runtime.log(f"{attempt.table.key}: {len(touched)} objects have the bytes already loaded; only hashed")
    return replace(plan, touched=touched)
