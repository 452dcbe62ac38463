"""What of a rebuild is no longer what a person was shown, once main was caught up with."""

from __future__ import annotations

from datetime import datetime

from pipeline_assets.domain.change_rule import explain_change
from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuiltSlice
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rebuild.choose import GreenSlices
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table


def no_longer_as_reported(runtime: Runtime, rebuild: RebuildRecord, green: GreenSlices, now: datetime) -> list[str]:
    """A sentence for each slice that goes and differs from the report by more than a load may change it, or in unknown keys."""
    beyond = []
    for name in rebuild.tables:
        main = runtime.ledger.slices(name, rebuild.projects, {key.event_date for key in green[name]})
        for key, one in sorted(green[name].items()):
            reason = _beyond(runtime, table_by_key(name), one, main.get(key), now) if one.goes else None
            if reason is not None:
                beyond.append(f"{name} {key}: {reason}")
    return beyond


def _beyond(runtime: Runtime, table: Table, one: RebuiltSlice, main: SliceRecord | None, now: datetime) -> str | None:
    if one.reported is None or one.record.digest == one.reported.digest:
        return None
    record = one.record
    after = {measure: record.figures[measure] for measure in table.measures if measure in record.figures}
    change = explain_change(
        table.key,
        Baseline(one.reported.figures).of(after),
        after,
        None,
        content=str(record.digest),
        was_final=record.was_final(now),
        accepted_reason=None,
        cause="catching up",
        settings=runtime.settings,
    )
    if not change.is_passed:
        return change.reason
    # Rows of the same number may be others: how many keys differ from the reported ones is not known, so it is not bounded.
    if table.kind.bounds_keys and any(known is not None and known.was_final(now) for known in (record, main)):
        return f"final slice holds other events than were reported, {one.reported.digest.rows} -> {record.digest.rows}"
    return None
