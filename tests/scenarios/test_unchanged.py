"""A load that finds nothing to do starts no Spark."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from dagster_pyspark import LazyPySparkResource

from pipeline_assets.domain.slices import Source
from tests.support.builders import events_on

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)


class NoSpark(LazyPySparkResource):
    """A resource that nobody may use."""

    def _init_session(self) -> None:
        raise RuntimeError("Spark was started")


def test_the_same_day_again_starts_no_spark(pipeline: Any) -> None:
    """Outcome: unchanged, every day shown with the same data version; a new object asks for Spark and is loaded once."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 20))
    p.deliver(DAY, events_on(DAY, 5, prefix="r"), source=Source.BACKFILL)
    p.must_run(DAY)
    first = p.must_run(DAY, source=Source.BACKFILL)
    history, digests = p.history(), p.digests()
    p.resources = {"spark": NoSpark(spark_config={})}

    for source in Source:
        again = p.must_run(DAY, source=source)
        assert again.materialized("refined/events") == {str(DAY)}
        shown = [run.metadata("refined/events", DAY)["data_version"] for run in (first, again)]
        assert shown[0] == shown[1]
    p.deliver(DAY, events_on(DAY, 1, prefix="late"), hour=12)
    woken = p.run(DAY)
    assert not woken.success
    assert "Spark was started" in woken.failure()
    assert (p.history(), p.digests()) == (history, digests)
    p.resources = {}
    p.must_run(DAY)
    assert p.count("refined/events") == 26
