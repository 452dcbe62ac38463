"""The content of one exported row: the 55 delivered keys and what a shop's app writes into them."""

from __future__ import annotations

import random
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sample_export.spec import ExportSpec

# The 55 delivered keys, written out: the exporter shares no code with the pipeline that reads it.
_KEY_LIST = """
    $insert_id $insert_key $schema adid amplitude_attribution_ids amplitude_event_type amplitude_id app
    city client_event_time client_upload_time country data data_type device_brand device_carrier
    device_family device_id device_manufacturer device_model device_type dma event_id event_properties
    event_time event_type global_user_properties group_properties groups idfa ip_address
    is_attribution_event language library location_lat location_lng os_name os_version partner_id paying
    plan platform processed_time region sample_rate server_received_time server_upload_time session_id
    source_id start_version user_creation_time user_id user_properties uuid version_name
"""
KEYS = tuple(_KEY_LIST.split())
_EMPTY = dict.fromkeys(KEYS)
_TYPES = ("session_start", "page_view", "search", "add_to_cart", "purchase", "share", "sign_out")
_WEIGHTS = (18, 46, 14, 10, 7, 3, 2)
_PLATFORMS = ("iOS", "Android", "Web", None)
_PLACES = (
    ("Germany", "Berlin", "Berlin"),
    ("United States", "Austin", "Texas"),
    ("日本", "東京", "Tokyo"),
    ("Brasil", "São Paulo", "SP"),
)


def price(rng: random.Random, properties: dict[str, Any]) -> Decimal:
    """Write an amount in one of the forms the vendor's clients use; returns the revenue it means."""
    cents = rng.randrange(99, 25_000)
    form = rng.random()
    for name in ("$revenue", "revenue", "price", "quantity"):
        properties.pop(name, None)
    if form < 0.5:
        properties["$revenue"] = cents / 100
    elif form < 0.8:
        properties["revenue"] = cents / 100
    else:
        properties["price"], properties["quantity"] = cents / 100, 1 + cents % 3
        return Decimal(cents) / 100 * (1 + cents % 3)
    return Decimal(cents) / 100


def a_row(
    spec: ExportSpec,
    rng: random.Random,
    project: str,
    day: date,
    number: int,
    person: int,
    happened: datetime,
    uploaded: datetime,
) -> dict[str, Any]:
    """One row: the event `number` of an arrival day, caused by a person, as sent for the first time."""
    country, city, region = _PLACES[person % len(_PLACES)]
    platform = _PLATFORMS[person % 11 % len(_PLATFORMS)] if person % 17 else None
    kind = rng.choices(_TYPES, _WEIGHTS)[0]
    properties: dict[str, Any] = {
        "page.path": f"/products/{rng.randrange(900)}",
        "Referrer": rng.choice(("direct", "news", "søk", "👍")),
        "referrer": "lower",
        "items": [{"sku": f"SKU-{rng.randrange(5000):05d}", "tags": ["a", "b"]}],
        "note": "x" * rng.randrange(0, 240),
    }
    if kind == "purchase" and rng.random() < 0.9:
        properties["currency"] = rng.choice(("USD", "EUR", "GBP"))
    row = _EMPTY | {
        "$insert_id": None if rng.random() < spec.no_insert_id_share else f"{project}-{day}-{number}-{rng.getrandbits(40):x}",
        "amplitude_id": 600_000_000_000 + person, "app": int(project), "city": city, "country": country, "region": region,
        "client_event_time": time_text(happened),
        "data": {"path": "/batch", "group_first_event": {}, "group_ids": {}}, "data_type": "event",
        "device_id": None if rng.random() < spec.no_device_id_share else f"device-{project}-{person}",
        "device_family": "Phone", "event_id": number, "event_properties": properties, "event_time": time_text(happened),
        "event_type": kind, "group_properties": {}, "groups": {}, "ip_address": f"10.1.{person % 250}.7",
        "language": "English", "library": "amplitude-ts/2.11.1", "os_name": platform, "os_version": "17.4",
        "paying": True if person % 7 == 0 else None, "plan": {}, "platform": platform,
        "session_id": int(happened.timestamp()) * 1000, "start_version": "1.0.0",
        "user_creation_time": "2025-11-01 00:00:00.000000", "user_id": f"user{person}@example.com" if person % 3 else None,
        "user_properties": {"plan": "free", "Plan": "FREE", "cohort.id": person % 12}, "uuid": a_uuid(rng),
        "version_name": "2.3.4", **upload_times(uploaded),
    }  # fmt: skip
    if spec.has_unknown_keys:
        row["new_vendor_key"] = {"since": "today"}
    return row


def upload_times(uploaded: datetime) -> dict[str, str]:
    """The columns that every send of an event has its own values of."""
    return {
        "client_upload_time": time_text(uploaded - timedelta(seconds=2)),
        "server_received_time": time_text(uploaded - timedelta(seconds=1)),
        "server_upload_time": time_text(uploaded),
        "processed_time": time_text(processed(uploaded)),
    }


def processed(uploaded: datetime) -> datetime:
    """When the vendor is done with a row."""
    return uploaded + timedelta(seconds=3)


def time_text(moment: datetime) -> str:
    """A time as the vendor writes it, UTC by contract."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def a_uuid(rng: random.Random) -> str:
    """The vendor's id of a row."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
