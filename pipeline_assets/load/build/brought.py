"""What recoveries brought of hours that were missing: by so much a settled slice may grow beyond its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pyspark.sql.functions as F

from pipeline_assets.domain.slices import Source
from pipeline_assets.load.build.builder import Inputs
from pipeline_assets.load.build.builders import builder_of
from pipeline_assets.load.build.step import StagedSlices, TablePlan
from pipeline_assets.load.staleness.decide import SlicePlan
from pipeline_assets.tables.kinds import AGGREGATE
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from resources.iceberg.metadata import slices_condition


def brought_by_recoveries(plan: TablePlan, staged: StagedSlices, decision: SlicePlan) -> Mapping[str, float]:
    """Measure -> by how much the staged rows of these objects raise it; empty where nothing is lifted.

    Only objects count that arrived within the reprocessing window of the day, and that its baseline does not hold.
    """
    record, key, runtime = decision.record, decision.key, plan.runtime
    if record is None or not decision.was_final or plan.table.kind.is_shared:
        return {}
    window = timedelta(days=runtime.settings.reprocessing_window_days)
    first, last = key.event_date, key.event_date + window
    since = (record.baseline.since if record.baseline is not None else None) or record.final_at or ""
    written = runtime.ledger.recoveries.brought(key.project_id, first, last, since)
    if not written:
        return {}
    held = runtime.ledger.deliveries(Source.BACKFILL, [key.project_id], first, last)
    names = [name for name, size in written.items() if name in held and held[name].size_bytes == size]

    snapshot = staged.snapshot_id if plan.table is REFINED_EVENTS else plan.pins[REFINED_EVENTS.key]
    events = runtime.lakehouse.read(REFINED_EVENTS, snapshot).where(slices_condition(REFINED_EVENTS, [key]))
    is_theirs = F.col("_object_key").isin(names)
    if plan.table.kind is not AGGREGATE:
        # No event adds more than one to a count of refined events, or of those that are joined with items.
        return dict.fromkeys(plan.table.measures, events.where(is_theirs).count())
    # Sums would do with these rows alone; of distinct users, some are counted without them.
    inputs = Inputs(runtime, lambda _: events.where(~is_theirs), lambda _: ())
    rows = builder_of(plan.table).rows_from(runtime.settings, key, inputs)
    totals = rows.agg(*[measure.total().alias(name) for name, measure in plan.table.measures.items()]).collect()[0]
    after = staged.audits[key].measures
    # Counts stay integers, by which they are told from money.
    return {name: value - type(value)(totals[name] or 0) for name, value in after.items()}
