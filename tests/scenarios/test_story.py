"""The story of a mistake, in order, on the sample export (`pytest -s` prints it): every step's digests are those promised."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.slices import Digest, Slice, Source
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.tables.registry import DERIVED
from sample_export.objects import write_export, write_recovery
from sample_export.spec import ExportSpec
from tests.support.reference import require_known

pytestmark = [pytest.mark.slow, pytest.mark.workers]
SPEC = ExportSpec(projects=("10001",), days=5, events_per_day=150, shards=1, hours=(1, 17), tail_share=0.0)
FIRST, LAST = date(2026, 1, 2), date(2026, 1, 4)
"""What the wrong recovery delivers, and what is rolled back."""
SHOWN = tuple(table.key for table in DERIVED)
Digests = Mapping[str, Mapping[Slice, str]]


SPAN = {"from": str(FIRST), "to": str(LAST)}


def _job(p: Any, job: str, op: str, **config: Any) -> None:
    done = (
        build_defs(p.settings, clock=Clock(p.now))
        .resolve_job_def(job)
        .execute_in_process(run_config={"ops": {op: {"config": config}}}, instance=p.instance, raise_on_error=False)
    )
    assert done.success


def _fingerprint(found: Mapping[Slice, str]) -> str:
    told = "".join(f"{key}{digest}" for key, digest in sorted(found.items()))
    return hashlib.sha256(told.encode()).hexdigest()[:10]


class Story:
    """Steps and what they left."""

    def __init__(self, p: Any) -> None:
        self.p = p
        self.page = Table("step", "rows of refined", "revenue", *SHOWN, title="a mistake and its way back")

    def tell(self, step: str) -> Digests:
        found = {name: slices for name, slices in self.p.digests().items() if name in SHOWN}
        rows = sum(Digest.parse(digest).rows for digest in found["refined/events"].values())
        revenue = sum(row["revenue"] or 0 for row in self.p.rows("aggregates/daily_revenue"))
        self.page.add_row(step, str(rows), f"{revenue:.2f}", *(_fingerprint(found[name]) for name in SHOWN))
        return found


def _of_days(found: Digests, *, inside: bool) -> dict[str, dict[Slice, str]]:
    return {
        name: {key: digest for key, digest in slices.items() if (FIRST <= key.event_date <= LAST) is inside}
        for name, slices in found.items()
    }


def test_the_story_of_a_mistake(pipeline: Any) -> None:
    """Scenario: a wrong recovery is refused, then accepted by mistake; it is excluded; the exclusion is lifted; three days are
    rolled back across tables; loads come; they are released. Outcome: at each step the digests are, slice by slice, those of the
    state that the step promises; all of it is on record; a last load changes nothing."""
    p = pipeline(projects=SPEC.projects)
    p.now = datetime(2026, 3, 20, tzinfo=UTC)
    days = SPEC.arrival_days
    write_export(SPEC, p.landing)
    story = Story(p)
    assert p.run(days[0], days[-1]).success
    right, then = story.tell("the export is loaded"), datetime.now(UTC)
    time.sleep(0.01)

    before = {str(path.relative_to(p.landing)) for path in p.landing.rglob("*")}
    write_recovery(replace(SPEC, seed=99), p.landing, FIRST, LAST)
    wrong = sorted(
        str(path.relative_to(p.landing))
        for path in p.landing.rglob("*.json.gz")
        if str(path.relative_to(p.landing)) not in before
    )
    assert not p.run(FIRST, LAST, source=Source.BACKFILL).success
    refused = story.tell("a wrong recovery comes: refused")
    # Days of a few late facts are too small to be bounded.
    assert _of_days(refused, inside=True) == _of_days(right, inside=True)
    accept = {f"{name}:{day}": "looks fine" for name in SHOWN for day in days}
    run = p.run(FIRST, LAST, source=Source.BACKFILL, accept=accept)
    assert run.success, run.failure()
    mistaken = story.tell("it is accepted by mistake")
    assert _of_days(mistaken, inside=True) != _of_days(right, inside=True)

    run = p.run(
        FIRST, LAST, source=Source.BACKFILL, exclude=dict.fromkeys(wrong, "made for another project"), accept=accept
    )
    assert run.success, run.failure()
    assert story.tell(f"its {len(wrong)} objects are excluded") == right
    run = p.run(FIRST, LAST, source=Source.BACKFILL, include=dict.fromkeys(wrong, "a rehearsal"), accept=accept)
    assert run.success, run.failure()
    assert story.tell("the exclusion is lifted") == mistaken

    _job(p, "rollback", "roll_back", **SPAN, back_to=then.isoformat(), reason="wrong recovery")
    back = story.tell("three days are rolled back")
    assert _of_days(back, inside=True) == _of_days(right, inside=True)
    assert _of_days(back, inside=False) == _of_days(mistaken, inside=False)
    assert p.run(days[0], days[-1]).success
    assert story.tell("a load comes: they are held") == back
    assert p.verdict("refined/events", FIRST) == "held"

    _job(p, "release", "release_held", **SPAN, reason="the story goes on")
    assert story.tell("they are released") == back
    run = p.run(days[0], days[-1], accept=accept)
    assert run.success, run.failure()
    assert story.tell("the next load builds them again") == mistaken
    Console(width=170).print(story.page)
    causes = [record.cause.text for record in p.ledger.publications("refined/events") if record.key.event_date == FIRST]
    print(f"refined/events {FIRST}, causes on record: {'; '.join(causes)}")
    assert sum(cause == "rollback" for cause in causes) == len(SPEC.projects)
    require_known(p)
    history = p.history()
    assert p.run(days[0], days[-1]).success
    assert p.history() == history
