"""Slices that wait for lost data files, and raw's return: rules on values alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Source, Verdict
from pipeline_assets.load.build.builder import Audit
from pipeline_assets.load.build.refined_audit import _is_compared
from pipeline_assets.load.deliveries.accept import brought_back
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, await_lost, decide
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from tests.unit.load.test_decide import KEY, NEXT, NOW, OTHER_ROWS, PUBLISHED, RAW, Known

FAR = Slice(KEY.event_date + timedelta(days=9), KEY.project_id)
NAME = "a.parquet"
FILE = f"s3://lake/refined/events/data/{NAME}"
ONE, TWO, THREE = (BatchKey(Source.REGULAR, "10001", date(2026, 2, day)) for day in (2, 3, 4))


def plans_of(facts: Facts, now: datetime = NOW) -> dict[Slice, SlicePlan]:
    return {plan.key: plan for plan in await_lost(facts, REFINED_EVENTS, decide(facts, REFINED_EVENTS, [], {}, now))}


def facts_with(known: Known, lost: dict[str, dict[Slice, str]], *, is_read_again: bool = False) -> Facts:
    return replace(known.facts, lost=lost, is_read_again=is_read_again)


def test_a_slice_whose_file_is_gone_is_refused_by_name_until_it_is_to_be_read_again() -> None:
    lost = {REFINED_EVENTS.key: {KEY: FILE}}
    refused = plans_of(facts_with(Known(), lost))[KEY]
    assert (refused.todo, refused.failure) == (Todo.REFUSE, lost_file(REFINED_EVENTS.key, KEY, FILE))
    assert refused.failure is not None
    assert NAME in (refused.failure.reason or "")
    assert refused.failure.hint == (
        "Put it back and load the day, or: tidemark load --source regular --from 2026-02-04 --to 2026-02-04 --project 10001 "
        "--read-again"
    )
    built = plans_of(facts_with(Known(), lost, is_read_again=True))[KEY]
    assert (built.todo, built.cause.kind) == (Todo.REBUILD, CauseKind.FILES_GONE)


def test_a_held_slice_whose_file_is_gone_is_not_built_from_what_is_there_today() -> None:
    facts = facts_with(Known(holds={KEY: "wrong prices"}), {REFINED_EVENTS.key: {KEY: FILE}}, is_read_again=True)
    refused = plans_of(facts)[KEY]
    assert refused.todo is Todo.REFUSE
    assert refused.failure is not None
    assert "held: wrong prices" in (refused.failure.reason or "")


@pytest.mark.parametrize(("table", "key"), [(RAW, KEY), (RAW, NEXT), (REFINED_EVENTS.key, NEXT)])
def test_what_would_read_a_lost_file_waits_and_what_is_up_to_date_stays(table: str, key: Slice) -> None:
    lost = {table: {key: FILE}}
    waits = plans_of(facts_with(Known(own=OTHER_ROWS), lost))[KEY]
    assert (waits.todo, NAME in (waits.reason or "")) == (Todo.WAIT, True)
    assert plans_of(facts_with(Known(), lost))[KEY].todo is Todo.KEEP
    assert plans_of(facts_with(Known(own=OTHER_ROWS), {table: {FAR: FILE}}))[KEY].todo is Todo.REBUILD


def test_where_nobody_looked_the_record_tells_so_that_no_sensor_asks_for_the_day_again() -> None:
    loss = lost_file(REFINED_EVENTS.key, KEY, FILE)
    record = replace(PUBLISHED, verdict=Verdict.REFUSED, reason=loss.reason, refused_evaluations=(loss,))
    assert plans_of(Known(record=record).facts)[KEY].todo is Todo.REFUSE
    assert plans_of(facts_with(Known(record=record), {}))[KEY].todo is Todo.KEEP


def test_a_lost_slice_of_raw_is_whole_only_with_all_its_batches_and_a_batch_only_with_all_its_slices() -> None:
    holding = {KEY: {ONE, TWO}, NEXT: {TWO, THREE}, FAR: {THREE}}
    assert brought_back(holding, {ONE, TWO, THREE}) == ({KEY, NEXT, FAR}, set())
    assert brought_back(holding, {ONE, TWO}) == (set(), {ONE, TWO, THREE})
    assert brought_back({KEY: {ONE}, FAR: {THREE}}, {ONE}) == ({KEY}, {THREE})
    # Without a batch on record the slice's content is unknown.
    assert brought_back({KEY: set()}, {ONE}) == (set(), set())


def test_the_keys_of_a_slice_whose_files_are_gone_are_compared_with_nothing() -> None:
    """Against its empty base every key would count as added for good."""
    record = SliceRecord(REFINED_EVENTS.key, KEY, Verdict.PUBLISHED, digest=Digest(3000, 1, 1))
    plan: Any = SimpleNamespace(runtime=SimpleNamespace(settings=Settings()))
    present: Any = None
    decided = [
        SlicePlan(KEY, Todo.REBUILD, present, record, True, was_final=True, cause=Cause.of(kind))
        for kind in (CauseKind.DELIVERY, CauseKind.FILES_GONE)
    ]
    audit = Audit(Digest(3003, 2, 2), {}, {}, ())
    assert [_is_compared(plan, one, audit) for one in decided] == [True, False]
