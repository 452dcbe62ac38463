"""The two source assets: what the vendor delivered, seen from Dagster.

Lives here: landing/regular_exports and landing/backfill_exports. Put here: what Dagster shows of landing. Keep out:
listing and reading (resources/landing_store.py).
"""

from __future__ import annotations

import dagster as dg

from pipeline_assets.domain.slices import Source

_DESCRIPTIONS = {
    Source.REGULAR: "The vendor's hourly export, below `{project}/`. Partition = the day the objects arrived.",
    Source.BACKFILL: "Manual recovery exports, below `{project}-backfill/`. Partition = the arrival day in their names.",
}


def landing_key(source: Source) -> dg.AssetKey:
    """`landing/regular_exports` or `landing/backfill_exports`."""
    return dg.AssetKey(["landing", f"{source.value}_exports"])


def landing_assets(days: dg.PartitionsDefinition[str]) -> list[dg.AssetSpec]:
    """Both source assets; never materialized by a run, because the vendor writes them."""
    return [
        dg.AssetSpec(
            landing_key(source),
            description=_DESCRIPTIONS[source],
            partitions_def=days,
            group_name="landing",
            kinds={"s3"},
            tags={"layer": "landing"},
        )
        for source in Source
    ]
