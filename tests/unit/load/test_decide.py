"""A load's decision about a slice follows from facts alone: each rule on made facts, without a database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Acceptances, lost_file
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.identity import with_tie
from pipeline_assets.domain.records import BatchRecord, InputDay, InputState, Rejection, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.load.build.builder import Audit
from pipeline_assets.load.build.refined_audit import _is_compared
from pipeline_assets.load.deliveries.accept import brought_back
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, await_lost, decide, release_waits, resolve
from pipeline_assets.load.staleness.facts import Facts, judging
from pipeline_assets.load.staleness.scan import not_yet_decided
from pipeline_assets.tables.aggregates import EVENT_COUNTS
from pipeline_assets.tables.events import REFINED_EVENTS
from tests.support.cases import cases

PROJECT, DAY, RAW, BACKFILL = "10001", date(2026, 2, 4), "raw/regular_events", "raw/backfill_events"
KEY = Slice(DAY, PROJECT)
NEXT, BEFORE = Slice(DAY + timedelta(days=1), PROJECT), Slice(DAY - timedelta(days=1), PROJECT)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = Settings(projects=(PROJECT,), calendar_start=date(2026, 1, 1))
ROWS, OTHER_ROWS, NEAR_ROWS = Digest(300, 1, 1), Digest(301, 2, 2), Digest(50, 3, 3)
CROSS_DAY = str(Digest(2, 7, 7))
BUILT_FROM = InputState({InputDay(RAW, DAY): ROWS, InputDay(RAW, NEXT.event_date): NEAR_ROWS}, CROSS_DAY)
PUBLISHED = SliceRecord(
    REFINED_EVENTS.key, KEY, Verdict.PUBLISHED, digest=Digest(290, 5, 5), input_state=BUILT_FROM,
    code_version=REFINED_EVENTS.code_version(SETTINGS),
)  # fmt: skip
OUTDATED = replace(PUBLISHED, code_version="an older one")
REJECTED = Rejection(BUILT_FROM, judging(REFINED_EVENTS, SETTINGS))
STALE = replace(PUBLISHED, input_state=InputState({InputDay(RAW, DAY): OTHER_ROWS}, CROSS_DAY))
ACCEPTED: Acceptances = {(REFINED_EVENTS.key, KEY): "a test device"}


@dataclass(frozen=True)
class Known:
    """The records around the day; by default two days are delivered and refined.events is up to date."""

    record: SliceRecord | None = PUBLISHED
    own: Digest = ROWS
    near: Digest = NEAR_ROWS
    batches: Collection[BatchRecord] = (
        BatchRecord(BatchKey(Source.REGULAR, PROJECT, DAY), BatchVerdict.ACCEPTED, deliveries=24, hours_marked=24),
    )
    first_arrival: date | None = date(2026, 1, 1)
    settings: Settings = SETTINGS
    holds: Mapping[Slice, str] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        raw = {
            key: SliceRecord(RAW, key, Verdict.PUBLISHED, digest=digest)
            for key, digest in ((KEY, self.own), (NEXT, self.near))
        }
        refined = {NEXT: replace(PUBLISHED, key=NEXT)} | ({} if self.record is None else {KEY: self.record})
        return Facts(
            self.settings, frozenset({KEY}), {batch.key: batch for batch in self.batches},
            {} if self.first_arrival is None else {PROJECT: self.first_arrival},
            {REFINED_EVENTS.key: refined, RAW: raw, BACKFILL: {}, EVENT_COUNTS.key: {}},
            {REFINED_EVENTS.key: self.holds},
        )  # fmt: skip

    def plan(
        self, *, is_requested: bool = False, accepted: Acceptances | None = None, now: datetime = NOW
    ) -> SlicePlan:
        (plan,) = decide(self.facts, REFINED_EVENTS, [KEY] if is_requested else [], accepted or {}, now)
        return plan


def a_batch(verdict: BatchVerdict, *, source: Source = Source.REGULAR, deliveries: int = 24) -> BatchRecord:
    return BatchRecord(BatchKey(source, PROJECT, DAY), verdict, deliveries=deliveries)


def test_a_slice_of_which_nothing_is_known_is_planned_where_somebody_asks_alone() -> None:
    nothing = Known(record=None, own=EMPTY, batches=()).facts
    assert decide(nothing, REFINED_EVENTS, [], {}, NOW) == []
    (plan,) = decide(nothing, REFINED_EVENTS, [KEY], {}, NOW)
    assert plan.todo is Todo.WAIT


@pytest.mark.parametrize("is_requested", [False, True])
def test_the_same_inputs_and_code_are_not_built_again(is_requested: bool) -> None:
    plan = Known().plan(is_requested=is_requested)
    assert (plan.todo, plan.present, plan.is_outdated) == (Todo.KEEP, BUILT_FROM, False)


def test_other_code_builds_again_where_somebody_asks_for_the_day() -> None:
    known = Known(record=OUTDATED)
    kept, built = known.plan(), known.plan(is_requested=True)
    assert (kept.todo, kept.is_outdated, kept.is_blocked) == (Todo.KEEP, True, True)
    assert (built.todo, built.cause.kind, built.cause.text) == (Todo.REBUILD, CauseKind.CODE, "code")


def test_other_rows_of_its_own_are_built() -> None:
    plan = Known(own=OTHER_ROWS).plan()
    assert (plan.todo, plan.cause.text, plan.present.cross_day) == (Todo.REBUILD, f"changed {RAW}", None)
    both = Known(record=OUTDATED, own=OTHER_ROWS).plan(is_requested=True)
    assert (both.cause.text, both.cause.has_new_code) == (f"changed {RAW}, code", True)


ALONE = InputState({InputDay(RAW, DAY): ROWS}, CROSS_DAY)


@cases(
    ("known", "todo", "cause"),
    {
        "never built": (Known(record=None), Todo.REBUILD, "first build"),
        "content with unknown inputs": (
            Known(record=replace(PUBLISHED, input_state=None)),
            Todo.REBUILD,
            "first build",
        ),
        "without rows": (Known(record=replace(PUBLISHED, digest=EMPTY), own=EMPTY), Todo.KEEP, None),
        "its rows are gone": (Known(own=EMPTY), Todo.REBUILD, None),
        "a neighbour without rows": (Known(record=replace(PUBLISHED, input_state=ALONE), near=EMPTY), Todo.KEEP, None),
        "a neighbour differs": (Known(near=OTHER_ROWS), Todo.CHECK, None),
        "a neighbour is gone": (Known(near=EMPTY), Todo.CHECK, None),
    },
)
def test_a_slice_is_built_from_its_own_rows_and_compared_where_neighbours_differ(
    known: Known, todo: Todo, cause: str | None
) -> None:
    plan = known.plan()
    assert (plan.todo, plan.cause.text) == (todo, cause or plan.cause.text)


def test_where_neighbours_differ_what_was_never_compared_or_is_asked_for_by_new_code_is_built() -> None:
    never_compared = replace(PUBLISHED, input_state=replace(BUILT_FROM, cross_day=None))
    assert Known(record=never_compared, near=OTHER_ROWS).plan().todo is Todo.REBUILD
    assert Known(record=OUTDATED, near=OTHER_ROWS).plan(is_requested=True).todo is Todo.REBUILD


@pytest.mark.parametrize(
    ("rejection", "accepted", "todo"),
    [
        (REJECTED, {}, Todo.KEEP_REFUSED),
        (REJECTED, ACCEPTED, Todo.REBUILD),
        (replace(REJECTED, judged_by="other bounds"), {}, Todo.REBUILD),
        (replace(REJECTED, judged_by=None), {}, Todo.REBUILD),
        (replace(REJECTED, inputs=STALE.input_state), {}, Todo.REBUILD),
        (replace(REJECTED, waits_for=(NEXT.event_date,)), {}, Todo.WAIT_TIED),
        (replace(REJECTED, inputs=InputState({InputDay(RAW, DAY): ROWS}, CROSS_DAY)), {}, Todo.CHECK),
        (None, {}, Todo.REBUILD),
    ],
    ids=["refused", "accepted", "other bounds", "bounds not on record", "other inputs", "tied", "neighbours", "never refused"],
)  # fmt: skip
def test_what_was_refused_is_tried_again_where_something_is_new(
    rejection: Rejection | None, accepted: Acceptances, todo: Todo
) -> None:
    plan = Known(record=replace(STALE, rejection=rejection)).plan(accepted=accepted)
    assert (plan.todo, plan.cause.text) == (todo, f"changed {RAW}")
    assert plan.present.cross_day == (CROSS_DAY if todo in (Todo.KEEP_REFUSED, Todo.WAIT_TIED) else None)


def test_what_somebody_holds_stays_until_it_is_released() -> None:
    held = Known(own=OTHER_ROWS, holds={KEY: "a wrong export"})
    plan = held.plan(is_requested=True)
    assert (plan.todo, plan.reason) == (Todo.HOLD, "held: a wrong export")
    facts = held.facts.releasing([(REFINED_EVENTS.key, KEY)])
    assert [p.todo for p in decide(facts, REFINED_EVENTS, [], {}, NOW)] == [Todo.REBUILD]


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ((), f"the deliveries that arrived on {DAY} are not loaded yet"),
        ((a_batch(BatchVerdict.REFUSED),), f"{RAW} {KEY} is refused"),
        ((a_batch(BatchVerdict.MOVED),), f"{RAW} {KEY} is moved"),
        ((a_batch(BatchVerdict.REFUSED), a_batch(BatchVerdict.ACCEPTED, source=Source.BACKFILL)), None),
        ((a_batch(BatchVerdict.REFUSED), a_batch(BatchVerdict.ACCEPTED, source=Source.BACKFILL, deliveries=0)),
         f"{RAW} {KEY} is refused"),
        ((a_batch(BatchVerdict.ACCEPTED, deliveries=0),), None),
        ((a_batch(BatchVerdict.ACCEPTED, deliveries=0), a_batch(BatchVerdict.REFUSED, source=Source.BACKFILL, deliveries=0)),
         None),
    ],
    ids=[
        "nothing loaded", "refused", "moved", "recovered", "a recovery of nothing", "an empty day",
        "an empty day, and a recovery that never came",
    ],
)  # fmt: skip
def test_a_day_waits_for_its_own_deliveries(batches: Collection[BatchRecord], reason: str | None) -> None:
    plan = Known(own=OTHER_ROWS, batches=batches).plan()
    assert (plan.todo, plan.reason, plan.is_early) == (Todo.REBUILD if reason is None else Todo.WAIT, reason, False)


def test_a_wait_before_the_deadline_is_early_and_wrong_by_nothing() -> None:
    waiting = Known(record=None, batches=[a_batch(BatchVerdict.WAITING, deliveries=0)])
    assert waiting.plan().is_early
    refused = [a_batch(BatchVerdict.WAITING, deliveries=0), a_batch(BatchVerdict.REFUSED, source=Source.BACKFILL)]
    assert not Known(record=None, batches=refused).plan().is_early


def test_days_that_nobody_delivers_for_are_not_waited_for() -> None:
    silent = Known(own=OTHER_ROWS, batches=())
    assert silent.plan().todo is Todo.WAIT
    sparse = replace(silent, settings=SETTINGS.model_copy(update={"sparse_projects": (PROJECT,)}))
    assert sparse.plan().todo is Todo.REBUILD
    at_noon = datetime(2026, 2, 4, 12, tzinfo=UTC)
    assert sparse.plan(now=at_noon).todo is Todo.WAIT
    outside = replace(silent, settings=SETTINGS.model_copy(update={"calendar_start": NEXT.event_date}))
    assert outside.plan().todo is Todo.REBUILD
    assert replace(silent, first_arrival=NEXT.event_date).plan().todo is Todo.REBUILD


@pytest.mark.parametrize(
    ("refined", "is_released", "todo", "reason"),
    [
        (None, False, Todo.WAIT, f"refined/events {KEY} is not built yet"),
        (Verdict.REFUSED, False, Todo.WAIT, f"refined/events {KEY} is refused"),
        (Verdict.HELD, False, Todo.WAIT, f"refined/events {KEY} is held"),
        (Verdict.HELD, True, Todo.REBUILD, None),
        (Verdict.UNCHANGED, False, Todo.REBUILD, None),
    ],
)
def test_an_aggregate_waits_for_its_events(
    refined: Verdict | None, is_released: bool, todo: Todo, reason: str | None
) -> None:
    known = Known(record=None if refined is None else replace(PUBLISHED, verdict=refined))
    facts = known.facts.releasing([(REFINED_EVENTS.key, KEY)] if is_released else [])
    (plan,) = decide(facts, EVENT_COUNTS, [KEY], {}, NOW)
    assert (plan.todo, plan.reason) == (todo, reason)
    if todo is Todo.REBUILD:
        assert plan.present == InputState({InputDay(REFINED_EVENTS.key, DAY): PUBLISHED.digest})


def test_a_day_is_final_when_nothing_can_arrive_any_more() -> None:
    last = DAY + timedelta(days=SETTINGS.reprocessing_window_days)
    after = timedelta(days=1, hours=SETTINGS.final_after_hours)
    deadline = datetime(last.year, last.month, last.day, tzinfo=UTC) + after
    assert not Known().plan(now=deadline).is_final
    past = deadline + timedelta(seconds=1)
    final = Known().plan(now=past)
    assert (final.is_final, final.was_final, final.final_at) == (True, False, past.isoformat())
    refused = Known(batches=[a_batch(BatchVerdict.REFUSED)])
    assert (refused.plan().is_final, Known(first_arrival=None).plan().is_final) == (False, False)
    marked = [
        BatchRecord(BatchKey(Source.REGULAR, PROJECT, DAY + timedelta(days=shift)), BatchVerdict.ACCEPTED, hours_marked=24)
        for shift in range(SETTINGS.reprocessing_window_days + 1)
    ]  # fmt: skip
    early = deadline - timedelta(days=1)
    assert Known(batches=marked).plan(now=early).is_final
    assert not Known(batches=marked[:-1]).plan(now=early).is_final
    assert not Known(batches=[*marked[:-1], replace(marked[-1], hours_marked=23)]).plan(now=early).is_final
    since = NOW - timedelta(days=3)
    again = Known(record=replace(PUBLISHED, is_final=True, final_at=since.isoformat())).plan()
    assert (again.was_final, again.final_at) == (True, since.isoformat())


@pytest.mark.parametrize(
    ("record", "cross_day", "todo", "is_outdated"),
    [
        (PUBLISHED, CROSS_DAY, Todo.KEEP, False),
        (OUTDATED, CROSS_DAY, Todo.KEEP, True),
        (PUBLISHED, str(OTHER_ROWS), Todo.REBUILD, False),
        (replace(PUBLISHED, input_state=replace(BUILT_FROM, cross_day=with_tie(CROSS_DAY))), with_tie(CROSS_DAY),
         Todo.REBUILD, False),
        (replace(STALE, rejection=REJECTED), CROSS_DAY, Todo.KEEP_REFUSED, False),
        (replace(STALE, rejection=replace(REJECTED, waits_for=(DAY,))), CROSS_DAY, Todo.WAIT_TIED, False),
        (replace(STALE, rejection=REJECTED), str(OTHER_ROWS), Todo.REBUILD, False),
    ],
    ids=["the same", "the same, by other code", "others", "decided by content alone", "refused", "tied", "refused, others now"],
)  # fmt: skip
def test_a_check_ends_with_what_other_days_hold_of_its_keys(
    record: SliceRecord, cross_day: str, todo: Todo, is_outdated: bool
) -> None:
    checked = SlicePlan(KEY, Todo.CHECK, replace(BUILT_FROM, cross_day=None), record, is_requested=False)
    plan = resolve(SETTINGS, REFINED_EVENTS, {}, checked, cross_day)
    assert (plan.todo, plan.is_outdated, plan.present.cross_day) == (todo, is_outdated, cross_day)
    assert plan.cause.kind is CauseKind.CROSS_DAY
    if todo is Todo.KEEP_REFUSED:
        assert resolve(SETTINGS, REFINED_EVENTS, ACCEPTED, checked, cross_day).todo is Todo.REBUILD


def a_tied_plan(key: Slice, *others: Slice) -> SlicePlan:
    rejection = Rejection(BUILT_FROM, "judge", tuple(other.event_date for other in others))
    return SlicePlan(key, Todo.WAIT_TIED, BUILT_FROM, replace(PUBLISHED, key=key, rejection=rejection), False)


@pytest.mark.parametrize(
    ("other", "todo"),
    [(Todo.REBUILD, Todo.REBUILD), (Todo.KEEP, Todo.REBUILD), (Todo.KEEP_REFUSED, Todo.WAIT_TIED), (Todo.HOLD, Todo.WAIT_TIED)],
)  # fmt: skip
def test_tied_slices_wait_until_the_last_of_the_others_can_be_built(other: Todo, todo: Todo) -> None:
    """A chain: the day waits for the next one, which waits for a third."""
    third = Slice(NEXT.event_date + timedelta(days=1), PROJECT)
    beside = SlicePlan(third, other, BUILT_FROM, None, is_requested=False)
    plans = release_waits([a_tied_plan(KEY, NEXT), a_tied_plan(NEXT, third), beside])
    assert [plan.todo for plan in plans] == [todo, todo, other]


def test_neighbours_of_what_may_change_are_looked_at_and_no_others() -> None:
    far = Slice(DAY + timedelta(days=9), PROJECT)
    plans = [SlicePlan(key, todo, BUILT_FROM, None, False) for key, todo in ((KEY, Todo.CHECK), (far, Todo.KEEP))]
    assert not_yet_decided(plans, {KEY, BEFORE, far}, 1) == {NEXT}


def test_projects_are_decided_apart() -> None:
    """Scenario: another project has other rows on the day before. Outcome: they are not this slice's inputs."""
    facts = Known().facts
    theirs = Slice(BEFORE.event_date, "10002")
    raw = {**facts.records[RAW], theirs: SliceRecord(RAW, theirs, Verdict.PUBLISHED, digest=OTHER_ROWS)}
    both = replace(facts, slices=frozenset({KEY, theirs}), records={**facts.records, RAW: raw})
    todos = {plan.key: plan.todo for plan in decide(both, REFINED_EVENTS, [], {}, NOW)}
    assert todos == {KEY: Todo.KEEP, theirs: Todo.WAIT}


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
    command = f"tidemark load --source regular --from {DAY} --to {DAY} --project 10001 --read-again"
    assert refused.failure.hint == f"Put it back and load the day, or: {command}"
    built = plans_of(facts_with(Known(), lost, is_read_again=True))[KEY]
    assert (built.todo, built.cause.kind) == (Todo.REBUILD, CauseKind.FILES_GONE)


def test_a_held_slice_whose_file_is_gone_is_not_built_from_what_is_there_today() -> None:
    facts = facts_with(Known(holds={KEY: "wrong prices"}), {REFINED_EVENTS.key: {KEY: FILE}}, is_read_again=True)
    refused = plans_of(facts)[KEY]
    assert refused.todo is Todo.REFUSE
    assert "held: wrong prices" in str(refused.failure and refused.failure.reason)


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
