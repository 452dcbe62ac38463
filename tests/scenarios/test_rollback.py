"""Published days go back across tables by metadata alone; held until released; on record; reversible."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from pipeline_assets.domain.errors import LakehouseError, PublishConflictError, UsageError
from pipeline_assets.domain.slices import Digest, Slice
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations import rollback as rolling
from pipeline_assets.operations.decisions import preview, release
from pipeline_assets.operations.maintenance import maintain
from pipeline_assets.operations.rollback import RollbackRequest, SliceRestore, plan, roll_back
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED, table_by_key
from resources.failpoints import Failpoint
from resources.iceberg.metadata import JavaTables
from resources.iceberg.upkeep import Upkeep
from resources.ledger.schema import PUBLICATIONS
from tests.support.builders import PROJECT, RAW_AND_REFINED, Pipeline, events_on, sent_again
from tests.support.points import killed_at, once
from tests.support.prepared import Again, a_prepared_pipeline
from tests.support.reference import require_known
from tests.support.upkeep import LONG, data_files, grow_old, maintained

pytestmark = pytest.mark.slow
DAYS = tuple(date(2026, 2, 2) + timedelta(days=shift) for shift in range(3))
RAW, REFINED, REVENUE = "raw/regular_events", "refined/events", "aggregates/daily_revenue"
NAMES = (REFINED, REVENUE)
"""Derived tables of most of these lakes; one story has them all."""
Digests = dict[str, dict[Slice, str]]
TwoStates = tuple[Pipeline, Digests, datetime, Digests]


def _request(
    to: datetime | int, days: Sequence[date] = DAYS, tables: tuple[str, ...] = NAMES, reason: str = "why"
) -> RollbackRequest:
    return RollbackRequest(tables, (PROJECT,), days[0], days[-1], to, reason, str(uuid.uuid4()))


def _back(p: Pipeline, to: datetime | int, *request: Any, **more: Any) -> list[SliceRestore]:
    return roll_back(p.runtime, _request(to, *request, **more))


def _derived(p: Pipeline) -> Digests:
    return {name: found for name, found in p.digests().items() if not name.startswith("raw/")}


def _held(p: Pipeline, days: Sequence[date] = DAYS) -> list[Any]:
    return preview(p.ledger, p.settings, (), (PROJECT,), days[0], days[-1], p.now, is_load_next=True)


def _two_states(p: Pipeline) -> tuple[Digests, datetime, Digests]:
    """The right state, its time, and the wrong one that follows it."""
    for day in DAYS:
        p.deliver(day, events_on(day, 120))
    p.must_load(DAYS[0], DAYS[-1])
    right, then = _derived(p), datetime.now(UTC)
    time.sleep(0.01)
    for day in DAYS:
        p.deliver(day, events_on(day, 130, prefix="wrong")[120:], hour=11)
    p.must_load(DAYS[0], DAYS[-1])
    return right, then, _derived(p)


@pytest.fixture(scope="module")
def two_states_again(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Again[Any]]:
    folder, only = tmp_path_factory.mktemp("two_states"), (*RAW_AND_REFINED, REVENUE)
    with a_prepared_pipeline(spark, folder, _two_states, only=only) as again:
        yield again


@pytest.fixture
def two_states(two_states_again: Again[tuple[Digests, datetime, Digests]]) -> Iterator[TwoStates]:
    with two_states_again() as (p, states):
        yield p, *states


def _run(p: Pipeline, job: str, op: str, **config: Any) -> str:
    """Run an operator's job; returns the slices that it shows."""
    run = p.run_job(job, op, config)
    assert run.success, run.failure()
    return str(run.output["slices"])


def test_three_days_go_back_across_tables_are_held_and_released(pipeline: Callable[..., Pipeline]) -> None:
    """Scenario: three days changed for the worse are rolled back by the job, loaded and released. Outcome: the old
    digests without a new data file; held in Dagster; after the release loads bring the inputs; all on record."""
    p = pipeline()
    right, then, wrong = _two_states(p)
    files, known, names = data_files(p), len(p.ledger.publications()), tuple(table.key for table in DERIVED)
    days = {"from": str(DAYS[0]), "to": str(DAYS[-1])}
    back = {**days, "back_to": then.isoformat(), "reason": "test data"}

    told = _run(p, "rollback", "roll_back", **back, dry_run=True)
    assert told.count("rolled back") == len(names) * len(DAYS)
    assert _derived(p) == wrong
    assert p.ledger.interventions.all_holds([PROJECT]) == []

    assert _run(p, "rollback", "roll_back", **back) == told
    assert _derived(p) == right
    assert data_files(p) == files
    require_known(p)
    recorded = p.ledger.publications()[known:]
    assert {(r.table, r.key.event_date) for r in recorded} == {(name, day) for name in names for day in DAYS}
    assert {(r.cause.text, r.accepted_reason) for r in recorded} == {("rollback", "test data")}
    for name in names:
        assert p.count(name) > 0
        records = p.instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey(name.split("/")), "change_is_explained"), limit=3, partition_filter=None
        )
        found = {str(r.evaluation.partition): r.evaluation for r in records if r.evaluation is not None}
        assert {day for day, one in found.items() if not one.passed} == {str(day) for day in DAYS}
        assert all("held: test data" in str(one.description) for one in found.values())

    for day in DAYS:
        p.deliver(day, events_on(day, 150, prefix="wrong")[120:], hour=11)
    run = p.must_run(DAYS[0], DAYS[-1])
    assert _derived(p) == right
    assert p.verdict(REFINED, DAYS[1]) == "held"
    assert run.materialized(REFINED) == set()

    of_refined = [one for one in _held(p) if one.table == REFINED]
    assert {(one.digest.rows, one.digest_before.rows) for one in of_refined} == {(120, 130)}
    assert {one.then for one in of_refined} == {"is built again (changed raw/regular_events)"}
    told = _run(p, "release", "release_held", **days, reason="it was no test data", dry_run=True)
    assert told.count("is built again") == len(names) * len(DAYS)
    assert p.ledger.interventions.holds(REFINED, [PROJECT])
    _run(p, "release", "release_held", **days, reason="it was no test data")
    p.must_load(DAYS[0], DAYS[-1], accept={f"{name}:{day}": "right" for name in names for day in DAYS})
    assert p.count(REFINED) == 450
    assert _derived(p) != wrong
    assert {one.release_reason for one in p.ledger.interventions.all_holds([PROJECT])} == {"it was no test data"}


def test_a_rollback_is_rolled_back(two_states: TwoStates) -> None:
    """Outcome: the day is as before the first rollback, still held."""
    p, right, _, wrong = two_states
    numbers = [r.number for r in p.ledger.publications()]
    first = p.ledger.publications(REFINED)[0].number
    _back(p, first)
    assert _derived(p) == right

    _back(p, numbers[-1], reason="back again")

    assert _derived(p) == wrong
    assert p.verdict(REFINED, DAYS[0]) == "held"
    assert set(p.ledger.interventions.holds(REFINED, [PROJECT]).values()) == {"back again"}
    require_known(p)


def test_one_table_goes_back_and_the_rest_stands(two_states: TwoStates) -> None:
    p, right, then, wrong = two_states

    _back(p, then, DAYS[1:2], (REVENUE,))

    key = Slice(DAYS[1], PROJECT)
    assert _derived(p) == wrong | {REVENUE: wrong[REVENUE] | {key: right[REVENUE][key]}}
    p.must_load(DAYS[0], DAYS[-1])
    assert p.verdict(REFINED, DAYS[1]) == "unchanged"
    assert p.verdict(REVENUE, DAYS[1]) == "held"


def test_before_the_first_publication_a_day_was_empty(two_states: TwoStates) -> None:
    """Outcome: the day is empty, held, and comes back when released."""
    p, _, then, wrong = two_states
    _back(p, then - timedelta(hours=1), DAYS[:1])
    assert p.count(REFINED, DAYS[0]) == p.count(REVENUE, DAYS[0]) == 0
    assert p.count(RAW) == 390
    release(p.ledger, _held(p, DAYS[:1]), "enough", "run-2")
    p.must_load(DAYS[0])
    assert _derived(p) == wrong


def test_what_cannot_be_rolled_back_is_said(two_states: TwoStates) -> None:
    """Scenario: raw, empty days, unknown publications, no reason; lost, other and expired files.
    Outcome: each is refused with reason and cure; nothing is changed or held."""
    p, _, then, wrong = two_states
    runtime = p.runtime
    for request, said in (
        (_request(then, tables=(RAW,)), "exclude bad deliveries"),
        (_request(then, [date(2025, 1, 1)]), "no publication of these days is on record"),
        (_request(10**9), "is not on record"),
        (_request(then, reason=" "), "needs a reason"),
    ):
        with pytest.raises(UsageError, match=said):
            roll_back(runtime, request)
    old = next(move for move in plan(runtime, _request(then)) if move.table == REVENUE)
    (path,) = p.lakehouse.slice_files(table_by_key(REVENUE), old.snapshot_id, [old.key])[old.key].paths
    kept = Path(path.removeprefix("file:"))
    body = kept.read_bytes()
    kept.unlink()
    with pytest.raises(LakehouseError, match="is gone"):
        roll_back(runtime, _request(then))
    kept.write_bytes(body)
    assert old.target is not None
    rows = old.digest.rows
    said = f"held {rows} rows then, but {rows + 1} are on record"
    with (
        _on_record_instead(p, old.target.number, replace(old.digest, rows=rows + 1)),
        pytest.raises(LakehouseError, match=said),
    ):
        roll_back(runtime, _request(then))
    grow_old(p)
    assert maintained(p)
    with pytest.raises(LakehouseError, match="has expired"):
        roll_back(runtime, _request(then))
    assert _derived(p) == wrong
    assert p.ledger.interventions.all_holds([PROJECT]) == []


@contextmanager
def _on_record_instead(p: Any, number: int, digest: Digest) -> Iterator[None]:
    """While it lasts, a publication has another recorded content."""
    at = PUBLICATIONS.c.id == number
    with p.ledger.engine.begin() as connection:
        right = connection.execute(sa.select(PUBLICATIONS.c.digest_after).where(at)).scalar_one()
        connection.execute(PUBLICATIONS.update().where(at).values(digest_after=str(digest)))
    yield
    with p.ledger.engine.begin() as connection:
        connection.execute(PUBLICATIONS.update().where(at).values(digest_after=right))


def test_maintenance_after_a_rollback_removes_no_live_file(two_states: TwoStates) -> None:
    """Scenario: maintenance long after a rollback. Outcome: old snapshots expire; every row of the days can be read."""
    p, right, then, _ = two_states
    _back(p, then)
    grow_old(p)
    assert sum(report.snapshots for report in maintained(p).values()) > 0
    assert _derived(p) == right
    assert p.count(REFINED) == 360
    require_known(p)


def test_a_file_that_vanishes_before_the_commit_undoes_it(pipeline: Callable[..., Pipeline]) -> None:
    """Scenario: files vanish just before the commit. Outcome: the rollback names them; the day is as before, not held."""
    p = pipeline(only=RAW_AND_REFINED)
    p.deliver(DAYS[0], events_on(DAYS[0], 10))
    p.must_load(DAYS[0])
    then, of_then = datetime.now(UTC), p.files(REFINED, DAYS[0])
    p.deliver(DAYS[0], events_on(DAYS[0], 4))
    p.must_load(DAYS[0])
    wrong = _derived(p)

    def delete() -> None:
        for path in of_then - p.files(REFINED, DAYS[0]):
            Path(path.removeprefix("file:")).unlink()

    with (
        once(Failpoint.BEFORE_PUBLISH, delete),
        pytest.raises(LakehouseError, match="is gone, so its rows cannot be restored"),
    ):
        _back(p, then, DAYS[:1], (REFINED,))
    assert _derived(p) == wrong
    assert p.count(REFINED, DAYS[0]) == 4
    require_known(p)


@pytest.mark.parametrize("is_known_to_live", [True, False])
def test_maintenance_that_comes_between_look_and_commit(two_states: TwoStates, is_known_to_live: bool) -> None:
    """Scenario: maintenance between a rollback's look and commit knows it to live, or takes it for dead.
    Outcome: the old files stay until they are live again, or the day is as it was."""
    p, right, then, _ = two_states
    for hour in (12, 13):
        p.deliver(DAYS[0], events_on(DAYS[0], 3, prefix=f"wrong{hour}"), hour=hour)
        p.must_load(DAYS[0])
    wrong, request = _derived(p), _request(then)
    grow_old(p)
    expired: list[str] = []

    def maintain_beside() -> None:
        def is_live(attempt: str) -> bool:
            return is_known_to_live and attempt.startswith(request.attempt)

        reports = maintain(p.runtime, "upkeep", datetime.now(UTC) + LONG, is_live, is_dry_run=False)
        expired.extend(report.table for report in reports if report.snapshots)

    with once(Failpoint.BEFORE_PUBLISH, maintain_beside):
        if is_known_to_live:
            assert roll_back(p.runtime, request)
        else:
            with pytest.raises(LakehouseError, match="has expired"):
                roll_back(p.runtime, request)

    assert REFINED in expired
    assert _derived(p) == (right if is_known_to_live else wrong)
    require_known(p)
    held = {p.verdict(name, DAYS[0]) for name in NAMES}
    assert held == {"held"} if is_known_to_live else held <= {"published", "unchanged"}
    assert list(p.lakehouse.branches.dead(REFINED_EVENTS, lambda _: False)) == []
    if is_known_to_live:
        # As if it named one of two snapshots after maintenance found both due.
        upkeep, head = Upkeep(p.spark, p.settings.catalog_name), p.lakehouse.head(REFINED_EVENTS)
        past = [one.snapshot_id for one in upkeep.snapshots(REFINED_EVENTS)[0] if one.snapshot_id != head]
        named = next(one for one in past if one not in p.lakehouse.ancestry(REFINED_EVENTS))
        other, between = next(one for one in past if one != named), datetime.now(UTC)
        with p.lakehouse.branches.keeping(REFINED_EVENTS, [named], "late"):
            java = JavaTables(p.spark, p.settings.catalog_name).load(REFINED_EVENTS)
            # At an old snapshot, but young itself.
            assert not p.lakehouse.branches.was_there(java, f"tidemark_late_keep_{named}", between)
            upkeep.expire(REFINED_EVENTS, [other, named])
            assert named in {one.snapshot_id for one in upkeep.snapshots(REFINED_EVENTS)[0]}
        with (
            pytest.raises(LakehouseError, match="a snapshot that the rollback needs has expired"),
            p.lakehouse.branches.keeping(REFINED_EVENTS, [other], "late"),
        ):
            pass


def _move_an_event(p: Pipeline) -> None:
    p.deliver(DAYS[1], [sent_again(events_on(DAYS[0], 120)[3], DAYS[1], to=DAYS[1], at="00:10")], hour=12)


def test_an_event_that_moved_is_neither_lost_nor_doubled(two_states: TwoStates) -> None:
    """Outcome: one of its two days alone is refused with the other named; both together go back."""
    p, _, _, wrong = two_states
    before = datetime.now(UTC)
    _move_an_event(p)
    p.must_load(DAYS[0], DAYS[1])
    for day, beside in ((DAYS[0], DAYS[1]), (DAYS[1], DAYS[0])):
        with pytest.raises(LakehouseError, match=f"events have moved between these days and {beside} 10001 .1 events"):
            _back(p, before, [day])
    assert p.ledger.interventions.all_holds([PROJECT]) == []
    _back(p, before, DAYS[:2])
    assert _derived(p) == wrong


def test_rollbacks_that_died_are_completed(two_states: TwoStates) -> None:
    """Scenario: rollbacks die around their publish. Outcome: a load undoes nothing; the next rollback completes them."""
    p, right, then, _ = two_states
    changed = datetime.now(UTC)
    for day, to, point, name in (
        (DAYS[0], then, Failpoint.AFTER_LOOK, ""),
        (DAYS[1], then, Failpoint.AFTER_APPLY, REFINED),
        (DAYS[2], then, Failpoint.IN_TRANSACTION, ""),
        (DAYS[0], changed, Failpoint.AFTER_PUBLISH, ""),
    ):
        with killed_at(point, name):
            _back(p, to, [day])
        p.must_load(day)
        _back(p, to, [day])

    assert _derived(p) != right
    _back(p, then, DAYS[:1])
    assert _derived(p) == right
    require_known(p)
    assert len(p.ledger.publications(REFINED)) == 3 * len(DAYS) + 2


@pytest.mark.parametrize("wins", [2, 9])
def test_a_load_that_publishes_meanwhile(two_states: TwoStates, wins: int) -> None:
    """Scenario: a load publishes under a rollback. Outcome: the rollback looks again and wins, or gives up and says so."""
    p, right, then, _ = two_states
    held = {name: [Slice(DAYS[1], PROJECT)] for name in NAMES}
    rounds: list[int] = []

    def publish_beside() -> None:
        rounds.append(len(rounds))
        p.deliver(DAYS[1], events_on(DAYS[1], len(rounds), prefix="late"), hour=15)
        # Like a load that decided before the hold.
        p.ledger.interventions.release(held, "test", "test")
        p.reports(DAYS[1])
        p.ledger.interventions.hold(held, "why", "test")

    with once(Failpoint.BEFORE_PUBLISH, publish_beside, times=wins):
        if wins == 2:
            assert _back(p, then)
        else:
            with pytest.raises(PublishConflictError, match="changed it since it was read"):
                _back(p, then)
    assert len(rounds) == min(wins, p.settings.publish_attempts)
    _back(p, then)
    assert _derived(p) == right
    require_known(p)


def test_the_publications_of_a_run_belong_together(two_states: TwoStates) -> None:
    """Scenario: days go back to one of a run's publications. Outcome: the whole run goes, no event lost or doubled."""
    p, right, _, _ = two_states
    known = len(p.ledger.publications())
    _move_an_event(p)
    p.must_load(DAYS[0], DAYS[1])
    moved = _derived(p)
    ours = [record.number for record in p.ledger.publications()[known:] if record.table != RAW]
    for number in (ours[0], ours[-1]):
        assert all(move.is_there for move in _back(p, number))
        assert _derived(p) == moved
    _back(p, p.ledger.publications(REFINED)[0].number)
    assert _derived(p) == right


def test_a_load_that_decided_before_the_hold_publishes_nothing_held(two_states: TwoStates) -> None:
    """Scenario: an operator holds a day that a load is about to publish. Outcome: the load looks again and leaves it."""
    p, _, _, wrong = two_states
    now, moves = datetime.now(UTC), list[SliceRestore]()
    p.deliver(DAYS[1], events_on(DAYS[1], 5, prefix="late"), hour=15)
    with once(Failpoint.AFTER_AUDIT, lambda: moves.extend(_back(p, now, DAYS[1:2])), REFINED):
        p.reports(DAYS[1])
    assert {move.is_there for move in moves} == {True}
    assert _derived(p) == wrong
    assert p.verdict(REFINED, DAYS[1]) == "held"
    require_known(p)


def test_a_day_that_is_only_kept_stays_held(two_states: TwoStates) -> None:
    """Scenario: an operator holds an unchanged and a staged day. Outcome: both are held, and the load says so."""
    p, now = two_states[0], datetime.now(UTC)
    p.deliver(DAYS[1], events_on(DAYS[1], 5, prefix="late"), hour=15)
    with once(Failpoint.AFTER_PIN, lambda: _back(p, now, DAYS[:1]), REVENUE):
        reports = p.reports(DAYS[0], DAYS[1])
    told = {one.key.event_date: one.verdict.value for one in reports[REVENUE].outcomes}
    assert (told[DAYS[0]], told[DAYS[1]]) == ("held", "published")
    assert {p.verdict(name, DAYS[0]) for name in NAMES} == {"held"}


def test_a_load_that_publishes_behind_the_rollback_is_undone(two_states: TwoStates) -> None:
    """Scenario: an unstoppable load publishes behind a rollback. Outcome: the rollback looks again; all is held."""
    p, right, then, _ = two_states

    def publish_behind() -> None:
        held = {name: p.ledger.interventions.holds(name, [PROJECT]) for name in NAMES}
        p.deliver(DAYS[1], events_on(DAYS[1], 2, prefix="late"), hour=15)
        p.ledger.interventions.release(held, "test", "test")
        p.reports(DAYS[1])
        for name, of_table in held.items():
            p.ledger.interventions.hold({name: of_table}, "why", "test")

    with once(Failpoint.AFTER_PUBLISH, publish_behind):
        assert _back(p, then)
    assert _derived(p) == right
    assert {p.verdict(name, day) for name in NAMES for day in DAYS} == {"held"}
    require_known(p)


def test_what_is_published_after_the_look_is_looked_at_again(
    two_states: TwoStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a load moves an event to a day outside the rollback. Outcome: refused; nothing changes or stays held."""
    p, now = two_states[0], datetime.now(UTC)
    _back(p, now, DAYS[:1], (REVENUE,), "held before")
    _move_an_event(p)
    look = rolling._looks

    def look_and_load(runtime: Runtime, request: RollbackRequest) -> list[Any]:
        found = look(runtime, request)
        monkeypatch.undo()
        p.reports(DAYS[0], DAYS[1])
        return found

    monkeypatch.setattr(rolling, "_looks", look_and_load)
    with pytest.raises(LakehouseError, match="events have moved between these days"):
        _back(p, now, DAYS[:1])
    assert (p.count(REFINED, DAYS[0]), p.count(REFINED, DAYS[1])) == (129, 131)
    standing = {name: p.ledger.interventions.holds(name, [PROJECT]) for name in NAMES}
    assert {name: set(found.values()) for name, found in standing.items() if found} == {REVENUE: {"held before"}}
    on_record = [one for one in p.ledger.interventions.all_holds([PROJECT]) if one.table == REVENUE]
    assert not any((one.release_reason or "").startswith("the rollback was refused") for one in on_record)
    require_known(p)


def test_a_commit_counts_from_when_readers_saw_it(pipeline: Callable[..., Pipeline], tmp_path: Path) -> None:
    """Scenario: the ledger has its own database; a load dies after its commit; the next one finds that and publishes more.
    Outcome: a time between the two gives the first state; without a ledger record nothing is emptied."""
    p, request = pipeline(ledger_url=f"sqlite:///{tmp_path}/apart.db", only=RAW_AND_REFINED), (DAYS[:1], (REFINED,))
    p.reports(DAYS[0])
    before = datetime.now(UTC)
    p.deliver(DAYS[0], events_on(DAYS[0], 12))
    with killed_at(Failpoint.BEFORE_LEDGER, REFINED):
        p.reports(DAYS[0])
    between = datetime.now(UTC)
    time.sleep(0.01)
    p.deliver(DAYS[0], events_on(DAYS[0], 3, prefix="more"), hour=12)
    p.reports(DAYS[0])
    assert p.count(REFINED) == 15

    # Before the commit: the kept old snapshot shows that the day was empty.
    _back(p, before, *request)
    assert p.count(REFINED) == 0
    _back(p, between, *request)
    assert p.count(REFINED) == 12

    with p.ledger.engine.begin() as connection:
        for name in ("heads", "deliveries", "batches", "batch_days", "slices", "publications", "holds"):
            connection.execute(sa.text(f"DELETE FROM tidemark_{name}"))
    p.reports(DAYS[0])
    with pytest.raises(LakehouseError, match="what it held then is not on record"):
        _back(p, between, *request)
    assert p.count(REFINED) == 15


def test_a_release_tells_what_other_code_does(two_states: TwoStates) -> None:
    """Outcome: a release followed by a load says that the day is built again; another says that it stays, and why."""
    p = two_states[0]
    _back(p, datetime.now(UTC), DAYS[:1], (REVENUE,))
    p.change(revenue_properties=("other",))
    for is_load_next, then in (
        (True, "is built again (code)"),
        (False, "stays as it is: another version of the code built it, and the next load of the day builds it again"),
    ):
        day = DAYS[0]
        held = preview(p.ledger, p.settings, (), (PROJECT,), day, day, p.now, is_load_next=is_load_next)
        assert [one.then for one in held] == [then]
