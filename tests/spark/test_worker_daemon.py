"""What Spark's Python workers begin each task with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pyspark
import pytest

pytestmark = pytest.mark.slow


def test_no_task_reads_the_names_in_sparks_archives_again(spark: Any) -> None:
    """Scenario: two tasks of one worker. Outcome: it imports the driver's PySpark from its folder, and has no archive open."""

    def seen(_: int) -> tuple[str, list[str], list[str]]:
        opened = [place for place, found in sys.path_importer_cache.items() if isinstance(found, zipimporter)]
        return pyspark.__file__, opened, sys.path

    for _ in range(2):
        ((place, opened, path),) = spark.sparkContext.parallelize([0], 1).map(seen).collect()
    assert Path(place).resolve() == Path(pyspark.__file__).resolve()
    assert opened == []
    assert not [each for each in path if each.endswith((".jar", "pyspark.zip", "-src.zip"))]
