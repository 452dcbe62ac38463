"""Snapshots of dimensions for tests: delivered, loaded, and events that name items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg

from tests.support.builders import Loaded, Outcome, events_on

SNAPSHOTS, VALIDITY, ACTIVE = "dimensions/item_snapshot", "dimensions/item_validity", "aggregates/active_item_events"


def item_events(day: date, items: Mapping[str, int], *, prefix: str = "i") -> list[dict[str, Any]]:
    """Events of a day: item -> count; deterministic."""
    return [
        event | {"event_properties": {"item_id": int(item) if item.isdecimal() else item}}
        for item, count in items.items()
        for event in events_on(day, count, prefix=f"{prefix}-{item}")
    ]


def deliver_items(
    p: Any, day: date, items: Mapping[str, str] | bytes, *, as_json: bool = False, is_marked: bool = True
) -> str:
    """Put a day's snapshot: id -> status, or the bytes themselves; return its key."""
    rows = items if isinstance(items, bytes) else [(key, f"n{key}", status) for key, status in items.items()]
    return _deliver(p, "item", day, ("id", "name", "status"), rows, as_json, is_marked)


def deliver_intervals(
    p: Any, day: date, intervals: Sequence[Sequence[object]] | bytes, *, as_json: bool = False, is_marked: bool = True
) -> str:
    """Put the history as of a day: id, status, first and last day (None: open), further texts; or the bytes."""
    names = ("id", "status", "active_start_date", "active_end_date", "site")
    return _deliver(p, "item_validity", day, names, intervals, as_json, is_marked)


def _deliver(
    p: Any,
    name: str,
    day: date,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]] | bytes,
    as_json: bool,
    is_marked: bool,
) -> str:
    folder = p.landing / "dimensions" / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{day}{'.jsonl' if as_json else '.csv'}"
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    elif as_json:
        lines = [json.dumps(dict(zip(columns, row, strict=False)), default=str) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        lines = [",".join("" if value is None else str(value) for value in row) for row in rows]
        path.write_text("\n".join([",".join(columns[: max(map(len, rows), default=len(columns))]), *lines, ""]))
    if is_marked:
        (folder / f"{day}_complete").touch()
    return f"dimensions/{name}/{path.name}"


def run_items(p: Any, first: date, last: date) -> Outcome:
    """The dimensions' job."""
    span = {"dagster/asset_partition_range_start": str(first), "dagster/asset_partition_range_end": str(last)}
    done: Outcome = p.run_job("dimension_load", "load", {}, tags=span)
    return done


def load_items(p: Any, *days: date, **decided: Any) -> Loaded:
    """The same without Dagster; `decided` as in `Pipeline.load`."""
    done: Loaded = p.load(*days, tables=(SNAPSHOTS, VALIDITY, ACTIVE), **decided)
    return done


def must_load_items(p: Any, *days: date, **decided: Any) -> None:
    done = load_items(p, *days, **decided)
    assert done.success, done.failure()


def active_events(p: Any) -> dict[tuple[date, str], int]:
    return {(row["event_date"], row["item_id"]): row["events"] for row in p.rows(ACTIVE)}


def loaded_partitions(instance: dg.DagsterInstance, table: str) -> set[str]:
    return set(instance.get_materialized_partitions(dg.AssetKey(table.split("/"))))
