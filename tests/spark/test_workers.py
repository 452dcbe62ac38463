"""The start of each task in Spark's Python workers, and Spark's report of each attempt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipeline_assets.native import library
from resources.spark.workers import attempts_of

pytestmark = pytest.mark.slow


def test_each_attempt_of_each_task_is_told_with_its_failure(spark: Any) -> None:
    """Scenario: a job of three tasks, and a failing one. Outcome: each attempt has its place and failure."""
    context = spark.sparkContext

    def fail(_: int) -> None:
        raise ValueError("no task of ours")

    known = set(context.statusTracker().getJobIdsForGroup())
    context.parallelize(range(3), 3).count()
    attempts = attempts_of(context, known)
    (host,) = {host for _, host, _ in attempts}
    assert attempts == [("driver", host, None)] * 3
    known = set(context.statusTracker().getJobIdsForGroup())
    with pytest.raises((Py4JJavaError, PySparkException)):
        context.parallelize(range(1), 1).foreach(fail)
    ((*place, failure),) = attempts_of(context, known)
    assert place == ["driver", host]
    assert "ValueError: no task of ours" in str(failure)


def test_no_task_reads_the_names_in_sparks_archives_again(spark: Any) -> None:
    """Scenario: two tasks of one worker. Outcome: it imports PySpark from the driver's folder, and opens no archive."""

    def seen(_: int) -> tuple[str, list[str], list[str]]:
        opened = [place for place, found in sys.path_importer_cache.items() if isinstance(found, zipimporter)]
        return pyspark.__file__, opened, sys.path

    for _ in range(2):
        ((place, opened, path),) = spark.sparkContext.parallelize([0], 1).map(seen).collect()
    assert Path(place).resolve() == Path(pyspark.__file__).resolve()
    assert opened == []
    assert not [each for each in path if each.endswith((".jar", "pyspark.zip", "-src.zip"))]


def test_a_worker_uses_the_library_where_the_driver_does(spark: Any) -> None:
    found = spark.sparkContext.parallelize(range(2), 2).map(lambda _: library() is not None).collect()
    assert found == [library() is not None] * 2
