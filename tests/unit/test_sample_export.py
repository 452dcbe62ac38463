"""The sample exporter: seeded, stable under range, and its account is true."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from pipeline_assets.domain.vendor import DELIVERED_KEYS
from sample_export.account import ExportAccount
from sample_export.events import KEYS
from sample_export.objects import ExportedObject, iter_export, write_recovery
from sample_export.spec import ExportSpec

SPEC = ExportSpec(projects=("10001",), days=3, events_per_day=300, late_share=0.1, tail_share=0.05)


def _export(spec: ExportSpec) -> tuple[dict[str, bytes], ExportAccount]:
    account = ExportAccount()
    return {exported.key: exported.body for exported in iter_export(spec, account)}, account


def _rows(objects: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
    found = []
    for key, body in objects:
        if key.endswith(".gz"):
            found += [json.loads(line) | {"_key": key} for line in gzip.decompress(body).splitlines()]
    return found


def test_equal_specs_give_equal_bytes_and_days_do_not_depend_on_each_other() -> None:
    whole, _ = _export(SPEC)
    assert whole == _export(SPEC)[0]
    assert whole != _export(replace(SPEC, seed=8))[0]
    one_day, _ = _export(replace(SPEC, first_day=date(2026, 1, 2), days=1))
    assert one_day == {key: body for key, body in whole.items() if "_2026-01-02_" in key}


def test_rows_have_all_keys_and_lie_in_their_hour() -> None:
    objects, _ = _export(SPEC)
    assert set(KEYS) == set(DELIVERED_KEYS)
    for row in _rows(objects.items()):
        assert row.keys() - {"_key"} == set(KEYS)
        day, hour = row["server_upload_time"][:10], int(row["server_upload_time"][11:13])
        assert f"_{day}_{hour}#" in row["_key"]
    assert Counter(key.split("_")[1] for key in objects if key.endswith("_complete")) == dict.fromkeys(
        ("2026-01-01", "2026-01-02", "2026-01-03"), 24
    )


def _recount(rows: list[dict[str, Any]]) -> tuple[Counter[str], Decimal]:
    """Events per day and total revenue, by the plainest form of latest-wins."""
    best: dict[Any, dict[str, Any]] = {}
    for row in rows:
        key = row["$insert_id"] or row["uuid"]
        rank = (row["server_upload_time"], row["processed_time"])
        if key not in best or rank > (best[key]["server_upload_time"], best[key]["processed_time"]):
            best[key] = row
    revenue = Decimal(0)
    for row in best.values():
        bag = row["event_properties"]
        amount = bag.get("$revenue", bag.get("revenue"))
        if amount is None and "price" in bag:
            revenue += Decimal(str(bag["price"])) * bag["quantity"]
        elif amount is not None:
            revenue += Decimal(str(amount))
    return Counter(row["event_time"][:10] for row in best.values()), revenue


def test_the_account_equals_a_recount() -> None:
    objects, account = _export(SPEC)
    rows = _rows(objects.items())
    events, revenue = _recount(rows)
    assert account.lines == len(rows)
    assert account.events.total() + account.delivery_duplicates + account.send_duplicates == len(rows)
    assert {str(day): count for (_, day), count in account.events.items()} == events
    assert sum(account.revenue.values()) == revenue
    assert account.late_rows > 0
    assert account.corrections > 0
    assert min(events) < "2025-12-20"


def test_bad_lines_are_counted() -> None:
    _, account = _export(replace(SPEC, bad_lines_per_day=3))
    assert account.bad_lines == 9


def test_a_recovery_overlaps_and_brings_what_was_lost(tmp_path: Path) -> None:
    spec = replace(SPEC, lost_days=(date(2026, 1, 2),), lost_share=0.2)
    objects, account = _export(spec)
    delivered = {row["uuid"] for row in _rows(objects.items())}
    recovered = write_recovery(spec, tmp_path, date(2026, 1, 2), date(2026, 1, 2), corrected_share=0.5)
    files = [ExportedObject(str(path.relative_to(tmp_path)), path.read_bytes()) for path in tmp_path.rglob("*.gz")]
    rows = _rows((exported.key, exported.body) for exported in files)
    assert all(row["_key"].startswith("10001-backfill/10001-backfill_2026-01-02_") for row in rows)
    again = {row["uuid"] for row in rows}
    assert recovered.events.total() == 300
    assert account.lost_events > 20
    assert len(again & delivered) > 200
    assert len({row["$insert_id"] or row["uuid"] for row in rows}) == 300
