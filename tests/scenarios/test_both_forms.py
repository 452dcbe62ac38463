"""A load gives the same tables whether Spark's workers run its tasks or its own process does."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.machine import MOST_TEXT_BYTES
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, Pipeline, an_event, events_on
from tests.support.reference import require_known

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(2)]
QUARANTINE, REFINED = "raw/quarantine", "refined/events"
DEFAULT = int(Settings.model_fields["local_bytes"].default)
_TASKS = "resources/spark/tasks.py"


@dataclass
class Seen:
    """Where tasks ran."""

    read_here: list[str] = field(default_factory=list)
    """Objects of landing that this process read."""
    jobs: int = 0
    """Jobs of Spark that ran tasks of a step."""


@contextmanager
def watched(p: Pipeline) -> Iterator[Seen]:
    """Looks at what reads objects here, and at Spark's account of its jobs, which names the line that began one."""
    seen = Seen()

    def look(point: Failpoint, key: str) -> None:
        if point is Failpoint.MID_PARSE:
            seen.read_here.append(key)

    def jobs() -> set[int]:
        listed = p.spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        found = [listed.apply(number) for number in range(listed.size())]
        return {int(job.jobId()) for job in found if _TASKS in str(job.name())}

    before = jobs()
    failpoints.watch(look)
    try:
        yield seen
    finally:
        failpoints.watch()
    seen.jobs = len(jobs() - before)


def _bad(p: Pipeline) -> list[tuple[Any, ...]]:
    names = ("source", "object_key", "line_number", "byte_offset", "byte_length", "reason", "detail")
    rows = p.rows(QUARANTINE)
    return sorted((*(str(row[name]) for name in names), bytes(row["sample"]), row["is_batch_accepted"]) for row in rows)


def _story(p: Pipeline) -> Iterator[Any]:
    """What all tables hold after each step."""

    def told(run: Any) -> Any:
        assert run.success, run.failure()
        require_known(p)
        return p.digests(), _bad(p)

    for day in DAYS:
        p.deliver(day, [*events_on(day, 20), *([b"{bad"] if day == DAYS[0] else [])])
    yield told(p.load(*DAYS))
    published = p.ledger.publications()[-1].number

    # A late fact, a correction of an event that moves to another day, an event again, an object that comes again.
    moved = {**events_on(DAYS[0], 20)[3], "event_time": f"{DAYS[1]} 11:00:00.000000", "uuid": "moved"}
    moved["server_upload_time"] = moved["processed_time"] = f"{DAYS[1]} 12:00:00.000000"
    late = an_event(insert_id="late", uuid="late", event_time=f"{DAYS[0]} 23:00:00.000000", amplitude_id=999)
    p.deliver(DAYS[1], [moved, late, events_on(DAYS[0], 20)[5], b"[]"], hour=15)
    p.deliver(DAYS[0], [*events_on(DAYS[0], 20), b"{bad"])
    yield told(p.load(DAYS[1]))

    key = p.deliver(DAYS[1], events_on(DAYS[1], 4, prefix="wrong"), source=Source.BACKFILL)
    yield told(p.load(DAYS[1], source=Source.BACKFILL))
    yield told(p.load(DAYS[1], source=Source.BACKFILL, exclude={key: "a recovery gone wrong"}))
    # The excluded bytes under another version.
    (p.landing / key).touch()
    yield told(p.load(DAYS[1], source=Source.BACKFILL))

    runtime = Runtime(p.lakehouse, p.ledger, LandingStore.from_settings(p.settings), p.settings)
    roll_back(runtime, RollbackRequest((), (PROJECT,), *DAYS, published, "why", str(uuid.uuid4())))
    require_known(p)
    yield p.digests(), _bad(p)


@pytest.mark.parametrize("bound", [DEFAULT, pytest.param(0, marks=pytest.mark.workers)])
def test_a_mark_leaves_all_tasks_to_the_workers(pipeline: Any, bound: int) -> None:
    """Without it a story loads as an operator's deployment does."""
    assert pipeline().settings.local_bytes == bound


def test_both_forms_make_the_same_tables(pipeline: Any) -> None:
    """Scenario: load, late facts, a correction, refused lines, an exclusion, a rollback: with Spark's workers, and by default.
    Outcome: after each step equal digests of all tables and equal refused lines; each form ran where it says."""
    by_workers, by_default = pipeline(local_bytes=0), pipeline(local_bytes=DEFAULT)

    with watched(by_workers) as seen:
        expected = list(_story(by_workers))
    assert seen.read_here == []
    assert seen.jobs > 0

    with watched(by_default) as seen:
        found = list(_story(by_default))
    assert len(set(seen.read_here)) == 4
    assert seen.jobs == 0

    assert len(expected) == 6
    for step, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one == other, step


def test_an_object_that_inflates_too_far_is_left_to_spark(pipeline: Any) -> None:
    """Scenario: an object of a few kilobytes holds good rows and megabytes of blanks. Outcome: every row is loaded, by Spark's
    workers; nothing is refused; the files of the aborted attempt are in no table."""
    p = pipeline(local_bytes=DEFAULT)
    key = p.deliver(DAYS[0], [])
    lines = [json.dumps(event).encode() for event in events_on(DAYS[0], 5)]
    body = gzip.compress(b"\n".join(lines) + b"\n" * (MOST_TEXT_BYTES + 1))
    (p.landing / key).write_bytes(body)
    p.deliver(DAYS[0], events_on(DAYS[0], 3, prefix="other"), hour=9)
    assert len(body) < DEFAULT / 8

    with watched(p) as seen:
        run = p.load(DAYS[0])

    assert run.success, run.failure()
    assert p.count(REFINED, DAYS[0]) == 8
    assert p.rows(QUARANTINE) == []
    assert key in seen.read_here
    assert seen.jobs == 1
    require_known(p)
