"""The source assets in Dagster: the vendor's deliveries, and the snapshots of dimensions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date

import dagster as dg

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.domain.masking import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.interval_objects import folder_of_intervals
from pipeline_assets.formats.snapshot_lines import folder_of
from pipeline_assets.tables.registry import DIMENSIONS
from pipeline_assets.tables.table import Table

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
    """Return `landing/regular_exports` or `landing/backfill_exports`."""
    return dg.AssetKey(["landing", f"{source.value}_exports"])


def snapshots_key(dimension: str) -> dg.AssetKey:
    """Return for example `landing/item_snapshots`."""
    return dg.AssetKey(["landing", f"{dimension}_snapshots"])


def intervals_key(dimension: str) -> dg.AssetKey:
    """Return for example `landing/item_intervals`."""
    return dg.AssetKey(["landing", f"{dimension}_intervals"])


def source_of(table: Table, settings: Settings) -> dg.AssetKey | None:
    """Return the source asset of a dimension's table; None for a table that is built from other tables."""
    if not table.reads_landing(settings):
        return None
    (name,) = (one.name for one in DIMENSIONS if table in one.tables)
    return intervals_key(name) if table.reads_history(settings) else snapshots_key(name)


def snapshot_delivered(source: dg.AssetKey, day: date, snapshot: SnapshotDelivery) -> dg.AssetMaterialization:
    """Return the materialization of a day's snapshot, or of the history as of that day."""
    return dg.AssetMaterialization(
        source,
        partition=day.isoformat(),
        metadata={
            "object": dg.MetadataValue.text(snapshot.key),
            "bytes": snapshot.size_bytes,
            "is_marked": snapshot.is_marked,
        },
    )


def delivered(
    source: Source, day: date, deliveries: Sequence[Delivery], complete: Collection[tuple[str, int]]
) -> dg.AssetMaterialization:
    """Return the materialization of an arrival day of all projects; `complete` holds (project, hour) pairs."""
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
    """Return the source assets of exports; no run materializes them, because the vendor writes them."""
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


def snapshot_assets(settings: Settings, days: dg.PartitionsDefinition[str]) -> list[dg.AssetSpec]:
    """Return the source assets of dimensions; no run materializes them."""
    return [
        *(_dimension_spec(settings, days, one.name, snapshots_key(one.name), _OF_SNAPSHOTS) for one in DIMENSIONS),
        *(
            _dimension_spec(settings, days, folder_of_intervals(one.name), intervals_key(one.name), _OF_INTERVALS)
            for one in DIMENSIONS
            if one.intervals_are_delivered(settings)
        ),
    ]


_OF_SNAPSHOTS = """The snapshots of the dimension, below `{folder}/`.

**An object** is `DAY.csv` (header `id,name,status`; more columns are kept) or `DAY.jsonl`, and `DAY_complete` says that it is
whole. **A partition** is the day that a snapshot is of. Nothing here is written by Tidemark.

**To correct a day:** put the corrected snapshot on the same name; every load notices it."""
_OF_INTERVALS = """The intervals of the dimension as they are delivered, below `{folder}/`.

**An object** is `DAY.csv` (header `id,status,active_start_date,active_end_date`, an open interval has no end; more columns are
kept) or `DAY.jsonl`: the whole history as of the day. `DAY_complete` says that it is whole. **A partition** is that day. Nothing
here is written by Tidemark.

**To correct the past:** put the corrected history on the same name, or on that of a later day; the last complete one stands."""


def _dimension_spec(
    settings: Settings, days: dg.PartitionsDefinition[str], name: str, key: dg.AssetKey, description: str
) -> dg.AssetSpec:
    folder = folder_of(name)
    return dg.AssetSpec(
        key,
        description=description.format(folder=folder),
        owners=settings.owners,
        metadata={"dagster/uri": f"{shown(settings.landing_url)}/{folder}"},
        partitions_def=days,
        group_name="dimensions",
        kinds={"s3" if settings.landing_url.startswith("s3://") else "file"},
        tags={"layer": "landing"},
    )
