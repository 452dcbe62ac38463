"""Rows of a DataFrame get the rule's hashes, and false stored hashes are counted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline_assets.formats.amplitude.columns import TRANSPORT_COLUMNS
from pipeline_assets.tables.events import CONTENT, event_hashes
from pipeline_assets.transforms.data_files import ARROW_TYPES
from pipeline_assets.transforms.digests import FALSE_HASHES, HASH_A, HASH_B, checked_hashes, with_row_hashes
from tests.support.row_hash import event_hash, row_hash

pytestmark = pytest.mark.slow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {"s": "string", "n": "bigint", "at": "timestamp", "day": "date", "m": "decimal(38,6)", "raw": "binary"}


def test_rows_of_a_dataframe_get_the_hashes_of_the_rule(spark: Any) -> None:
    """Scenario: rows of each type, with nulls and false stored hashes. Outcome: the rule's 128 bits."""
    rows = [
        (
            "\x00é\U0001f600",
            -(1 << 63),
            _EPOCH - timedelta(microseconds=1),
            date(1900, 1, 1),
            Decimal("-0.000001"),
            b"\xff\x00",
        ),
        ("", 0, _EPOCH, date(9999, 12, 31), Decimal(0), b""),
        (None,) * len(TYPES),
    ]
    schema = f"{HASH_A} long, number int, " + ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    frame = spark.createDataFrame([(0, n, *row) for n, row in enumerate(rows)], schema)

    found = with_row_hashes(frame, list(TYPES)).select("number", "s", HASH_A, HASH_B).collect()

    expected = [row_hash(dict(zip(TYPES, row, strict=True)), TYPES) for row in rows]
    assert sorted(map(tuple, found)) == [(n, row[0], *expected[n]) for n, row in enumerate(rows)]


def test_a_type_that_the_encoding_does_not_know_is_refused_before_a_row_is_read(spark: Any) -> None:
    with pytest.raises(ValueError, match="type float have no hash"):
        with_row_hashes(spark.sql("SELECT CAST(1 AS float) AS x"), ["x"])


def test_events_are_hashed_by_their_meaning_and_false_hashes_are_counted(spark: Any) -> None:
    """Scenario: two sound events; others with another hash, meaning or key, or without one. Outcome: each is counted."""
    types = event_hashes().types
    told = [{**dict.fromkeys(types), "insert_id": f"i{n}", "uuid": f"u{n}", "event_time": _EPOCH} for n in range(2)]
    table = pa.table({name: pa.array([row[name] for row in told], ARROW_TYPES[kind]) for name, kind in types.items()})
    table = table.append_column("project_id", pa.repeat("1", 2))
    for name, values in event_hashes().of(table).items():
        table = table.append_column(name, values)
    sound = spark.createDataFrame(table)

    hashed = {row["insert_id"]: (row[HASH_A], row[HASH_B]) for row in with_row_hashes(sound, CONTENT).collect()}
    assert hashed == {row["insert_id"]: event_hash(row, types, TRANSPORT_COLUMNS)[:2] for row in told}
    states = [sound]
    for name in ("_hash_b", "_meaning_hash", "_key_a", "_key_b"):
        states += [
            sound.selectExpr(f"* EXCEPT ({name})", f"if(uuid = 'u1', {other}, {name}) AS {name}")
            for other in (5, "NULL")
        ]
    counted = []
    for state in states:
        frame, measured = checked_hashes(state, CONTENT)
        (row,) = frame.agg(*measured).collect()
        counted.append(row[FALSE_HASHES])
    assert counted == [0] + [1] * 8
