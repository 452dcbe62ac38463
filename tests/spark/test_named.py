"""Spark and Python see the same blanks in ids."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_assets.domain.identity import named
from pipeline_assets.transforms.digests import named as named_in_spark

pytestmark = pytest.mark.slow


def test_spark_and_python_see_the_same_characters(spark: Any) -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    astral = [every[first - 0x800 : last - 0x800] for first, last in ((0x1D172, 0x1D17C), (0xE0000, 0xE0080))]
    texts = [
        *every[:0x3100],
        *every[0xF000 : 0x10000 - 0x800],
        *astral[0],
        *astral[1],
        *"\U000e0fff\U000e1000\U0001f600",
    ]
    frame = spark.createDataFrame([(text,) for text in (*texts, "", " x", None)], "t string")
    seen = {row["t"]: row["named"] for row in frame.select("t", named_in_spark("t").alias("named")).collect()}
    assert seen == {text: None if text is None else named(text) for text in seen}
    blank = {text for text, found in seen.items() if found is None}
    assert blank >= {"", None, *" \t\u00a0\u3000\u200b\ufff9\U0001d173\U000e0041\U000e0fff"}
