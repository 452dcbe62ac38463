"""Eight real Amplitude events end where they belong, field by field, and loading again changes nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.formats.amplitude.columns import DELIVERED_KEYS, VENDOR_COLUMNS
from pipeline_assets.formats.base import ColumnType
from tests.support.builders import RAW_AND_REFINED

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DATA = Path(__file__).parents[1] / "data" / "airbyte_source_amplitude"
PROJECT = "434735"
D24, D25 = date(2023, 8, 24), date(2023, 8, 25)


def _expected(event: dict[str, Any], line: bytes) -> dict[str, Any]:
    """The expected row of an event, read independently of the parser."""
    row: dict[str, Any] = {}
    for key, column in DELIVERED_KEYS.items():
        value, kind = event[key], VENDOR_COLUMNS[column]
        if value is not None and kind is ColumnType.TIMESTAMP:
            value = datetime.strptime(value, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
        if value is not None and kind is ColumnType.JSON:
            # The line holds the delivered text byte for byte.
            text = json.dumps(value)
            assert f'"{key}": {text}'.encode() in line
            value = text
        row[column] = value
    return row


def test_every_field_of_the_real_events_arrives(pipeline: Any) -> None:
    """Outcome: both days stand, every field equals the source, a second load adds no snapshot."""
    p = pipeline(projects=(PROJECT,), calendar_start=date(2023, 8, 1), only=RAW_AND_REFINED)
    (p.landing / PROJECT).mkdir()
    lines: list[bytes] = []
    for source in sorted(DATA.glob("*.gz")):
        shutil.copy(source, p.landing / PROJECT / source.name)
        lines += gzip.decompress(source.read_bytes()).splitlines()

    p.must_run(D24, D25)
    found = {row["uuid"]: row for row in p.rows("refined/events")}
    assert len(lines) == len(found) == 8
    for line in lines:
        event = json.loads(line)
        row = found[event["uuid"]]
        for column, value in _expected(event, line).items():
            actual = row[column]
            if isinstance(value, datetime):
                actual = actual.replace(tzinfo=UTC)
            assert actual == value, column
    assert sorted(row["event_date"] for row in found.values()) == [D24] * 4 + [D25] * 4

    before = p.snapshots()
    again = p.must_run(D24, D25)
    assert again.materialized("refined/events") == {"2023-08-24", "2023-08-25"}
    assert p.snapshots() == before
