"""The ledger rows that loads would have written, converted from records by the ledger's own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import product
from typing import Any

from benchmarks.scale.sizes import FIRST_DAY, HOURS, SHARDS, Size
from pipeline_assets.domain.changes import Baseline, Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.records import (
    BatchDay,
    BatchRecord,
    DeliveryRecord,
    InputDay,
    InputState,
    PublicationRecord,
    SliceRecord,
    on_record,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict, widen
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED
from pipeline_assets.tables.table import Table
from resources.ledger.schema import batch_day_row, row_of

RAW = RAW_TABLES[Source.REGULAR]
TABLES: tuple[Table, ...] = (RAW, *DERIVED)
RUNS_A_DAY = 2
"""Number of loads that publish per day: one requested by a sensor, and one that heals or catches up."""
_DIGESTS = {table.key: Digest(100_000, 3 << 60, 5 << 61) for table in TABLES}
_LATE_DAYS = 3
"""Number of event days of a batch: its own and earlier ones."""
PROJECT = "\x01project"
"""Placeholder for the project, in which alone the rows of a day differ."""
_BINS = dict.fromkeys(range(200, 224), 1000)


def _stamp(day: date, hours: int = 26) -> str:
    return (datetime.combine(day, time(), UTC) + timedelta(hours=hours)).isoformat(timespec="microseconds")


def _run_id(day: date, number: int = 0) -> str:
    return f"{day.toordinal():08x}-0000-4000-8000-{number:012x}"


def _snapshot(table: Table, day: date) -> int:
    return (1 << 61) + day.toordinal() * 100 + TABLES.index(table)


def deliveries_of(settings: Settings) -> Callable[[date], Iterator[dict[str, Any]]]:
    """Return a function that yields the accepted objects of an arrival day."""
    code, keys = RAW.code_version(settings), EXPORT_FORMAT.keys(settings.marker_pattern)

    def made(day: date) -> Iterator[dict[str, Any]]:
        batch = BatchKey(Source.REGULAR, PROJECT, day)
        for hour, shard in product(range(HOURS), range(SHARDS)):
            record = DeliveryRecord(
                batch=batch,
                object_key=keys.format_delivery(batch, hour, shard),
                etag=etag(day, hour, shard),
                size_bytes=500_000,
                sha256=f"{day.toordinal():032x}{hour:016x}{shard:016x}",
                lines=1_050,
                rows=1_050,
                quarantined=0,
                blank=0,
                error=None,
                is_accepted=True,
                code_version=code,
            )
            yield row_of(record) | {"run_id": _run_id(day), "recorded_at": _stamp(day)}

    return made


def etag(day: date, hour: int, shard: int) -> str:
    """Return the etag of an object, the same in landing and ledger."""
    return f'"{day.toordinal():016x}{hour:08x}{shard:08x}"'


def batch_of_day(day: date) -> dict[str, Any]:
    """Return the row of a completely accepted arrival day."""
    objects = HOURS * SHARDS
    figures = {"objects": objects, "unreadable_objects": 0, "lines": 100_800, "rows": 100_800, "quarantined_lines": 0}
    record = BatchRecord(
        BatchKey(Source.REGULAR, PROJECT, day),
        BatchVerdict.ACCEPTED,
        input_state=f"{day.toordinal():032x}",
        deliveries=objects,
        hours_delivered=HOURS,
        hours_marked=HOURS,
        is_closed=True,
        hours=tuple(range(HOURS)),
        evaluations=(
            Evaluation(Check.DELIVERY_RECONCILES, True, figures={**figures, "blank_lines": 0, "mismatch_count": 0}),
            Evaluation(Check.DELIVERY_COMPLETE, True, figures={"hours_marked": HOURS, "hours_delivered": HOURS}),
        ),
    )
    return row_of(record) | {"run_id": _run_id(day), "recorded_at": _stamp(day)}


def batch_days() -> list[Callable[[date], dict[str, Any]]]:
    """Return one function per event day of a batch, which makes its row."""
    sketch = LatenessSketch(_BINS, 0, 0, 300_000)

    def part(back: int) -> Callable[[date], dict[str, Any]]:
        def made(day: date) -> dict[str, Any]:
            rows = BatchDay(_DIGESTS[RAW.key], str(_DIGESTS[RAW.key]), sketch)
            row = batch_day_row(day - timedelta(days=back), rows, {})
            return {"source": Source.REGULAR.value, "project_id": PROJECT, "arrival_date": day} | row

        return made

    return [part(back) for back in range(_LATE_DAYS)]


def _built_from(table: Table, key: Slice, size: Size, settings: Settings) -> InputState | None:
    if table is RAW:
        return InputState()
    days = widen([key.event_date], settings.dedupe_window_days) if table is REFINED_EVENTS else {key.event_date}
    names = [RAW.key] if table is REFINED_EVENTS else [name for name in table.upstream if name in _DIGESTS]
    known = sorted(day for day in days if FIRST_DAY <= day <= size.last_day)
    upstream = {InputDay(name, day): _DIGESTS[name] for name in names for day in known}
    return InputState(upstream, str(Digest(1, 7, 9)) if table is REFINED_EVENTS else None)


def _figures(table: Table) -> dict[str, float]:
    measured = dict.fromkeys(getattr(table, "measures", {}), 12345)
    if table is REFINED_EVENTS:
        names = (
            "delivery_duplicate",
            "rows_with_blank_id",
            "rows_without_id",
            "send_duplicate",
            "superseded_by_other_day",
        )
        measured = {**dict.fromkeys(names, 0), "late_rows": 800, "raw_rows": 100_100, "watermark_lag_seconds": 1_800}
    return {"rows": 100_000, **measured}


def _evaluations(table: Table) -> tuple[Evaluation, ...]:
    figures = {"mismatch_count": 0, "duplicate_keys_per_1000": 0.0, "rows_before": 100_000, "rows_after": 100_000}
    return () if table is RAW else tuple(Evaluation(rule, True, figures=figures) for rule in table.checks)


def slice_of(table: Table, size: Size, settings: Settings) -> Callable[[date], dict[str, Any]]:
    """Return a function that makes the row of a table's published, up-to-date day."""
    code = table.code_version(settings)
    final_before = size.last_day - timedelta(days=settings.reprocessing_window_days)

    def made(day: date) -> dict[str, Any]:
        key = Slice(day, PROJECT)
        is_final = table is not RAW and day <= final_before
        record = SliceRecord(
            table=table.key,
            key=key,
            verdict=Verdict.PUBLISHED,
            is_final=is_final,
            final_at=_stamp(day, 96) if is_final else None,
            baseline=Baseline({"rows": 100_000.0}) if is_final else None,
            digest=_DIGESTS[table.key],
            file_hash=f"{day.toordinal():032x}",
            input_state=_built_from(table, key, size, settings),
            code_version=code,
            figures=_figures(table),
            evaluations=_evaluations(table),
        )
        return row_of(record, "read_hash") | {"run_id": _run_id(day), "recorded_at": _stamp(day)}

    return made


def publication_of(table: Table, size: Size, settings: Settings) -> Callable[[date], dict[str, Any]]:
    """Return a function that makes the row of a day's only publication."""
    code, names = table.code_version(settings), table.settings_read

    def made(day: date) -> dict[str, Any]:
        key = Slice(day, PROJECT)
        snapshot = _snapshot(table, day)
        record = PublicationRecord(
            table=table.key,
            key=key,
            snapshot_id=snapshot,
            parent_id=snapshot - 100,
            digest_before=Digest(),
            digest_after=_DIGESTS[table.key],
            cause=Cause.of(CauseKind.FIRST_BUILD),
            run_id=_run_id(day),
            input_state=_built_from(table, key, size, settings),
            code_version=code,
            figures=_figures(table),
            seconds=1.0,
            published_at=_stamp(day),
            pins={name: _snapshot(RAW, day) for name in table.upstream},
            settings=on_record(settings, names),
        )
        return row_of(record, "number") | {"run_id": _run_id(day), "was_final": False}

    return made


def runs(day: date) -> Iterator[dict[str, Any]]:
    """Yield the runs of a day."""
    for number in range(RUNS_A_DAY):
        yield {
            "run_id": _run_id(day, number),
            "tables": [table.key for table in TABLES],
            "first_day": day,
            "last_day": day,
            "started_at": _stamp(day, 25),
            "finished_at": _stamp(day),
            "verdicts": {f"{table.key} published": 200 for table in TABLES},
            "snapshots": {table.key: _snapshot(table, day) for table in TABLES},
            "skew": [],
        }


def cuts(day: date) -> Iterator[dict[str, Any]]:
    """Yield the cuts that these runs published."""
    for number in range(RUNS_A_DAY):
        snapshots = {table.key: str(_snapshot(table, day)) for table in TABLES}
        yield {"run_id": _run_id(day, number), "published_at": _stamp(day), "snapshots": snapshots}


def processes(day: date) -> Iterator[dict[str, Any]]:
    """Yield the processes of these runs."""
    for number in range(RUNS_A_DAY):
        yield {
            "run_id": _run_id(day, number).replace("-", ""),
            "job": "daily_load",
            "host": "loader",
            "place": "machine",
            "pid": 4_000,
            "started_ticks": day.toordinal(),
            "steps": 0,
            "begun_at": _stamp(day, 25),
            "beats": 100,
            "beat_at": _stamp(day),
            "ended_at": _stamp(day),
        }


def notice(day: date) -> dict[str, Any]:
    """Return one notice per day."""
    return {
        "id": f"{day.toordinal():032x}",
        "kind": "final_day_changed",
        "table_name": REFINED_EVENTS.key,
        "event_date": day,
        "project_id": "10001",
        "body": {"table": REFINED_EVENTS.key, "event_date": day.isoformat(), "reason": "x" * 200},
        "run_id": _run_id(day),
        "recorded_at": _stamp(day),
    }
