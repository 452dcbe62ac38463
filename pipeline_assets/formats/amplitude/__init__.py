"""Amplitude's export format: its declaration here, and its names of objects, lines and columns.

Contains: columns, names of objects, lines one by one and in blocks.
Add here: another answer about this vendor's exports.
Does not contain: what every format shares (formats/base.py).
"""

from __future__ import annotations

import hashlib

import msgspec

from pipeline_assets.domain.identity import named
from pipeline_assets.formats.amplitude import columns
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.formats.amplitude.line_blocks import ColumnParser
from pipeline_assets.formats.amplitude.lines import LineParser, line_keys
from pipeline_assets.formats.base import ColumnType, ExportColumn, ExportFormat


class _Ids(msgspec.Struct, gc=False):
    app: int | None = None
    uuid: str | None = None
    insert_id: str | None = msgspec.field(default=None, name="$insert_id")
    device_id: str | None = None


_DECODER = msgspec.json.Decoder(_Ids)


def event_number(line: bytes) -> int | None:
    """A 64-bit hash of the event's insert id, else of its uuid; None without any, or if the line is unreadable."""
    try:
        ids = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    insert_id, uuid = named(ids.insert_id), named(ids.uuid)
    if insert_id is None and uuid is None:
        return None
    key = ("insert_id", ids.app, named(ids.device_id), insert_id) if insert_id is not None else ("uuid", uuid)
    text = repr(key).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


AMPLITUDE = ExportFormat(
    columns=tuple(
        ExportColumn(name, kind, columns.MEANINGS[name]) if name in columns.MEANINGS else ExportColumn(name, kind)
        for name, kind in columns.VENDOR_COLUMNS.items()
    ),
    transport_columns=columns.TRANSPORT_COLUMNS,
    many_valued_columns=(
        *("uuid", "insert_id", "event_id", "event_properties", "user_properties", "data"),
        *(name for name, kind in columns.VENDOR_COLUMNS.items() if kind is ColumnType.TIMESTAMP),
    ),
    identity=columns.IDENTITY,
    rank_columns=columns.RANKS,
    received_column="server_upload_time",
    keys=KeyGrammar,
    line_parser=LineParser,
    block_parser=ColumnParser,
    event_number=event_number,
    line_keys=line_keys,
    own_keys=columns.OWN_KEYS,
)
