"""The two source assets: what the vendor delivered, seen from Dagster.

Lives here: landing/regular_exports and landing/backfill_exports. Put here: what Dagster shows of landing. Keep out:
listing and reading (resources/landing_store.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import dagster as dg

from pipeline_assets.domain.deliveries import Delivery, Marker
from pipeline_assets.domain.slices import Source

_DESCRIPTIONS = {
    Source.REGULAR: "The vendor's hourly export, below `{project}/`. Partition = the day the objects arrived.",
    Source.BACKFILL: "Manual recovery exports, below `{project}-backfill/`. Partition = the arrival day in their names.",
}


def landing_key(source: Source) -> dg.AssetKey:
    """`landing/regular_exports` or `landing/backfill_exports`."""
    return dg.AssetKey(["landing", f"{source.value}_exports"])


def delivered(
    source: Source, day: date, deliveries: Sequence[Delivery], markers: Sequence[Marker]
) -> dg.AssetMaterialization:
    """What Dagster is told of an arrival day, all projects together."""
    hours = {(one.batch.project_id, one.hour) for one in deliveries}
    complete = {(one.batch.project_id, one.hour) for one in markers}
    return dg.AssetMaterialization(
        landing_key(source),
        partition=day.isoformat(),
        metadata={
            "objects": len(deliveries),
            "bytes": sum(one.size_bytes for one in deliveries),
            "hours_delivered": len(hours),
            "hours_complete": len(complete),
            "projects": ", ".join(sorted({project for project, _ in hours | complete})),
        },
    )


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
