"""Rows to objects: hourly files, shards, markers, bad lines; the regular export and a recovery of it.

Lives here: how events are spread over objects and written. Put here: another way of delivering. Keep out: the content of
events (events.py).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from sample_export.account import ExportAccount
from sample_export.events import SampleEvent, events_of, stream
from sample_export.spec import ExportSpec

_BAD_LINES = (b'{"$insert_id": "cut', b'{"event_type": "no time", "app": null}', b"[1, 2]")


@dataclass(frozen=True)
class ExportedObject:
    """One object to put into landing."""

    key: str
    body: bytes


def write_export(spec: ExportSpec, root: Path) -> ExportAccount:
    """Write the regular export below a local folder; returns what it holds."""
    account = ExportAccount()
    _write(iter_export(spec, account), root)
    return account


def iter_export(spec: ExportSpec, account: ExportAccount) -> Iterator[ExportedObject]:
    """The objects of the regular export, project by project and day by day; `account` is filled on the way."""
    for project in spec.projects:
        for day in spec.arrival_days:
            events = list(_kept(spec, project, day, account))
            yield from _objects(spec, project, day, events, account, prefix=project, shards=_shards(spec.shards))


def write_recovery(
    spec: ExportSpec, root: Path, first_day: date, last_day: date, *, corrected_share: float = 0.0
) -> ExportAccount:
    """Write a manual recovery export of some arrival days to the backfill prefix.

    It holds everything that arrived on those days, what the regular export lost included, in other shards; with
    `corrected_share`, that part of the purchases carries another amount and a later processed_time. The account returned
    is of the recovery alone.
    """
    account = ExportAccount()

    def objects() -> Iterator[ExportedObject]:
        for project in spec.projects:
            for day in (d for d in spec.arrival_days if first_day <= d <= last_day):
                events = list(events_of(spec, project, day))
                for event in events:
                    event.repeats.clear()
                    if event.amount is not None:
                        _correct(spec, project, event, corrected_share)
                    _count(account, project, event)
                prefix = f"{project}-backfill"
                yield from _objects(spec, project, day, events, account, prefix=prefix, shards=[5])

    _write(objects(), root)
    return account


def _correct(spec: ExportSpec, project: str, event: SampleEvent, share: float) -> None:
    rng = stream(spec, "correct", project, event.sent[-1]["uuid"])
    if rng.random() >= share:
        return
    row = event.sent[-1]
    processed = datetime.strptime(row["processed_time"], "%Y-%m-%d %H:%M:%S.%f") + timedelta(days=1)  # noqa: DTZ007 - UTC by contract
    properties = {k: v for k, v in row["event_properties"].items() if k not in ("revenue", "price", "quantity")}
    event.amount = Decimal(rng.randrange(100, 20_000)) / 100
    event.sent[-1] = row | {
        "event_properties": properties | {"$revenue": float(event.amount)},
        "processed_time": processed.strftime("%Y-%m-%d %H:%M:%S.%f"),
    }


def _kept(spec: ExportSpec, project: str, day: date, account: ExportAccount) -> Iterator[SampleEvent]:
    loss = stream(spec, "loss", project, day)
    for event in events_of(spec, project, day):
        if day in spec.lost_days and loss.random() < spec.lost_share:
            account.lost_events += 1
            continue
        _count(account, project, event)
        yield event


def _count(account: ExportAccount, project: str, event: SampleEvent) -> None:
    account.events[project, event.event_date] += 1
    account.delivery_duplicates += len(event.repeats)
    account.send_duplicates += len(event.sent) - 1
    account.corrections += event.corrections
    account.late_rows += event.is_late
    if event.amount is not None and event.currency is not None:
        account.add_revenue(project, event.event_date, event.currency, event.amount)


def _shards(count: int) -> list[int]:
    """Shard ids are neither contiguous nor from 0."""
    return [1 + 3 * number for number in range(count)]


def _objects(
    spec: ExportSpec,
    project: str,
    day: date,
    events: list[SampleEvent],
    account: ExportAccount,
    *,
    prefix: str,
    shards: list[int],
) -> Iterator[ExportedObject]:
    rng = stream(spec, "objects", prefix, day)
    lines: dict[tuple[int, int], list[bytes]] = {(hour, shard): [] for hour in spec.hours for shard in shards}

    def put(row: dict[str, Any], shard: int) -> None:
        hour = int(row["server_upload_time"][11:13])
        lines[hour, shard].append(json.dumps(row, ensure_ascii=False).encode())

    for event in events:
        home = rng.randrange(len(shards))
        for row in event.sent:
            put(row, shards[home])
        for row in event.repeats:
            put(row, shards[(home + 1) % len(shards)])
    if prefix == project:
        for number in range(spec.bad_lines_per_day):
            target = lines[spec.hours[number % len(spec.hours)], shards[0]]
            target.insert(len(target) // 2, _BAD_LINES[number % len(_BAD_LINES)])
            account.bad_lines += 1
    for (hour, shard), rows in sorted(lines.items()):
        if not rows and len(shards) > 1:
            continue  # the vendor writes no empty shards
        account.objects += 1
        account.lines += len(rows)
        body = gzip.compress(b"".join(row + b"\n" for row in rows), spec.compression_level, mtime=0)
        yield ExportedObject(f"{prefix}/{prefix}_{day.isoformat()}_{hour}#{shard}.json.gz", body)
    if spec.has_markers:
        for hour in range(24):
            yield ExportedObject(f"{prefix}/{prefix}_{day.isoformat()}_{hour}_complete", b"")


def _write(objects: Iterator[ExportedObject], root: Path) -> None:
    for exported in objects:
        path = root / exported.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(exported.body)
