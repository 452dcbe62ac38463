"""Python workers of Spark find the native library that the driver finds."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_assets.native.library import library

pytestmark = pytest.mark.slow


def test_a_worker_uses_the_library_where_the_driver_does(spark: Any) -> None:
    found = spark.sparkContext.parallelize(range(2), 2).map(lambda _: library() is not None).collect()
    assert found == [library() is not None] * 2
