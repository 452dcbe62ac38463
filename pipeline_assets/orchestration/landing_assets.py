"""The two source assets: what the vendor delivered, seen from Dagster.

Contains: landing/regular_exports and landing/backfill_exports.
Add here: what Dagster shows of landing.
Does not contain: listing and reading (resources/landing/store.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date

import dagster as dg

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.masking import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source

_DESCRIPTIONS = {
    Source.REGULAR: "The vendor's hourly exports, below `{project}/`.",
    Source.BACKFILL: "Manual recovery exports, below `{project}-backfill/`; the daily load never reads them.",
}
_CONTENT = """

**An object** is a gzip file of JSON lines, one event a line, named `{project}_2026-01-25_17#1.json.gz`: project, UTC date and
hour of arrival, shard. **A partition** is an arrival day: objects, bytes and complete hours, reported by the sensor whenever they
change. Nothing here is written by Tidemark."""
_RECOVERY = {
    Source.REGULAR: (
        "**When hours are missing or broken:** have the vendor export them again onto the same names, or recover them below "
        "`{project}-backfill/`; either is loaded without counting anything twice."
    ),
    Source.BACKFILL: (
        "**To recover a day:** put an export of its arrival day here; `backfill_exports_arrived` loads it when it rests, or "
        "`tidemark load --source backfill --from DAY --to DAY` at once."
    ),
}


def landing_key(source: Source) -> dg.AssetKey:
    """`landing/regular_exports` or `landing/backfill_exports`."""
    return dg.AssetKey(["landing", f"{source.value}_exports"])


def delivered(
    source: Source, day: date, deliveries: Sequence[Delivery], complete: Collection[tuple[str, int]]
) -> dg.AssetMaterialization:
    """What Dagster shows of an arrival day, all projects together; `complete`: project and hour."""
    hours = {(delivery.batch.project_id, delivery.hour) for delivery in deliveries}
    return dg.AssetMaterialization(
        landing_key(source),
        partition=day.isoformat(),
        metadata={
            "objects": len(deliveries),
            "bytes": sum(delivery.size_bytes for delivery in deliveries),
            "hours_delivered": len(hours),
            "hours_complete": len(complete),
            "projects": ", ".join(sorted({project for project, _ in (*hours, *complete)})),
        },
    )


def landing_assets(settings: Settings, days: dg.PartitionsDefinition[str]) -> list[dg.AssetSpec]:
    """Both source assets; never materialized by a run, because the vendor writes them."""
    return [
        dg.AssetSpec(
            landing_key(source),
            description=f"{_DESCRIPTIONS[source]}{_CONTENT}\n\n{_RECOVERY[source]}",
            owners=settings.owners,
            metadata={"dagster/uri": shown(settings.landing_url)},
            partitions_def=days,
            group_name="landing",
            kinds={"s3" if settings.landing_url.startswith("s3://") else "file"},
            tags={"layer": "landing"},
        )
        for source in Source
    ]
