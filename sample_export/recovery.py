"""A recovery of an event: the copies a manual export makes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from sample_export.events import BACKFILL, Copy, SampleEvent, Send, stream
from sample_export.rows import time_text
from sample_export.spec import ExportSpec, Recovery


def recovered_copies(spec: ExportSpec, recovery: Recovery, event: SampleEvent) -> list[Copy]:
    """Every send that arrived on the recovered days, once and in its own hour, lost or not."""
    days = recovery.arrival_days(spec)
    sends = [*event.sends[:-1], _corrected(spec, recovery, event.sends[-1])]
    return [
        Copy(BACKFILL, send, send.uploaded.date(), send.uploaded.hour, 0)
        for send in sends
        if send.uploaded.date() in days
    ]


def _corrected(spec: ExportSpec, recovery: Recovery, send: Send) -> Send:
    """The same send with another amount, for a part of the purchases: it beats what was delivered of it."""
    rng = stream(spec, "correct", send.uuid)
    if send.amount is None or rng.random() >= recovery.corrected_share:
        return send
    amount, processed = Decimal(rng.randrange(100, 20_000)) / 100, send.processed + timedelta(days=1)
    properties = {k: v for k, v in send.row["event_properties"].items() if k not in ("revenue", "price", "quantity")}
    row = send.row | {
        "event_properties": properties | {"$revenue": float(amount)},
        "processed_time": time_text(processed),
    }
    return replace(send, row=row, processed=processed, amount=amount)
