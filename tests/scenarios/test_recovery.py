"""After a run that died, ledger or not, the next one converges; nothing is counted twice."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.errors import PublishConflictError
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.events import REFINED_EVENTS
from tests.support.builders import PROJECT, RAW_AND_REFINED, events_on

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)


@pytest.fixture
def pipeline(pipeline: Any) -> Any:
    """Without aggregates, which depend on refined alone."""
    return partial(pipeline, only=RAW_AND_REFINED)


def test_a_lost_ledger_is_rebuilt_and_nothing_doubles(pipeline: Any) -> None:
    """Scenario: no ledger; branches of an ended and an unknown run. Outcome: equal digests; the first branch goes."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 30))
    ended = p.must_run(DAY)
    before, history = p.digests(), p.history()
    with p.ledger.engine.begin() as connection:
        for table in ("heads", "deliveries", "batches", "batch_days", "slices"):
            connection.execute(sa.text(f"DELETE FROM tidemark_{table}"))
    lakehouse = p.lakehouse
    left = f"{ended.run_id.replace('-', '')}_0"
    for attempt in (left, "stranger_0"):
        lakehouse.stage(REFINED_EVENTS, lakehouse.head(REFINED_EVENTS), attempt, lambda target: None)

    p.must_run(DAY)
    assert p.digests() == before
    assert p.history() == history
    assert p.count("refined/events") == p.count("raw/regular_events") == 30
    assert _branches(p) & {f"tidemark_{left}", "tidemark_stranger_0"} == {"tidemark_stranger_0"}


def test_a_writer_that_comes_second_publishes_nothing(pipeline: Any) -> None:
    """Scenario: two writers stage one slice from one base. Outcome: the first wins, the second is refused whole."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 5))
    p.must_load(DAY)
    lakehouse, key = p.lakehouse, Slice(DAY, PROJECT)
    base = lakehouse.head(REFINED_EVENTS)
    rows = lakehouse.read(REFINED_EVENTS, base)

    def stage(name: str, count: int) -> Any:
        return lakehouse.stage(
            REFINED_EVENTS,
            base,
            name,
            lambda target: lakehouse.replace_slices(REFINED_EVENTS, target, {key}, rows.limit(count)),
        )

    first, second = stage("first", 4), stage("second", 3)

    def publish(staged: Any, run_id: str) -> Any:
        change = lakehouse.changes.of(REFINED_EVENTS, base, staged.snapshot_id, {key})
        return lakehouse.changes.commit(change, staged.branch, run_id)

    assert publish(first, "run-1").files[key].rows == 4
    with pytest.raises(PublishConflictError, match="run run-1 changed it since it was read"):
        publish(second, "run-2")
    assert p.count("refined/events") == 4
    # Another program changed the slice: the next load notices by the files.
    p.must_load(DAY)
    assert p.count("refined/events") == 5


def _branches(p: Any) -> set[str]:
    name = p.lakehouse.identifier(REFINED_EVENTS)
    return {row["name"] for row in p.spark.table(f"{name}.refs").collect()}
