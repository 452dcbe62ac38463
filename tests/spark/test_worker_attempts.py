"""What Spark says of each attempt of a task: a worker that cannot run tasks is known by one of them."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from resources.spark.workers import Attempt, attempts_of

pytestmark = pytest.mark.slow


def test_each_attempt_of_each_task_is_told_with_its_failure(spark: Any) -> None:
    """Scenario: a job of three tasks, and one that fails. Outcome: of each attempt where it ran, and why it failed."""
    context = spark.sparkContext

    def fail(_: int) -> None:
        raise ValueError("no task of ours")

    known = set(context.statusTracker().getJobIdsForGroup())
    context.parallelize(range(3), 3).count()
    attempts = attempts_of(context, known)
    (host,) = {attempt.host for attempt in attempts}
    assert attempts == [Attempt("driver", host, None)] * 3
    known = set(context.statusTracker().getJobIdsForGroup())
    with pytest.raises((Py4JJavaError, PySparkException)):
        context.parallelize(range(1), 1).foreach(fail)
    (attempt,) = attempts_of(context, known)
    assert (attempt.executor, attempt.host) == ("driver", host)
    assert "ValueError: no task of ours" in str(attempt.failure)
