"""Jobs: which part of the graph runs together.

Lives here: job names and selections. Put here: a new job. Keep out: when they run (sensors.py).
"""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.slices import Source
from pipeline_assets.load_events import asset_key
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import DERIVED

JOB_OF_SOURCE = {Source.REGULAR: "daily_load", Source.BACKFILL: "backfill_load"}
_DESCRIPTIONS = {
    Source.REGULAR: "Load the regular exports that arrived on the chosen days, and everything downstream.",
    Source.BACKFILL: "Load the recovery exports of the chosen days, and everything downstream.",
}


def load_jobs() -> list[dg.UnresolvedAssetJobDefinition]:
    """`daily_load` and `backfill_load`: one source each, then the same derived tables (law 3)."""
    return [
        dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(asset_key(RAW_TABLES[source]), *map(asset_key, DERIVED)),
            description=_DESCRIPTIONS[source],
            tags={"tidemark/source": source.value},
        )
        for source, name in JOB_OF_SOURCE.items()
    ]
