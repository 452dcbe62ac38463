"""Snapshots of dimensions for tests: delivered, loaded, and events that name items."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg

from pipeline_assets.definitions import build_defs
from pipeline_assets.orchestration.assets import Clock
from tests.support.builders import Outcome, an_event

SNAPSHOTS, VALIDITY, ACTIVE = "dimensions/item_snapshot", "dimensions/item_validity", "aggregates/active_item_events"


def item_events(day: date, items: Mapping[str, int], *, prefix: str = "i") -> list[dict[str, Any]]:
    """Events of a day: item -> count; deterministic."""
    return [
        an_event(
            insert_id=f"{prefix}-{day}-{item}-{number}",
            uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{prefix}-{day}-{item}-{number}")),
            device_id=f"d{number}",
            event_time=f"{day} 10:00:00.{number:06d}",
            server_upload_time=f"{day} 10:30:00.{number:06d}",
            processed_time=f"{day} 10:31:00.{number:06d}",
            event_properties={"item_id": int(item) if item.isdecimal() else item},
        )
        for item, count in items.items()
        for number in range(count)
    ]


def deliver_items(
    p: Any,
    day: date,
    items: Mapping[str, str] | bytes,
    *,
    dimension: str = "item",
    as_json: bool = False,
    is_marked: bool = True,
) -> str:
    """Put a day's snapshot: id -> status, or the bytes themselves; return its key."""
    folder = p.landing / "dimensions" / dimension
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(items, bytes):
        body = items
    elif as_json:
        rows = [{"id": key, "name": f"n{key}", "status": status} for key, status in items.items()]
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    else:
        body = "".join(["id,name,status\n", *(f"{key},n{key},{status}\n" for key, status in items.items())]).encode()
    path = folder / f"{day}{'.jsonl' if as_json else '.csv'}"
    path.write_bytes(body)
    if is_marked:
        (folder / f"{day}_complete").touch()
    return f"dimensions/{dimension}/{path.name}"


def deliver_intervals(
    p: Any, day: date, intervals: Sequence[Sequence[object]] | bytes, *, as_json: bool = False, is_marked: bool = True
) -> str:
    """Put the history as of a day: id, status, first and last day (None: open), further texts; or the bytes."""
    folder = p.landing / "dimensions" / "item_validity"
    folder.mkdir(parents=True, exist_ok=True)
    names = ["id", "status", "active_start_date", "active_end_date", "site"]
    if isinstance(intervals, bytes):
        body = intervals
    elif as_json:
        rows = [dict(zip(names, map(_spelled, one), strict=False)) for one in intervals]
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    else:
        width = max(map(len, intervals))
        lines = [",".join("" if value is None else str(value) for value in one) for one in intervals]
        body = "\n".join([",".join(names[:width]), *lines, ""]).encode()
    path = folder / f"{day}{'.jsonl' if as_json else '.csv'}"
    path.write_bytes(body)
    if is_marked:
        (folder / f"{day}_complete").touch()
    return f"dimensions/item_validity/{path.name}"


def _spelled(value: object) -> object:
    return str(value) if isinstance(value, date) else value


def load_items(
    p: Any,
    first: date,
    last: date | None = None,
    *,
    accept: Mapping[str, str] | None = None,
    **decided: Mapping[str, str],
) -> Outcome:
    """Run the dimensions' job over a range of days; `decided`: `exclude` or `include`, object key -> reason."""
    job = build_defs(p.settings, clock=Clock(p.now), **p.resources).resolve_job_def("dimension_load")
    result = job.execute_in_process(
        run_config={"ops": {"load": {"config": {"accept_changes": dict(accept or {}), **decided}}}},
        tags={
            "dagster/asset_partition_range_start": first.isoformat(),
            "dagster/asset_partition_range_end": (last or first).isoformat(),
        },
        instance=p.instance,
        raise_on_error=False,
    )
    return Outcome(result, p.ledger)


def active_events(p: Any) -> dict[tuple[date, str], int]:
    return {(row["event_date"], row["item_id"]): row["events"] for row in p.rows(ACTIVE)}


def loaded_partitions(instance: dg.DagsterInstance, table: str) -> set[str]:
    return set(instance.get_materialized_partitions(dg.AssetKey(table.split("/"))))
