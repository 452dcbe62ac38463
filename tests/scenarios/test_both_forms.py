"""A load gives the same tables whether Spark's workers run its tasks or its own process does."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.machine import MOST_TEXT_BYTES
from pipeline_assets.domain.settings import Settings
from resources.failpoints import Failpoint
from tests.support.builders import Pipeline, an_event, events_on, sent_again
from tests.support.points import watching
from tests.support.reference import require_known

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(2)]
QUARANTINE, REFINED = "raw/quarantine", "refined/events"
DEFAULT = int(Settings.model_fields["local_bytes"].default)
_TASKS = "resources/spark/tasks.py"


@dataclass
class Seen:
    read_here: list[str] = field(default_factory=list)
    """Objects of landing that this process read."""
    jobs: int = 0
    """Jobs of Spark that ran tasks of a step."""


@contextmanager
def watched(p: Pipeline) -> Iterator[Seen]:
    """Counts reads of objects here and Spark's jobs, which name the line that began them."""
    seen = Seen()

    def look(point: Failpoint, key: str) -> None:
        if point is Failpoint.MID_PARSE:
            seen.read_here.append(key)

    def jobs() -> set[int]:
        listed = p.spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        found = [listed.apply(number) for number in range(listed.size())]
        return {int(job.jobId()) for job in found if _TASKS in str(job.name())}

    before = jobs()
    with watching(look):
        yield seen
    seen.jobs = len(jobs() - before)


def _bad(p: Pipeline) -> list[tuple[Any, ...]]:
    names = ("source", "object_key", "line_number", "byte_offset", "byte_length", "reason", "detail")
    rows = p.rows(QUARANTINE)
    return sorted((*(str(row[name]) for name in names), bytes(row["sample"]), row["is_batch_accepted"]) for row in rows)


@pytest.mark.parametrize("bound", [DEFAULT, pytest.param(0, marks=pytest.mark.workers)])
def test_a_mark_leaves_all_tasks_to_the_workers(pipeline: Any, bound: int) -> None:
    """Without the mark, a story loads as an operator's deployment does."""
    assert pipeline().settings.local_bytes == bound


def test_both_forms_make_the_same_tables(pipeline: Any) -> None:
    """Scenario: refused lines, a late fact, a moved event and a replaced object, with Spark's workers and by default.
    Outcome: equal digests and refused lines; each form ran where it says."""
    told = []
    for local_bytes in (0, DEFAULT):
        p = pipeline(local_bytes=local_bytes)
        with watched(p) as seen:
            for day in DAYS:
                p.deliver(day, [*events_on(day, 20), *([b"{bad"] if day == DAYS[0] else [])])
            p.must_load(*DAYS)
            moved = sent_again(events_on(DAYS[0], 20)[3], DAYS[1], to=DAYS[1], uuid="moved")
            late = an_event(insert_id="late", uuid="late", event_time=f"{DAYS[0]} 23:00:00.000000", amplitude_id=999)
            p.deliver(DAYS[1], [moved, late, events_on(DAYS[0], 20)[5], b"[]"], hour=15)
            p.deliver(DAYS[0], [*events_on(DAYS[0], 20), b"{bad"])
            p.must_load(DAYS[1])
        require_known(p)
        assert (len(set(seen.read_here)), seen.jobs > 0) == ((3, False) if local_bytes else (0, True))
        told.append((p.digests(), _bad(p)))
    assert told[0] == told[1]


def test_an_object_that_inflates_too_far_is_left_to_spark(pipeline: Any) -> None:
    """Outcome: Spark's workers load every row, and no table has files of the first attempt."""
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
