"""The declaration of Amplitude's export format: its names, its parsers and the roles of its columns."""

from __future__ import annotations

from pipeline_assets.formats.amplitude.columns import (
    IDENTITY,
    MEANINGS,
    OWN_KEYS,
    RANKS,
    TRANSPORT_COLUMNS,
    VENDOR_COLUMNS,
)
from pipeline_assets.formats.amplitude.event_ids import event_number
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.formats.amplitude.line_blocks import ColumnParser
from pipeline_assets.formats.amplitude.lines import LineParser, line_keys
from pipeline_assets.formats.base import ColumnType, ExportColumn, ExportFormat

AMPLITUDE = ExportFormat(
    columns=tuple(
        ExportColumn(name, kind, MEANINGS[name]) if name in MEANINGS else ExportColumn(name, kind)
        for name, kind in VENDOR_COLUMNS.items()
    ),
    transport_columns=TRANSPORT_COLUMNS,
    many_valued_columns=(
        *("uuid", "insert_id", "event_id", "event_properties", "user_properties", "data"),
        *(name for name, kind in VENDOR_COLUMNS.items() if kind is ColumnType.TIMESTAMP),
    ),
    identity=IDENTITY,
    rank_columns=RANKS,
    received_column="server_upload_time",
    keys=KeyGrammar,
    line_parser=LineParser,
    block_parser=ColumnParser,
    event_number=event_number,
    line_keys=line_keys,
    own_keys=OWN_KEYS,
)
