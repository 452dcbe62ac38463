"""One day's events of a project: who did what, when it reached the server, and how often it was sent.

Lives here: the content of rows and the ways in which an event is repeated, late or corrected. Put here: another realistic
habit of exports. Keep out: how rows are spread over objects (objects.py).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
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
_PLACES = (("Germany", "Berlin", "Berlin"), ("United States", "Austin", "Texas"), ("日本", "東京", "Tokyo"),
           ("Brasil", "São Paulo", "SP"))  # fmt: skip
_HOUR_WEIGHTS = (2, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 8, 9, 9, 8, 8, 8, 9, 10, 11, 11, 9, 6, 4)


@dataclass
class SampleEvent:
    """One event with all rows that were exported for it; the last row of `sent` wins."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    repeats: list[dict[str, Any]] = field(default_factory=list)
    """Rows exported a second time, unchanged."""
    event_date: date = date.min
    currency: str | None = None
    amount: Decimal | None = None
    """Revenue of the winning row; None for an event without."""
    corrections: int = 0
    is_late: bool = False


def stream(spec: ExportSpec, *names: object) -> random.Random:
    """A random stream of its own for every project and day, so that days do not depend on each other."""
    return random.Random("/".join(map(str, (spec.seed, *names))))


def events_of(spec: ExportSpec, project: str, day: date) -> Iterator[SampleEvent]:
    """The events that arrive at the vendor on a UTC day."""
    rng = stream(spec, project, day)
    hours = spec.hours
    weights = [_HOUR_WEIGHTS[hour] for hour in hours]
    for number in range(spec.events_on(day)):
        yield _event(spec, rng, project, day, number, rng.choices(hours, weights)[0])


def _event(spec: ExportSpec, rng: random.Random, project: str, day: date, number: int, hour: int) -> SampleEvent:
    uploaded = datetime(day.year, day.month, day.day, hour, tzinfo=UTC) + timedelta(
        microseconds=rng.randrange(3_000_000_000)
    )
    happened = uploaded - _lateness(spec, rng)
    # A few people cause most events.
    person = min(int(rng.paretovariate(0.9)), 5000)
    row = _row(spec, rng, project, day, number, person, happened, uploaded)
    event = SampleEvent([row], event_date=happened.date(), is_late=happened.date() < day)
    properties = row["event_properties"]
    if row["event_type"] == "purchase":
        event.currency, event.amount = properties.get("currency", "unknown"), _price(rng, properties)
    if row["$insert_id"] is not None:
        is_correction = event.amount is not None and rng.random() < spec.correction_share
        if is_correction or rng.random() < spec.send_duplicate_share:
            again = row | {"uuid": _uuid(rng), "event_properties": dict(properties)}
            # Sent again within the hour, so that the row stays in an object of its own hour.
            end = uploaded.replace(minute=59, second=59, microsecond=999_000)
            later = uploaded + (end - uploaded) * rng.uniform(0.1, 0.9)
            again |= _server_times(later)
            if is_correction:
                event.amount = _price(rng, again["event_properties"])
                event.corrections = 1
            event.sent.append(again)
    if rng.random() < spec.delivery_duplicate_share:
        event.repeats.append(event.sent[-1])
    return event


def _lateness(spec: ExportSpec, rng: random.Random) -> timedelta:
    luck = rng.random()
    if luck < spec.tail_share:
        return timedelta(days=rng.uniform(4, 100))
    if luck < spec.tail_share + spec.late_share:
        return timedelta(days=rng.uniform(1, 3))
    return timedelta(seconds=min(rng.expovariate(1 / 240), 3000))


def _price(rng: random.Random, properties: dict[str, Any]) -> Decimal:
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


def _row(
    spec: ExportSpec,
    rng: random.Random,
    project: str,
    day: date,
    number: int,
    person: int,
    happened: datetime,
    uploaded: datetime,
) -> dict[str, Any]:
    country, city, region = _PLACES[person % len(_PLACES)]
    platform = _PLATFORMS[person % 11 % len(_PLATFORMS)] if person % 17 else None
    kind = rng.choices(_TYPES, _WEIGHTS)[0]
    properties: dict[str, Any] = {
        "page.path": f"/products/{rng.randrange(900)}", "Referrer": rng.choice(("direct", "news", "søk", "👍")),
        "referrer": "lower", "items": [{"sku": f"SKU-{rng.randrange(5000):05d}", "tags": ["a", "b"]}],
        "note": "x" * rng.randrange(0, 240),
    }  # fmt: skip
    if kind == "purchase" and rng.random() < 0.9:
        properties["currency"] = rng.choice(("USD", "EUR", "GBP"))
    row = _EMPTY | {
        "$insert_id": None if rng.random() < spec.no_insert_id_share else f"{project}-{day}-{number}-{rng.getrandbits(40):x}",
        "amplitude_id": 600_000_000_000 + person, "app": int(project), "city": city, "country": country, "region": region,
        "client_event_time": _time(happened), "client_upload_time": _time(uploaded - timedelta(seconds=2)),
        "data": {"path": "/batch", "group_first_event": {}, "group_ids": {}}, "data_type": "event",
        "device_id": None if rng.random() < spec.no_device_id_share else f"device-{project}-{person}",
        "device_family": "Phone", "event_id": number, "event_properties": properties, "event_time": _time(happened),
        "event_type": kind, "group_properties": {}, "groups": {}, "ip_address": f"10.1.{person % 250}.7",
        "language": "English", "library": "amplitude-ts/2.11.1", "os_name": platform, "os_version": "17.4",
        "paying": True if person % 7 == 0 else None, "plan": {}, "platform": platform,
        "session_id": int(happened.timestamp()) * 1000, "start_version": "1.0.0",
        "user_creation_time": "2025-11-01 00:00:00.000000", "user_id": f"user{person}@example.com" if person % 3 else None,
        "user_properties": {"plan": "free", "Plan": "FREE", "cohort.id": person % 12}, "uuid": _uuid(rng),
        "version_name": "2.3.4", **_server_times(uploaded),
    }  # fmt: skip
    if spec.has_unknown_keys:
        row["new_vendor_key"] = {"since": "today"}
    return row


def _server_times(uploaded: datetime) -> dict[str, str]:
    return {
        "server_received_time": _time(uploaded - timedelta(seconds=1)),
        "server_upload_time": _time(uploaded),
        "processed_time": _time(uploaded + timedelta(seconds=3)),
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
