"""The vendor's 55 columns: names, types and delivered keys, the contract of SCHEMA.

Lives here: which keys an event has, what type each column gets, which delivered key fills it. Put here: a change of
that contract. Keep out: parsing (transforms/parse.py) and table layout (tables/).
"""

from __future__ import annotations

from enum import StrEnum


class ColumnType(StrEnum):
    """How a delivered JSON value is stored."""

    STRING = "string"
    LONG = "bigint"
    TIMESTAMP = "timestamp"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    JSON = "json"
    """JSON text, byte for byte as delivered; stored as string."""

    @property
    def spark_type(self) -> str:
        """The Spark SQL type of the stored column."""
        return "string" if self is ColumnType.JSON else self.value


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
"""Column name -> type, all 55."""

DOLLAR_COLUMNS = frozenset({"insert_id", "insert_key", "schema"})
"""Columns whose delivered key carries a leading `$`."""

DELIVERED_KEYS: dict[str, str] = {(f"${name}" if name in DOLLAR_COLUMNS else name): name for name in VENDOR_COLUMNS}
"""Key as delivered -> column name."""

EXTRA_COLUMN = "_extra"
"""JSON text of an object with the keys that are not among the 55, or null."""
