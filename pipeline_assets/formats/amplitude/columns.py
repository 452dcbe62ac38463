"""The vendor's 55 columns: names, types and delivered keys. They are a contract with readers of the tables."""

from __future__ import annotations

from pipeline_assets.formats.base import EVENT_TIME, ColumnType, IdentityColumns

_NAMES: dict[ColumnType, str] = {
    ColumnType.STRING: """insert_id insert_key adid amplitude_event_type city country data_type device_brand
        device_carrier device_family device_id device_manufacturer device_model device_type dma event_type idfa
        ip_address language library os_name os_version partner_id platform region source_id start_version user_id
        uuid version_name""",
    ColumnType.LONG: "amplitude_id app event_id session_id schema",
    ColumnType.TIMESTAMP: """client_event_time client_upload_time event_time processed_time server_received_time
        server_upload_time user_creation_time""",
    ColumnType.DOUBLE: "location_lat location_lng",
    ColumnType.BOOLEAN: "is_attribution_event paying",
    ColumnType.JSON: """amplitude_attribution_ids data event_properties global_user_properties group_properties groups
        plan sample_rate user_properties""",
}

VENDOR_COLUMNS: dict[str, ColumnType] = {name: kind for kind, names in _NAMES.items() for name in names.split()}

BAG_COLUMNS = frozenset(_NAMES[ColumnType.JSON].split()) - {"amplitude_attribution_ids", "sample_rate"}

DOLLAR_COLUMNS = frozenset({"insert_id", "insert_key", "schema"})

DELIVERED_KEYS: dict[str, str] = {(f"${name}" if name in DOLLAR_COLUMNS else name): name for name in VENDOR_COLUMNS}

OWN_KEYS = frozenset(
    (
        "event_time", "event_type", "app", "uuid", "amplitude_id", "$insert_id", "client_event_time", "client_upload_time",
        "server_received_time", "server_upload_time", "processed_time",
    )
)  # fmt: skip
"""Keys of every raw event (Amazon S3 export), without those usual elsewhere, as `user_id`. Two of them identify the vendor's
lines: Segment has none, PostHog `uuid`, AppsFlyer `event_time`, merged IDs `amplitude_id`.
"""

TRANSPORT_COLUMNS = ("uuid", "client_upload_time", "server_received_time", "server_upload_time", "processed_time")

IDENTITY = IdentityColumns(send_id="insert_id", sender=("app", "device_id"), row_id="uuid")
RANKS = ("server_upload_time", "processed_time")

NEEDED_COLUMNS = frozenset({EVENT_TIME, *IDENTITY.names, RANKS[0]})
"""Required for day, key and first rank: only in these columns does an unreadable value refuse its line."""

MEANINGS: dict[str, str] = {
    "insert_id": "unique id of a send; with `device_id` and `app` the key of an event",
    "uuid": "unique id of a row as the vendor stored it",
    "app": "project id",
    "amplitude_id": "the vendor's id of the user; `data` names the user that it was merged into",
    "user_id": "readable id of the user, set by the product",
    "device_id": "id of the device",
    "session_id": "start of the session, milliseconds since 1970",
    "event_id": "counter that tells events of a device apart",
    "event_type": "what happened",
    "event_properties": "JSON object sent along with the event",
    "user_properties": "JSON object of the user's properties",
    "group_properties": "JSON object of the groups' properties",
    "groups": "JSON object of group types",
    "data": "JSON object of the vendor's own notes, such as `first_event` and `merged_amplitude_id`",
    "amplitude_attribution_ids": "JSON array of hashed attribution ids",
    "event_time": "when it happened (UTC): the device's time, corrected by the vendor; gives `event_date`",
    "client_event_time": "when the device logged it, by its clock",
    "client_upload_time": "when the device sent it, by its clock",
    "server_received_time": "when the vendor received it (UTC)",
    "server_upload_time": "when the vendor ingested it (UTC); the latest wins",
    "processed_time": "when the vendor processed it (UTC); decides where `server_upload_time` ties",
    "city": "city",
    "country": "country",
    "region": "region of the country",
    "dma": "designated marketing area",
    "location_lat": "latitude, degrees",
    "location_lng": "longitude, degrees",
    "ip_address": "IP address",
    "language": "language set by the user",
    "library": "library that sent the event, with its version",
    "platform": "platform of the device",
    "os_name": "name of the operating system",
    "os_version": "version of the operating system",
    "device_carrier": "carrier of the device",
    "device_family": "family of the device",
    "device_type": "type of the device",
    "idfa": "identifier for advertisers (iOS)",
    "paying": "true where the user ever logged revenue, else null",
    "sample_rate": "number of samples taken",
    "start_version": "version of the app when the user was first seen",
    "version_name": "version of the app",
}
"""Column name -> description in the vendor's documentation (Amazon S3 export, event table schema)."""
