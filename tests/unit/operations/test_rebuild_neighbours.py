"""A rebuild's neighbouring days: the snapshot they are read from, and when their refusals are judged again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.records import InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.load.build.builder import TablePlan
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.operations.rebuild_choose import is_judged_beside, refused_beside, states_beside
from pipeline_assets.tables.aggregates import EVENT_COUNTS
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from tests.support.builders import PROJECT

DAY = date(2026, 2, 3)
BEFORE, OWN, AFTER = (Slice(DAY + timedelta(days=shift), PROJECT) for shift in (-1, 0, 1))
SETTINGS = Settings(projects=(PROJECT,), dedupe_window_days=1)
RUNTIME = Runtime(None, None, None, SETTINGS)  # type: ignore[arg-type]
MAIN, STAGED = 1, 2


def held(key: Slice, rows: int = 9) -> SliceRecord:
    return SliceRecord(REFINED_EVENTS.key, key, Verdict.PUBLISHED, digest=Digest(rows, 1, 1))


def test_a_neighbour_is_read_from_the_snapshot_that_holds_it_as_it_is_now() -> None:
    """Outcome: a load reads all three days from its staging; on a lasting branch, main has the unchanged ones."""
    request = LoadRequest((DAY,), (PROJECT,), frozenset({REFINED_EVENTS.key}), "run", datetime(2026, 6, 1, tzinfo=UTC))
    todo = [SlicePlan(OWN, Todo.REBUILD, InputState(), None, is_requested=True)]
    load = TablePlan(RUNTIME, request, REFINED_EVENTS, MAIN, {}, "run_0", todo, 0.0)
    near = {BEFORE, OWN, AFTER}
    assert load.states(STAGED, near) == {STAGED: near}
    assert replace(load, built_beside=frozenset()).states(STAGED, near) == {STAGED: {OWN}, MAIN: {BEFORE, AFTER}}
    assert replace(load, built_beside=frozenset({BEFORE})).states(STAGED, near) == {
        STAGED: {BEFORE, OWN},
        MAIN: {AFTER},
    }
    assert replace(load, built_beside=frozenset({BEFORE, AFTER})).states(STAGED, near) == {STAGED: near}


def test_what_a_neighbour_refuses_is_looked_at_again_once_the_neighbour_is_another() -> None:
    """Outcome: a refusal for a shared key stands while both neighbours are the same, any other one regardless."""

    def beside(*green: Slice, rows: int = 9) -> str:
        return states_beside(SETTINGS, REFINED_EVENTS, OWN, green, {AFTER: held(AFTER, rows)})

    def refused(check: Check, beside: str) -> SliceRecord:
        failed = (Evaluation(check, False, "1 rows share a key with another row"),)
        rejection = Rejection(InputState(), judging(REFINED_EVENTS, SETTINGS))
        record = replace(held(OWN), verdict=Verdict.REFUSED, rejection=rejection, refused_evaluations=failed)
        return refused_beside(record, beside)

    by_key, by_raw = (refused(check, beside()) for check in (Check.UNIQUE_EVENT_KEY, Check.RECONCILES_WITH_RAW))
    for changed in (beside(AFTER), beside(BEFORE), beside(rows=8)):
        assert not is_judged_beside(RUNTIME, REFINED_EVENTS, by_key, changed)
        assert is_judged_beside(RUNTIME, REFINED_EVENTS, by_raw, changed)
    assert is_judged_beside(RUNTIME, REFINED_EVENTS, by_key, beside(OWN))
    assert states_beside(SETTINGS, EVENT_COUNTS, OWN, {BEFORE, AFTER}, {}) == ""
