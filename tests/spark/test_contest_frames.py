"""Rows of a DataFrame are decided by the pure rule, row by row; Spark and Python see the same blanks in ids."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyspark.sql.functions as F
import pytest

from pipeline_assets.domain.identity import RawRow, RowFate, named
from pipeline_assets.domain.identity import outcomes as pure_outcomes
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.contest_frames import fates
from pipeline_assets.transforms.digests import HASH_A, HASH_B
from pipeline_assets.transforms.event_hashes import key_hashes, whole
from pipeline_assets.transforms.event_keys import KEY
from pipeline_assets.transforms.named import named as named_in_spark
from pipeline_assets.transforms.row_hash_arrow import Encoded

pytestmark = pytest.mark.slow
CONTENT = ("app", "device_id", "insert_id", "uuid", "server_upload_time", "processed_time", "event_type")
BLANK = ("", "\t", "\u3000\u200b")
"""More kinds of it: tests/unit/domain/test_identity.py, and below."""
PRECEDENCE = (Source.BACKFILL, Source.REGULAR)
CASES = 500
SCHEMA = (
    "project_id string, event_date date, _source string, _object_key string, _line_number int, app long, device_id string, "
    "insert_id string, uuid string, server_upload_time timestamp, processed_time timestamp, event_type string"
)


def with_stored_hashes(spark: Any, raw: Any) -> Any:
    """The rows with the hashes that the task which parsed them would have stored."""
    types = {name: kind for name, kind in raw.dtypes if name in CONTENT}
    rows = raw.toArrow()
    content = Encoded(
        {name: whole(rows.column(name)) for name in CONTENT}, {name: types[name] for name in CONTENT}
    ).hashes()
    for name, values in zip((HASH_A, HASH_B, *KEY), (*content, *key_hashes(rows, content)), strict=True):
        rows = rows.append_column(name, values)
    return spark.createDataFrame(rows)


def _case(number: int) -> list[tuple[Any, ...]]:
    rng = random.Random(number)
    times = [None, *(datetime(2026, 1, 5, hour, tzinfo=UTC) for hour in (1, 2))]
    return [
        (
            str(number),
            date(2026, 1, 5) + timedelta(days=rng.randrange(4)),
            rng.choice(list(Source)).value,
            f"{number}/o{line % 2}",
            line,
            rng.choice((None, number)),
            rng.choice((None, "d", "e", *BLANK)),
            rng.choice((None, "i", "i", "i", "j", *BLANK)),
            rng.choice((None, "u", "u", "v", "w", *BLANK)),
            rng.choice(times),
            rng.choice(times),
            rng.choice(("x", "y")),
        )
        for line in range(rng.randrange(1, 9))
    ]


def test_rows_of_a_frame_are_decided_by_the_pure_rule(spark: Any) -> None:
    """Scenario: random rows in some partitions, one of them written without a key. Outcome: its fate alone is left open."""
    window = 1
    rows = [row for number in range(CASES) for row in _case(number)]
    raw = with_stored_hashes(spark, spark.createDataFrame(rows, SCHEMA)).repartition(3)
    by_case: dict[str, list[RawRow]] = {}
    for r in raw.collect():
        by_case.setdefault(r["project_id"], []).append(
            RawRow(
                r["project_id"],
                r["event_date"],
                Source(r["_source"]),
                r["_object_key"],
                r["_line_number"],
                (r["app"], r["device_id"]),
                r["insert_id"],
                r["uuid"],
                _aware(r["server_upload_time"]),
                _aware(r["processed_time"]),
                (r[HASH_A], r[HASH_B]),
            )
        )
    expected = {
        (row.project_id, row.event_date, row.source.value, row.object_key, row.line_number): outcome.value
        for case in by_case.values()
        for row, outcome in zip(case, pure_outcomes(case, PRECEDENCE, window), strict=True)
    }
    keyless = raw.limit(1).withColumn(KEY[0], F.lit(None).cast("long")).withColumn("_line_number", F.lit(-1))

    decided = fates(raw.unionByName(keyless), PRECEDENCE, window).collect()

    names = ("project_id", "event_date", "_source", "_object_key", "_line_number")
    assert {tuple(row[name] for name in names): row["outcome"] for row in decided} == expected
    assert len(decided) == len(expected)
    assert set(expected.values()) == {fate.value for fate in RowFate}


def test_spark_and_python_see_the_same_characters(spark: Any) -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    frame = spark.createDataFrame(
        [
            (text,)
            for text in (
                *every[:0x3100],
                *every[0xF000 : 0x10000 - 0x800],
                *every[0x1D172 - 0x800 : 0x1D17C - 0x800],
                *every[0xE0000 - 0x800 : 0xE0080 - 0x800],
                "\U000e0fff",
                "\U000e1000",
                "\U0001f600",
                "",
                " x",
                None,
            )
        ],
        "t string",
    )
    seen = {row["t"]: row["named"] for row in frame.select("t", named_in_spark("t").alias("named")).collect()}
    assert seen == {text: None if text is None else named(text) for text in seen}
    assert {text for text, found in seen.items() if found is None} >= {
        "",
        " ",
        "\t",
        "\u00a0",
        "\u3000",
        "\u200b",
        "\ufff9",
        "\U0001d173",
        "\U000e0041",
        "\U000e0fff",
        None,
    }


def _aware(value: datetime | None) -> datetime | None:
    return None if value is None else value.replace(tzinfo=UTC)
