"""The hash of a row is the same in Spark and in Python, and nobody makes two rows share it.

Contains: claims on the encoding, and texts made to collide in the hash of version 1.
Add here: another value that is hard to tell from its neighbour.
Does not contain: digests of slices.
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline_assets.domain.identity import RowFate
from pipeline_assets.domain.row_hash import row_hash
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.transforms.contest import FATES, decide
from pipeline_assets.transforms.contested_columns import READ_TYPES, contested_rows
from pipeline_assets.transforms.digests import slice_digests
from pipeline_assets.transforms.event_hashes import key_hashes, whole
from pipeline_assets.transforms.event_keys import KEY
from pipeline_assets.transforms.file_rows import with_columns
from pipeline_assets.transforms.row_hash import row_hashes
from pipeline_assets.transforms.row_hash_arrow import Encoded

pytestmark = pytest.mark.slow

TYPES = {
    "s": "string",
    "t": "string",
    "n": "bigint",
    "i": "int",
    "b": "boolean",
    "d": "double",
    "e": "double",
    "at": "timestamp",
    "day": "date",
    "m": "decimal(38,6)",
    "raw": "binary",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = Decimal("9999999999999999999999999999.999999")
NASTY: dict[str, tuple[Any, ...]] = {
    "string": ("", "-", "1", "0", ",", ";", "1:a", "\x00", "a\x00b", "\ufffd", "\U0001f600", "é", "e\u0301", "ı", "I"),
    "bigint": (0, 1, -1, (1 << 63) - 1, -(1 << 63)), "int": (0, -1, (1 << 31) - 1, -(1 << 31)), "boolean": (True, False),
    "double": (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.7976931348623157e308, 0.1, -1.0, 2e-3, 1e7),
    "timestamp": (_EPOCH, _EPOCH - timedelta(microseconds=1), datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)),
    "binary": (b"", b"\x00", b"\xff\x00", b"{not json"),
    "date": (date(1970, 1, 1), date(1900, 1, 1), date(9999, 12, 31)),
    "decimal(38,6)": (Decimal(0), Decimal("0.000001"), Decimal("-0.000001"), Decimal("2.5"), Decimal("-17"), _MOST, -_MOST),
}  # fmt: skip


def _row(rng: random.Random) -> tuple[Any, ...]:
    return tuple(None if rng.random() < 0.2 else rng.choice(NASTY[kind]) for kind in TYPES.values())


def test_spark_and_python_hash_rows_alike(spark: Any) -> None:
    """Scenario: 3,000 rows of extremes, nulls, signs of zero, separators, NUL and astral characters; then under another time zone
    and without ANSI. Outcome: the same 128 bits in both, and equal ones for equal rows only."""
    rng = random.Random(1)
    rows = [_row(rng) for _ in range(3000)]
    schema = "at_number int, " + ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], schema)
    first, second = row_hashes(TYPES)
    expected = [row_hash(dict(zip(TYPES, row, strict=True)), TYPES) for row in rows]
    for name, value in (("spark.sql.ansi.enabled", "true"), ("spark.sql.ansi.enabled", "false")):
        kept = spark.conf.get(name)
        spark.conf.set(name, value)
        try:
            found = frame.select("at_number", first.alias("a"), second.alias("b")).collect()
        finally:
            spark.conf.set(name, kept)
        assert {row["at_number"]: (row["a"], row["b"]) for row in found} == dict(enumerate(expected))
    told = {repr(row) for row in rows}
    assert len(set(expected)) == len(told)


def test_a_type_that_the_encoding_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="type float have no hash"):
        row_hashes({"x": "float"})


# -- texts that collide under version 1 ------------------------------------------------------------------------

_CONTENT = ("app", "device_id", "insert_id", "uuid", "server_upload_time", "processed_time", "event_type")
_DAY = date(2026, 1, 5)
_ONE, _TWO = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
_MASK = (1 << 64) - 1


def _colliding(number: int) -> tuple[str, str] | None:
    """Two texts of 64 characters that xxhash64 may not tell apart, whatever it hashed before: a difference in the first block of
    a lane moves its state by a known amount unless a carry spreads, and the second block takes it back."""
    inverse = pow(_TWO, -1, 1 << 64)
    rng = random.Random(number)
    bit, sign = rng.choice((56, 57, 58, 59)), rng.choice((1, -1))
    first = int.from_bytes(bytes(rng.randrange(32, 127) for _ in range(8)), "little")
    first_other = (first + (inverse << bit)) & _MASK
    moved = sign * (1 << ((bit + 31) % 64)) * _ONE
    second = int.from_bytes(bytes(rng.randrange(128) for _ in range(8)), "little")
    second_other = (second - moved * inverse) & _MASK
    texts = [
        (one.to_bytes(8, "little") + b"x" * 24 + two.to_bytes(8, "little") + b"x" * 24)
        for one, two in ((first, second), (first_other, second_other))
    ]
    return (texts[0].decode(), texts[1].decode()) if all(text.isascii() for text in texts) else None


def _with_stored_hashes(rows: pa.Table) -> pa.Table:
    """The rows with the hashes that the task which parsed them would have stored, and the columns that a contest reads."""
    kinds = EXPORT_FORMAT.spark_types
    content = Encoded({name: whole(rows[name]) for name in _CONTENT}, {name: kinds[name] for name in _CONTENT}).hashes()
    for name, values in zip(("_hash_a", "_hash_b", *KEY), (*content, *key_hashes(rows, content)), strict=True):
        rows = rows.append_column(name, values)
    return with_columns(rows, READ_TYPES)


def test_two_events_made_to_collide_stay_two(spark: Any) -> None:
    """Scenario: events without any id, at one instant, whose event types were made to share both hashes of version 1.
    Outcome: they do share them; each is an event of its own, and a day with one does not look like a day with the other."""
    pairs = [pair for number in range(60_000) if (pair := _colliding(number)) is not None][:400]
    assert len(pairs) > 50
    at = datetime(2026, 1, 5, 1, tzinfo=UTC)
    rows = [
        (str(n), date(2026, 1, 5), "regular", "o", line, 1, "d", None, None, at, at, text)
        for n, pair in enumerate(pairs)
        for line, text in enumerate(pair)
    ]
    schema = (
        "project_id string, event_date date, _source string, _object_key string, _line_number int, app long, device_id string, "
        "insert_id string, uuid string, server_upload_time timestamp, processed_time timestamp, event_type string"
    )
    raw = spark.createDataFrame(rows, schema)
    former: dict[str, set[Any]] = {}
    names = ", ".join(_CONTENT)
    mask = ", ".join(f"if({name} IS NULL, '1', '0')" for name in _CONTENT)
    for row in raw.selectExpr(
        "project_id", *(f"xxhash64('{seed}', concat({mask}), {names}) AS {seed}" for seed in "ab")
    ).collect():
        former.setdefault(row["project_id"], set()).add((row["a"], row["b"]))
    broken = sorted(project for project, found in former.items() if len(found) == 1)
    assert len(broken) >= 5, len(broken)
    attacked = raw.where(raw.project_id.isin(broken))
    contest = pa.concat_tables(
        contested_rows(
            _with_stored_hashes(attacked.where(f"project_id = '{one}'").toArrow()), Slice(_DAY, one), "regular"
        )
        for one in broken
    )
    decided = decide(contest.combine_chunks(), list(Source), 1)
    assert {FATES[fate] for fate in decided.fates.tolist()} == {RowFate.WINNER}
    assert len(decided.fates) == 2 * len(broken)
    one, other = (slice_digests(attacked.where(f"_line_number = {line}"), _CONTENT, "event_date") for line in (0, 1))
    assert one.keys() == other.keys()
    assert all(one[key] != other[key] for key in one)
