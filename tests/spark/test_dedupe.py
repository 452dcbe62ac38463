"""The Spark expression of identity and winner equals the pure rule, row by row."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyspark.sql.functions as F
import pytest

from pipeline_assets.domain.identity import RawRow, RowFate, defeat, named
from pipeline_assets.domain.identity import outcomes as pure_outcomes
from pipeline_assets.domain.slices import Source
from pipeline_assets.transforms.cross_day_keys import competing_digest, digests_of_competing, shared_rows
from pipeline_assets.transforms.dedupe import UNREAD, outcomes, winners
from pipeline_assets.transforms.digests import HASH_A, HASH_B
from pipeline_assets.transforms.event_hashes import key_hashes, whole
from pipeline_assets.transforms.event_keys import IDENTITY, KEY, candidate_duplicates
from pipeline_assets.transforms.named import named as named_in_spark
from pipeline_assets.transforms.row_hash_arrow import Encoded

pytestmark = pytest.mark.slow
CONTENT = ("app", "device_id", "insert_id", "uuid", "server_upload_time", "processed_time", "event_type")
BLANK = ("", "\t", "\u3000\u200b")
"""More kinds of it: tests/unit/domain/test_identity.py, and below."""
PRECEDENCE = (Source.BACKFILL, Source.REGULAR)
CASES = 2_000
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


def _hot_keys(raw: Any) -> Any:
    """Keys of three rows or more: about half of them."""
    return candidate_duplicates(raw).where("count >= 3")


@pytest.mark.parametrize("window", [0, 1, 2])
def test_spark_and_the_pure_rule_agree(spark: Any, window: int) -> None:
    rows = [row for number in range(CASES) for row in _case(number)]
    raw = with_stored_hashes(spark, spark.createDataFrame(rows, SCHEMA)).repartition(3)
    raw = raw.withColumn(UNREAD, F.expr("processed_time IS NULL AND _line_number % 2 = 0"))
    hashed = {
        (row["project_id"], row["_source"], row["_object_key"], row["_line_number"]): row for row in raw.collect()
    }
    decided = outcomes(raw, PRECEDENCE, window)
    # As a load does it where no key is hot; and, once, with every second key taken for hot.
    ways = [decided, *([outcomes(raw, PRECEDENCE, window, _hot_keys(raw))] if window == 1 else [])]
    found, *found_apart = [
        {
            (row["project_id"], row["_source"], row["_object_key"], row["_line_number"]): (
                row["outcome"],
                row["is_by_unread"],
            )
            for row in frame.collect()
        }
        for frame in ways
    ]
    expected: dict[Any, tuple[str, bool]] = {}
    by_case: dict[str, list[Any]] = {}
    for (project, *_), row in hashed.items():
        by_case.setdefault(project, []).append(row)
    for same in by_case.values():
        case = [
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
                "no time" if r[UNREAD] else None,
            )
            for r in same
        ]
        for row, outcome in zip(case, pure_outcomes(case, PRECEDENCE, window), strict=True):
            lost = defeat(row, outcome, case, PRECEDENCE, window)
            is_by_unread = lost is not None and lost.by_unread(row)
            place = row.project_id, row.source.value, row.object_key, row.line_number
            expected[place] = (outcome.value, is_by_unread)
    assert found == expected
    assert found_apart == [expected] * (len(ways) - 1)
    fates = {o.value for o in RowFate} - ({RowFate.SUPERSEDED_BY_OTHER_DAY.value} if window == 0 else set())
    losers = fates - {RowFate.WINNER.value}
    assert set(found.values()) == {(fate, False) for fate in fates} | {(fate, True) for fate in losers}
    kept = winners(raw, decided).count()
    assert kept == sum(outcome == RowFate.WINNER.value for outcome, _ in expected.values())


def test_rivals_have_one_digest_whether_a_slice_is_built_or_looked_at(spark: Any) -> None:
    """Also where their uuid is blank: another digest would have such a slice built again for ever."""
    rows = [row for number in range(CASES // 10) for row in _case(number)]
    early, late = (date(2026, 1, day) for day in (5, 6))
    rows += [
        ("blank", day, "regular", f"blank/{uuid!r}", 1, None, None, f"i {uuid!r}", uuid, None, None, "x")
        for uuid in (*BLANK, None, "u")
        for day in (early, late)
    ]
    raw = with_stored_hashes(spark, spark.createDataFrame(rows, SCHEMA)).repartition(3).persist()
    competing_digests = outcomes(raw, PRECEDENCE, 1).where("rival IS NOT NULL")
    built = competing_digests.select("event_date", "project_id", "rival.*")
    narrow = raw.select("event_date", "project_id", "_source", *IDENTITY)
    apart = outcomes(raw, PRECEDENCE, 1, _hot_keys(raw)).where("rival IS NOT NULL")
    built_apart = apart.select("event_date", "project_id", "rival.*")
    found = [
        {
            (row["project_id"], row["event_date"]): competing_digest(row.asDict())
            for row in digests_of_competing(shared, 1).collect()
        }
        for shared in (built, shared_rows(narrow, 1), built_apart, shared_rows(narrow, 1, _hot_keys(raw)))
    ]
    raw.unpersist()
    assert found[1:] == found[:1] * 3
    assert found[0].keys() >= {("blank", early), ("blank", late)}


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
