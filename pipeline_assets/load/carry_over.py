"""Converts digests that an older version of the row hash measured to the present version, without publishing anything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.slices import EMPTY, Digest, Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.registry import SOURCE_OF_TABLE
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import MeasuredPart, measured_parts
from resources.iceberg.metadata import slices_condition
from resources.ledger.digests import Renamed

_FORMER = 1


def carry_over(runtime: Runtime, table: Table, head: int) -> None:
    """Replace the former digests of a table's recorded slices by present ones, once.

    Live rows are measured with both versions. If the former digest equals the recorded one, the content is the same. Other
    slices are marked as doubtful, so that `sync_ledger` treats them as changed by another writer.
    """
    digests = runtime.ledger.digests
    if digests.are_present(table.key):
        return
    recorded = digests.former_slices(table.key)
    if not recorded:
        digests.note_present(table.key)
        return
    runtime.log(f"{table.key}: {len(recorded)} slices were measured by a former version; reading them once")
    rows = runtime.lakehouse.read(table, head).where(slices_condition(table, recorded))
    former = measured_parts(rows, table.content_columns, table.day_column, version=_FORMER, **_arrival(table))
    present = measured_parts(rows, table.content_columns, table.day_column, version=ROW_HASH_VERSION, **_arrival(table))
    same = {
        key: Renamed(digest, _sum(present[key]))
        for key, digest in recorded.items()
        if key in former and _sum(former[key]) == digest
    }
    digests.rename(table.key, same, _batch_days(runtime, table, same, former, present))
    if recorded.keys() - same.keys():
        digests.doubt(table.key, recorded.keys() - same.keys())


def _arrival(table: Table) -> dict[str, bool]:
    return {"by_arrival": table.key in SOURCE_OF_TABLE}


def _sum(parts: Mapping[date | None, MeasuredPart]) -> Digest:
    return sum((part.digest for part in parts.values()), EMPTY)


def _batch_days(
    runtime: Runtime,
    table: Table,
    same: Mapping[Slice, Renamed],
    former: Mapping[Slice, Mapping[date | None, MeasuredPart]],
    present: Mapping[Slice, Mapping[date | None, MeasuredPart]],
) -> dict[tuple[BatchKey, date], tuple[Digest, BatchDay]]:
    """The batch days of the unchanged slices whose rows still match their record, in the same objects."""
    if table.key not in SOURCE_OF_TABLE:
        return {}
    source = SOURCE_OF_TABLE[table.key]
    found = {}
    for key, parts in runtime.ledger.digests.batch_days(source).items():
        for arrival, part in parts.items():
            measured = former.get(key, {}).get(arrival)
            if key not in same or measured is None or part.digest != measured.digest:
                continue
            if part.lineage in (measured.lineage, None):
                batch = BatchKey(source, key.project_id, arrival)
                found[batch, key.event_date] = (part.digest, BatchDay(*present[key][arrival]))
    return found
