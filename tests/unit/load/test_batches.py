"""A batch by landing and ledger: objects to read, to withdraw and to refuse, with reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import click
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from pipeline_assets.cli.app import app
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.deliveries import NOT_READABLE, BatchKey, Delivery, Listing, Marker, UnrecognizedObject
from pipeline_assets.domain.records import DAMAGED, HOURS_HELD, THIS_LOAD, BatchRecord, DeliveryRecord, Exclusion
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.inspection.questions import AnswerKind, commands
from pipeline_assets.load.deliveries.arrivals import judge_absent
from pipeline_assets.load.deliveries.batch import Recorded, Relocated, plan_batches, sort_relocated
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.deliveries.publish import judge
from pipeline_assets.load.deliveries.read import Attempt, witnesses
from pipeline_assets.load.deliveries.readiness import ArrivalStatus, evaluate_arrivals
from pipeline_assets.load.staleness.finality import is_short, lacks_hours
from tests.support.cases import cases

PROJECT = "10001"
DAY = date(2026, 2, 2)
BATCH, BACKFILL = (BatchKey(source, PROJECT, DAY) for source in (Source.REGULAR, Source.BACKFILL))
DEADLINE = datetime(2026, 2, 5, tzinfo=UTC)
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Past the deadline, inside the redelivery horizon."""
LATER = datetime(2026, 6, 1, tzinfo=UTC)
FIRST_LOAD, SECOND_LOAD = "2026-02-02T11:00:00+00:00", "2026-02-02T12:00:00+00:00"
"""When the ledger recorded the deliveries."""
CODE = "parser 1"
RECONCILED = Evaluation(Check.DELIVERY_RECONCILES, True)
GRAMMAR = KeyGrammar("{prefix}_{date}_{hour}_complete")
_SHELL: click.Group = typer.main.get_command(app)  # type: ignore[assignment]


def a_delivery(hour: int = 10, shard: int = 1, *, etag: str = "e1", batch: BatchKey = BATCH) -> Delivery:
    return Delivery(batch, hour, shard, GRAMMAR.format_delivery(batch, hour, shard), etag, 100)


def a_record(hour: int = 10, shard: int = 1, *, batch: BatchKey = BATCH, **changes: Any) -> DeliveryRecord:
    record = DeliveryRecord(
        batch, GRAMMAR.format_delivery(batch, hour, shard), "e1", size_bytes=100, sha256="bytes of e1", lines=5, rows=5,
        quarantined=0, blank=0, error=None, is_accepted=True, code_version=CODE, recorded_at=FIRST_LOAD,
    )  # fmt: skip
    return replace(record, **changes)


def an_exclusion(hour: int = 10, shard: int = 1, *, etag: str = "e1") -> Exclusion:
    return Exclusion(BATCH, GRAMMAR.format_delivery(BATCH, hour, shard), etag, None, "a test account")


def markers_of(hours: Iterable[int], *, batch: BatchKey = BATCH) -> tuple[Marker, ...]:
    return tuple(Marker(batch, hour, GRAMMAR.format_marker(batch, hour)) for hour in hours)


def plans_of(
    listed: Sequence[Delivery] = (), recorded: Sequence[DeliveryRecord] = (), *,
    refused: Sequence[DeliveryRecord] = (), markers: Sequence[Marker] = (), priors: Sequence[BatchRecord] = (),
    exclusions: Sequence[Exclusion] = (), reasons: Mapping[date, str] | None = None, projects: Sequence[str] = (PROJECT,),
    now: datetime = SOON, code: str = CODE, read_again: Mapping[BatchKey, bool] = MappingProxyType({}),
    relocated: Relocated = Relocated(),  # noqa: B008 - a frozen value
    source: Source = Source.REGULAR, odd: Sequence[UnrecognizedObject] = (), **settings: Any,
) -> dict[BatchKey, BatchPlan]:  # fmt: skip
    excluded = {e.object_key: [one for one in exclusions if one.object_key == e.object_key] for e in exclusions}
    loaded, bad = ({r.object_key: r for r in records} for records in (recorded, refused))
    return plan_batches(
        source, projects, (DAY,), Listing(tuple(listed), tuple(markers), tuple(odd)),
        Recorded(loaded, bad, {b.key: b for b in priors}, excluded, relocated), Settings(**settings), now,
        code_version=code, read_again=read_again,
        accepted_reasons={Slice(day, PROJECT): reason for day, reason in (reasons or {}).items()},
    )  # fmt: skip


def plan_of(*args: Any, **options: Any) -> BatchPlan:
    return plans_of(*args, **options)[replace(BATCH, source=options.get("source", Source.REGULAR))]


def absent_of(
    plan: BatchPlan, now: datetime = SOON, *, first: date | None = DAY, is_elsewhere: bool = False
) -> tuple[BatchVerdict, Evaluation]:
    return judge_absent(plan, is_other_source_there=is_elsewhere, first_arrival=first, settings=Settings(), now=now)


def recovered_of(*hours: int, deliveries: int = 1) -> BatchRecord:
    return BatchRecord(BACKFILL, BatchVerdict.ACCEPTED, deliveries=deliveries, hours=hours)


def arrivals_of(plans: Mapping[BatchKey, BatchPlan]) -> ArrivalStatus:
    return evaluate_arrivals(plans, {}, (), {}, Settings(), SOON)


def hours_of(plan: BatchPlan, keys: Iterable[str]) -> list[tuple[int, int]]:
    """(hour, shard) of each key, for legible tables."""
    known = {GRAMMAR.format_delivery(plan.key, hour, shard): (hour, shard) for hour in range(24) for shard in range(10)}
    return sorted(known[key] for key in keys)


def test_a_refused_connection_is_told_by_the_smallest_other_object_of_each_project() -> None:
    """Outcome: each project is asked once, by its smallest object that is neither empty nor refused."""
    denied = BatchKey(Source.REGULAR, "9", DAY)
    listed = [
        replace(a_delivery(hour, batch=batch), size_bytes=size)
        for batch, sizes in ((denied, (7, 5, 9, 9)), (BATCH, (80, 0, 60, 1000)))
        for hour, size in enumerate(sizes)
    ]
    told = witnesses(listed, {listed[1].key})
    assert [(one.batch, one.size_bytes) for one in told] == [(denied, 7), (BATCH, 60)]
    assert witnesses(listed[:1], {listed[0].key}) == []


def test_every_batch_that_is_asked_for_listed_marked_or_recorded_has_a_plan() -> None:
    listed, marked, recorded, refused = (
        BatchKey(Source.REGULAR, PROJECT, DAY + timedelta(days=shift)) for shift in (1, 2, 3, -1)
    )
    known = {"refused": [a_record(batch=refused)], "markers": markers_of([3], batch=marked)}
    plans = plans_of([a_delivery(batch=listed)], [a_record(batch=recorded)], projects=[PROJECT, "10002"], **known)
    asked = {BATCH, BatchKey(Source.REGULAR, "10002", DAY)}
    assert plans.keys() == asked | {listed, marked, recorded, refused}
    assert ({key for key, plan in plans.items() if plan.is_requested}, plans[marked].hours_marked) == (asked, {3})


def test_a_plan_knows_its_own_standing_and_not_the_other_sources() -> None:
    own, other = BatchRecord(BATCH, BatchVerdict.ACCEPTED), BatchRecord(BACKFILL, BatchVerdict.REFUSED)
    assert plan_of(priors=[own, other]).prior == own
    assert plan_of(priors=[other]).prior is None


@cases(
    ("record", "is_read"),
    {
        "new": (None, True),
        "known": ({}, False),
        "other version": ({"etag": "e0"}, True),
        "found in raw without a ledger row": ({"etag": ""}, True),
        "other parser, clean": ({"code_version": "parser 0"}, False),
        "unknown parser, clean": ({"code_version": None}, False),
        "other parser, refused lines": ({"code_version": "parser 0", "quarantined": 1}, True),
        "unknown parser, refused lines": ({"code_version": None, "quarantined": 1}, True),
        "other parser, unreadable": ({"code_version": "parser 0", "error": "truncated_gzip"}, True),
        "same parser, refused lines": ({"quarantined": 1}, False),
        "same parser, unreadable": ({"error": "truncated_gzip"}, False),
    },
)
def test_an_object_is_read_once_per_version_and_again_by_another_parser_where_lines_were_refused(
    record: dict[str, Any] | None, is_read: bool
) -> None:
    recorded = [] if record is None else [a_record(**record)]
    plan = plan_of([a_delivery()], recorded)
    assert plan.changed == ((a_delivery(),) if is_read else ())
    assert (plan.needs_work, plan.withdrawn, plan.missing) == (is_read, (), ())


def test_changed_objects_come_in_order_of_hours() -> None:
    deliveries = [a_delivery(hour, shard) for hour, shard in ((10, 1), (9, 2), (9, 1), (0, 0))]
    assert plan_of(deliveries).changed == tuple(sorted(deliveries))


@cases(
    ("record", "known"),
    {
        "touched": ({"etag": "e0"}, "bytes of e1"),
        "no hash": ({"etag": "e0", "sha256": None}, None),
        "other parser, clean": ({"etag": "e0", "code_version": "parser 0"}, "bytes of e1"),
        "to be replayed": ({"etag": "e0", "code_version": "parser 0", "quarantined": 1}, None),
        "same parser, refused lines": ({"etag": "e0", "quarantined": 1}, "bytes of e1"),
        "new": (None, None),
    },
)
def test_bytes_are_known_where_parsing_them_again_gives_the_same(
    record: dict[str, Any] | None, known: str | None
) -> None:
    plan = plan_of([a_delivery()], [] if record is None else [a_record(**record)])
    assert plan.known_bytes == ({} if known is None else {a_delivery().key: known})


@cases(
    ("listed", "changed", "stale"),
    {
        "the refused version stands": ("e2", True, False),
        "the accepted version is back": ("e1", False, True),
        "a third version": ("e3", True, False),
        "deleted": (None, False, True),
    },
)
def test_a_refused_version_hides_nothing(listed: str | None, changed: bool, stale: bool) -> None:
    """The hour holds a later object, so a deleted one is withdrawn."""
    other = (a_delivery(shard=2), a_record(shard=2, recorded_at=SECOND_LOAD))
    deliveries = [other[0], *([a_delivery(etag=listed)] if listed else [])]
    refused = a_record(etag="e2", is_accepted=False, error="truncated_gzip")
    plan = plan_of(deliveries, [a_record(), other[1]], refused=[refused])
    assert [delivery.etag for delivery in plan.changed] == ([listed] if changed else [])
    assert plan.stale_refusals == ([refused.object_key] if stale else [])
    assert (plan.withdrawn, plan.needs_work) == ((refused.object_key,) if listed is None else (), True)


def test_a_refused_object_that_goes_away_is_forgotten_and_misses_nobody() -> None:
    """It brought no row to raw, so nothing is missing in any hour."""
    refused = a_record(hour=11, etag="e2", is_accepted=False, error="truncated_gzip")
    plan = plan_of([a_delivery()], [a_record()], refused=[refused])
    assert (plan.changed, plan.withdrawn, plan.missing, plan.stale_refusals) == ((), (), (), [refused.object_key])
    assert plan.needs_work


Shards = list[tuple[int, int]]
BOTH = [(9, 1), (10, 1), (10, 2)]


@cases(
    ("recorded", "listed", "missing", "withdrawn"),
    {
        "nothing gone": (BOTH, BOTH, [], []),
        "half of an hour gone": (BOTH, [(9, 1), (10, 1)], [(10, 2)], []),
        "an hour in other shards": (BOTH, [(9, 1), (10, 7)], [], [(10, 1), (10, 2)]),
        "fewer in an hour, and a new one": (BOTH, [(9, 1), (10, 1), (10, 7)], [], [(10, 2)]),
        "an hour gone": (BOTH, [(9, 1)], [(10, 1), (10, 2)], []),
        "an hour and a shard gone": (BOTH, [(10, 1)], [(9, 1), (10, 2)], []),
        "every hour but a new one gone": (BOTH, [(11, 1)], BOTH, []),
        "all gone": (BOTH, [], BOTH, []),
        "first delivery": ([], [(9, 1)], [], []),
    },
)
def test_an_hour_that_lists_a_new_object_was_rewritten_and_any_other_is_missing(
    recorded: Shards, listed: Shards, missing: Shards, withdrawn: Shards
) -> None:
    plan = plan_of([a_delivery(*one) for one in listed], [a_record(*one) for one in recorded])
    assert (hours_of(plan, plan.missing), hours_of(plan, plan.withdrawn)) == (missing, withdrawn)
    assert not (missing and plan.needs_work)


def test_an_hour_that_brought_no_rows_is_not_missed() -> None:
    """A day may lose its empty hours, on which no raw row depends. A whole batch may not."""
    empty, full = a_record(9, rows=0, lines=0), a_record(10)
    plan = plan_of([a_delivery(10)], [empty, full])
    assert (plan.missing, plan.withdrawn) == ((), (empty.object_key,))
    assert plan_of([], [empty]).missing == (empty.object_key,)


def test_markers_alone_do_not_make_an_hour_there() -> None:
    plan = plan_of([a_delivery(9)], [a_record(9), a_record(10)], markers=markers_of(range(24)))
    assert plan.missing == (a_record(10).object_key,)


def test_what_is_missing_stops_the_whole_batch() -> None:
    plan = plan_of([a_delivery(9, etag="e2"), a_delivery(11)], [a_record(9), a_record(10)])
    assert (len(plan.changed), len(plan.missing), plan.needs_work) == (2, 1, False)


pairs = st.sets(st.tuples(st.integers(0, 4), st.integers(1, 3)))


@given(recorded=pairs, listed=pairs, is_accepted=st.booleans())
def test_each_object_that_is_gone_is_missing_or_withdrawn_and_none_that_is_there(
    recorded: set[tuple[int, int]], listed: set[tuple[int, int]], is_accepted: bool
) -> None:
    reasons = {DAY: "why"} if is_accepted else None
    plan = plan_of([a_delivery(*one) for one in listed], [a_record(*one) for one in recorded], reasons=reasons)
    missing, withdrawn = set(hours_of(plan, plan.missing)), set(hours_of(plan, plan.withdrawn))
    gone, rewritten = recorded - listed, {hour for hour, _ in listed - recorded}
    assert missing | withdrawn <= gone
    assert withdrawn == (set() if missing else gone)
    assert missing == (set() if is_accepted else {one for one in gone if one[0] not in rewritten})
    assert not (missing and plan.needs_work)


@cases(
    ("left", "known", "is_withdrawn"),
    {
        "delivered with it": ({}, {}, False),
        "delivered by a later load": ({}, {"recorded_at": SECOND_LOAD}, True),
        "delivered by a former attempt of this load": ({}, {"recorded_at": THIS_LOAD}, True),
        "another version": ({"etag": "e2"}, {}, True),
        "bytes that nobody knows": ({"etag": "e2"}, {"sha256": None}, False),
        "unknown bytes, of a later load": ({"etag": "e2"}, {"sha256": None, "recorded_at": SECOND_LOAD}, True),
    },
)
def test_what_was_delivered_after_an_object_lets_it_go(
    left: dict[str, Any], known: dict[str, Any], is_withdrawn: bool
) -> None:
    """By records: a copied landing has other times and etags for the same bytes."""
    plan = plan_of([a_delivery(shard=2, **left)], [a_record(), a_record(shard=2, **known)])
    assert hours_of(plan, plan.withdrawn) == ([(10, 1)] if is_withdrawn else [])
    assert hours_of(plan, plan.missing) == ([] if is_withdrawn else [(10, 1)])
    assert not plan_of([], [a_record(), a_record(shard=2, **known)]).withdrawn, "of no hour that lists nothing"


def verdict_of(plan: BatchPlan, *read: DeliveryRecord, **settings: Any) -> tuple[BatchVerdict, Evaluation]:
    return judge({BATCH: plan}, {one.object_key: one for one in read}, {}, Settings(**settings))[BATCH]


def test_the_same_bytes_under_another_etag_are_no_new_delivery() -> None:
    """Scenario: landing is copied, a shard is late. Outcome: withdrawn until the others are hashed, then missing."""
    plan = plan_of([a_delivery(shard=2, etag="copied")], [a_record(), a_record(shard=2)])
    assert plan.needs_work
    copied = a_record(shard=2, etag="copied")
    verdict, evaluation = verdict_of(plan, copied)
    said = f"deliveries missing from landing: 1, first {a_record().object_key}"
    assert (verdict, evaluation.reason) == (BatchVerdict.REFUSED, said)
    assert all(remedy in str(evaluation.hint) for remedy in ("--accept-missing", "tidemark recover"))
    prior = plan.record(verdict, evaluation, Settings())
    again = plan_of([a_delivery(shard=2, etag="copied")], [a_record(), copied], priors=[prior])
    assert (again.is_repeated_refusal, again.needs_work) == (True, False)

    others = a_record(shard=2, etag="copied", sha256="others", recorded_at=THIS_LOAD)
    assert verdict_of(plan, others)[0] is BatchVerdict.ACCEPTED


def a_day(**changes: Any) -> list[DeliveryRecord]:
    """24 hours of two shards with 10 rows each, and an empty one; the second came later, so the first may be withdrawn."""
    return [
        a_record(hour, shard, lines=rows, rows=rows, recorded_at=at, **changes)
        for hour in range(24)
        for shard, rows, at in ((1, 10, FIRST_LOAD), (2, 10, SECOND_LOAD), (3, 0, FIRST_LOAD))
    ]


def listed_of(records: Sequence[DeliveryRecord], but: Sequence[tuple[int, int]] = ()) -> list[Delivery]:
    names = {GRAMMAR.format_delivery(BATCH, *one) for one in but}
    parsed = [GRAMMAR.parse(Source.REGULAR, PROJECT, one.object_key, one.etag, one.size_bytes) for one in records]
    return [one for one in parsed if isinstance(one, Delivery) and one.key not in names]


FIRST_SHARDS = [(hour, 1) for hour in range(24)]


def test_the_share_of_rows_that_vanished_is_bounded() -> None:
    """Scenario: the first shards of every hour, or of one, are gone; the vendor rewrites the hour.
    Outcome: beyond the bound the batch is refused until accepted, and read once; replaced rows are no loss."""
    day, gone = a_day(), FIRST_SHARDS
    plan = plan_of(listed_of(day, gone), day)
    assert (len(plan.withdrawn), plan.missing) == (24, ())
    verdict, evaluation = verdict_of(plan)
    assert verdict is BatchVerdict.REFUSED
    assert str(evaluation.reason).startswith("rows vanished from landing: 240 of 480 (50.0%), first ")
    assert "--accept-missing" in str(evaluation.hint)
    prior = plan.record(verdict, evaluation, Settings())
    assert (prior.is_missing, plan_of(listed_of(day, gone), day, priors=[prior]).is_repeated_refusal) == (True, True)
    for change in ({"reasons": {DAY: "why"}}, {"now": LATER}):
        assert not plan_of(listed_of(day, gone), day, priors=[prior], **change).is_repeated_refusal
    assert not plan_of(listed_of(day), day, priors=[prior]).is_repeated_refusal

    accepted = plan_of(listed_of(day, gone), day, priors=[prior], reasons={DAY: "the vendor said so"})
    verdict, evaluation = verdict_of(accepted)
    assert (verdict, evaluation.reason) == (BatchVerdict.ACCEPTED, "24 withdrawn: the vendor said so")
    assert accepted.record(verdict, evaluation, Settings()).is_loss_accepted

    assert verdict_of(plan_of(listed_of(day, gone[:1]), day))[0] is BatchVerdict.REFUSED, "10 of 480 rows are 2.1%"
    assert verdict_of(plan_of(listed_of(day, gone[:1]), day), change_max_shrink=0.05)[0] is BatchVerdict.ACCEPTED
    bounds = {"raw/regular_events:rows": {"shrink": 0.05}}
    assert verdict_of(plan_of(listed_of(day, gone[:1]), day), change_bounds=bounds)[0] is BatchVerdict.ACCEPTED
    few = [replace(one, rows=2, lines=2) for one in day if one.rows]
    assert verdict_of(plan_of(listed_of(few, gone), few))[0] is BatchVerdict.ACCEPTED, "96 rows"

    for rows, expected in ((20, BatchVerdict.ACCEPTED), (16, BatchVerdict.ACCEPTED), (15, BatchVerdict.REFUSED)):
        rewritten = plan_of([*listed_of(day, [(5, 1), (5, 2), (5, 3)]), a_delivery(5, 7)], day)
        came = a_record(5, 7, rows=rows, lines=rows, recorded_at=THIS_LOAD)
        assert verdict_of(rewritten, came)[0] is expected
    # More rows of another hour, or of an earlier version, hide no loss.
    for hour, shard, rows in ((6, 7, 500), (5, 2, 11)):
        listed = [one for one in listed_of(day, [(5, 1)]) if (one.hour, one.shard) != (hour, shard)]
        plan = plan_of([*listed, a_delivery(hour, shard, etag="e2")], day)
        came = a_record(hour, shard, etag="e2", sha256="others", rows=rows, lines=rows, recorded_at=THIS_LOAD)
        assert verdict_of(plan, came)[0] is BatchVerdict.REFUSED


@cases(
    ("rows", "older", "expected"),
    {
        "as many rows": (20, [], BatchVerdict.ACCEPTED),
        "more": (21, [], BatchVerdict.ACCEPTED),
        "fewer": (19, [], BatchVerdict.REFUSED),
        "beside an object that came with the lost ones": (20, [(5, 3)], BatchVerdict.REFUSED),
    },
)
def test_an_hour_that_an_earlier_load_read_anew_loses_nothing(
    rows: int, older: list[tuple[int, int]], expected: BatchVerdict
) -> None:
    """Outcome: accepted where the remaining objects came later with as many rows; else the rows count as vanished."""
    new = a_record(5, 7, rows=rows, lines=rows, recorded_at=SECOND_LOAD)
    old = [(5, shard) for shard in (1, 2, 3) if (5, shard) not in older]
    day = [replace(one, recorded_at=FIRST_LOAD) for one in a_day()]
    verdict, evaluation = verdict_of(plan_of(listed_of([*day, new], old), [*day, new]))
    assert verdict is expected, evaluation.reason


def test_rows_that_an_unreadable_version_takes_are_bounded_too() -> None:
    """Outcome: the tolerated unreadable object's rows count as vanished, and the refusal stands until accepted."""
    tolerant, day = {"max_unreadable_objects": 1}, a_day()
    listed = [*listed_of(day, [(5, 1)]), a_delivery(5, 1, etag="e2")]
    bad = a_record(5, 1, etag="e2", sha256="x", rows=0, lines=0, error="truncated_gzip", recorded_at=THIS_LOAD)
    plan = plan_of(listed, day, **tolerant)
    verdict, evaluation = verdict_of(plan, bad, **tolerant)
    assert verdict is BatchVerdict.REFUSED
    assert f"rows vanished from landing: 10 of 480 (2.1%), first {bad.object_key}" in str(evaluation.reason)
    prior = plan.record(verdict, evaluation, Settings(**tolerant))
    assert (prior.is_missing, plan_of(listed, day, priors=[prior], **tolerant).is_repeated_refusal) == (True, True)
    assert not plan_of(listed, day, priors=[prior], **tolerant, change_max_shrink=0.05).is_repeated_refusal
    assert verdict_of(plan, bad, **tolerant, change_max_shrink=0.05)[0] is BatchVerdict.ACCEPTED
    accepted = plan_of(listed, day, priors=[prior], reasons={DAY: "it is lost"}, **tolerant)
    assert accepted.needs_work
    verdict, evaluation = verdict_of(accepted, bad, **tolerant)
    assert (verdict, evaluation.reason) == (BatchVerdict.ACCEPTED, "1 without a readable version: it is lost")
    assert accepted.record(verdict, evaluation, Settings(**tolerant)).is_loss_accepted


def test_many_small_losses_of_a_batch_count_together() -> None:
    """Scenario: two losses within the bound. Outcome: the second is refused for the sum, which an acceptance resets."""
    first = [replace(one, rows=100, lines=100) for one in a_day() if one.rows]
    first += [a_record(hour, 3, rows=0, lines=0) for hour in range(24)]
    first[0], first[2] = (replace(one, rows=40, lines=40) for one in (first[0], first[2]))
    plan = plan_of(listed_of(first, [(0, 1)]), first)
    verdict, evaluation = verdict_of(plan)
    assert verdict is BatchVerdict.ACCEPTED
    prior = plan.record(verdict, evaluation, Settings())

    second = first[1:]
    # An ordinary load in between resets nothing.
    between = plan_of([*listed_of(second), a_delivery(9, 9)], second, priors=[prior])
    prior = between.record(*verdict_of(between, a_record(9, 9, recorded_at=THIS_LOAD)), Settings())
    plan = plan_of(listed_of(second, [(1, 1)]), second, priors=[prior])
    verdict, evaluation = verdict_of(plan)
    assert verdict is BatchVerdict.REFUSED
    assert str(evaluation.reason).startswith("rows vanished from landing: 80 of 4680 (1.7%), first ")
    refused = plan.record(verdict, evaluation, Settings())
    assert refused.vanished_rows == prior.vanished_rows == 40
    plan = plan_of(listed_of(second, [(1, 1)]), second, priors=[refused], reasons={DAY: "why"})
    verdict, evaluation = verdict_of(plan)
    assert (verdict, plan.record(verdict, evaluation, Settings()).vanished_rows) == (BatchVerdict.ACCEPTED, 0)


def test_small_batches_that_lose_rows_together_are_bounded_together() -> None:
    """Outcome: ten small projects that lose half are refused, since the sum exceeds `change_min_rows`; one alone is not."""
    batches = [BatchKey(Source.REGULAR, str(10001 + number), DAY) for number in range(10)]
    records = [
        a_record(hour, rows=20, lines=20, batch=batch, shard=shard, recorded_at=at)
        for batch in batches
        for hour, shard, at in ((5, 1, FIRST_LOAD), (5, 2, SECOND_LOAD))
    ]
    records += [a_record(5, 3, rows=0, lines=0, batch=batch) for batch in batches]
    listed = [a_delivery(5, shard, batch=batch) for batch in batches for shard in (2, 3)]
    plans = plans_of(listed, records, projects=[batch.project_id for batch in batches])
    judged = judge(plans, {}, {}, Settings())
    assert {verdict for verdict, _ in judged.values()} == {BatchVerdict.REFUSED}
    told = {evaluation.reason for _, evaluation in judged.values()}
    assert all("rows vanished from landing: 200 of 400 (50.0%) in 10 small batches" in str(one) for one in told)
    judged = judge(dict(list(plans.items())[:5]), {}, {}, Settings())
    assert {verdict for verdict, _ in judged.values()} == {BatchVerdict.ACCEPTED}, "100 rows"


def test_rows_that_leave_by_an_exclusion_never_count() -> None:
    """Nor where landing lost them since."""
    day, exclusions = a_day(), [an_exclusion(*one) for one in FIRST_SHARDS]
    for listed in (listed_of(day), listed_of(day, FIRST_SHARDS)):
        plan = plan_of(listed, day, exclusions=exclusions)
        assert (len(plan.withdrawn), verdict_of(plan)[0]) == (24, BatchVerdict.ACCEPTED)


def test_rows_that_the_other_prefix_lists_with_the_same_bytes_never_count() -> None:
    day, arrived = a_day(), frozenset(GRAMMAR.format_delivery(BATCH, *one) for one in FIRST_SHARDS)
    plan = plan_of(listed_of(day, FIRST_SHARDS), day, relocated=Relocated(arrived))
    assert (len(plan.withdrawn), plan.missing, verdict_of(plan)[0]) == (24, (), BatchVerdict.ACCEPTED)


def test_an_excluded_object_stands_for_no_other() -> None:
    plan = plan_of([a_delivery(shard=7)], [a_record()], exclusions=[an_exclusion(shard=7)])
    assert (plan.missing, plan.withdrawn) == ((a_record().object_key,), ())


@cases(
    ("horizon_days", "now", "is_inside"),
    {
        "day 30": (30, datetime(2026, 3, 4, tzinfo=UTC), True),
        "end of day 30": (30, datetime(2026, 3, 4, 23, 59, 59, tzinfo=UTC), True),
        "day 31": (30, datetime(2026, 3, 5, tzinfo=UTC), False),
        "no horizon, same day": (0, datetime(2026, 2, 2, 23, 59, tzinfo=UTC), True),
        "no horizon, next day": (0, datetime(2026, 2, 3, tzinfo=UTC), False),
    },
)
@cases("listed", {"none": [], "hour": [a_delivery(9)], "shard": [a_delivery(9), a_delivery(10, 7)]})
def test_past_the_horizon_raw_is_the_archive(
    horizon_days: int, now: datetime, is_inside: bool, listed: list[Delivery]
) -> None:
    plan = plan_of(listed, [a_record(9), a_record(10)], now=now, reasons=None, redelivery_horizon_days=horizon_days)
    assert bool(plan.missing or plan.withdrawn) is is_inside


def test_past_the_horizon_new_versions_are_still_taken_and_nothing_leaves_even_with_a_reason() -> None:
    plan = plan_of([a_delivery(9, etag="e2")], [a_record(9), a_record(10)], now=LATER, reasons={DAY: "expired"})
    assert (plan.changed, plan.missing, plan.withdrawn) == ((a_delivery(9, etag="e2"),), (), ())


def test_past_the_horizon_an_object_that_raw_lost_rows_of_is_missing_unless_landing_has_it() -> None:
    """Outcome: the object is read again; if landing lost it, the batch is refused until accepted."""
    damaged = replace(a_record(10), etag=f"{DAMAGED}e1", sha256=None)
    there, held = [a_delivery(9)], [a_record(9), a_record(10)]
    assert plan_of([*there, a_delivery(10)], [held[0], damaged], now=LATER).changed == (a_delivery(10),)
    lost = plan_of(there, [held[0], damaged], now=LATER)
    assert (lost.missing, lost.withdrawn) == ((damaged.object_key,), ())
    let_go = plan_of(there, [held[0], damaged], now=LATER, reasons={DAY: "expired"})
    assert (let_go.missing, let_go.withdrawn) == ((), (damaged.object_key,))

    again = plan_of(there, held, now=LATER, read_again={BATCH: True})
    assert (again.changed, again.missing, again.known_bytes) == (tuple(there), (held[1].object_key,), {})
    of_lines = plan_of(there, held, now=LATER, read_again={BATCH: False})
    assert (of_lines.changed, of_lines.missing, of_lines.withdrawn) == (tuple(there), (), ())


def test_a_reason_turns_missing_into_withdrawn_on_its_own_day_only() -> None:
    other = BatchKey(Source.REGULAR, PROJECT, DAY + timedelta(days=1))
    recorded = [a_record(9), a_record(10), a_record(9, batch=other)]
    plans = plans_of([a_delivery(9)], recorded, reasons={DAY: "the vendor said so"})
    assert (plans[BATCH].missing, plans[BATCH].withdrawn) == ((), (a_record(10).object_key,))
    assert (plans[BATCH].accepted_reason, plans[BATCH].needs_work) == ("the vendor said so", True)
    assert plans[other].missing
    assert plans[other].accepted_reason is None


def test_a_reason_empties_a_batch_that_is_gone_whole_and_changes_nothing_where_nothing_is_gone() -> None:
    plan = plan_of([], [a_record(9), a_record(10)], reasons={DAY: "a test project"})
    assert (len(plan.withdrawn), plan.needs_work) == (2, True)
    assert not plan_of([a_delivery()], [a_record()], reasons={DAY: "for all tables"}).needs_work


@cases(
    ("hours", "now", "is_closed"),
    {
        "24 markers": (range(24), DEADLINE - timedelta(days=2), True),
        "23 markers": (range(23), DEADLINE - timedelta(days=2), False),
        "one of them twice": ([*range(23), 0], DEADLINE - timedelta(days=2), False),
        "at the deadline": ([], DEADLINE, False),
        "past it": ([], DEADLINE + timedelta(seconds=1), True),
        "past it, 23 markers": (range(23), DEADLINE + timedelta(seconds=1), True),
    },
)
def test_a_batch_is_closed_by_all_its_markers_or_by_its_deadline(
    hours: Iterable[int], now: datetime, is_closed: bool
) -> None:
    assert plan_of([a_delivery()], markers=markers_of(hours), now=now).is_closed is is_closed


@pytest.mark.parametrize(("hours", "expected"), [(48, DEADLINE), (0, datetime(2026, 2, 3, tzinfo=UTC))])
def test_the_deadline_counts_from_the_end_of_the_day(hours: int, expected: datetime) -> None:
    assert deadline(DAY, Settings(final_after_hours=hours)) == expected


@cases(
    ("listed", "hours", "now", "said"),
    {
        "open": ([a_delivery()], range(22), DEADLINE, "2 of 24 hours have no marker yet"),
        "past the deadline": ([a_delivery(23)], (), DEADLINE + timedelta(seconds=1), None),
        "all markers": ([a_delivery()], range(24), DEADLINE, None),
        "nothing delivered": ([], (), DEADLINE, None),
    },
)
def test_a_day_is_complete_when_closed_or_empty(
    listed: list[Delivery], hours: Iterable[int], now: datetime, said: str | None
) -> None:
    plan = plan_of(listed, markers=markers_of(hours), now=now)
    record = plan.record(BatchVerdict.ACCEPTED, RECONCILED, Settings())
    complete = next(e for e in record.evaluations if e.check == Check.DELIVERY_COMPLETE)
    assert (complete.is_passed, complete.reason) == (said is None, said)
    assert (record.deliveries, record.hours_delivered) == (len(listed), len(listed))


_MARKED_BEFORE = Marker(replace(BATCH, arrival_date=DAY - timedelta(days=30)), 0, "m")


@cases(
    ("markers", "settings", "is_told"),
    {
        "12 of 24": (markers_of(range(12)), {}, True),
        "marked 30 days before": ((_MARKED_BEFORE,), {}, True),
        "marked too long ago": ((_MARKED_BEFORE,), {"redelivery_horizon_days": 29}, False),
        "no markers": ((), {}, False),
        "quiet": (markers_of(range(12)), {"hours_complete_by": "quiet"}, False),
        "sparse": (markers_of(range(12)), {"sparse_projects": (PROJECT,)}, False),
        "all marked": (markers_of(range(24)), {}, False),
    },
)
def test_hours_that_never_came_are_told_after_the_deadline_where_the_exporter_writes_markers(
    markers: tuple[Marker, ...], settings: dict[str, Any], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_PROJECTS", PROJECT)
    plan = plan_of([a_delivery()], markers=markers, **settings)
    record = plan.record(BatchVerdict.ACCEPTED, RECONCILED, Settings(**settings))
    _, complete = record.evaluations
    assert (record.is_closed, complete.is_passed, record.partial_hours is not None) == (True, not is_told, is_told)
    assert lacks_hours(record, None) is is_told
    if is_told:
        held = len({10, *(marker.hour for marker in markers if marker.batch == BATCH)})
        assert complete.figures[HOURS_HELD] == held
        assert f"never came, and any source holds {held} of 24 hours" in str(complete.reason)


def _judged_as(plan: BatchPlan, **settings: Any) -> BatchRecord:
    return plan.record(*verdict_of(plan, **settings), Settings(**settings))


def test_hours_that_never_came_are_recovered_or_let_go_and_stay_so_until_another_one_is_missing() -> None:
    """Outcome: recovered hours count; accepted ones stay accepted; a further loss is reported."""
    came, held = [a_delivery(hour) for hour in range(12)], [a_record(hour) for hour in range(12)]
    marked = markers_of(range(12))
    plan: Any = partial(plan_of, came, held, markers=marked)
    told, recovered, whole = _judged_as(plan()), recovered_of(12), recovered_of(*range(12, 24), deliveries=0)
    assert [lacks_hours(told, other) for other in (None, recovered, whole)] == [True, True, False]
    assert plan(priors=[told, recovered]).partial_hours == 13
    assert not lacks_hours(_judged_as(plan(priors=[told, whole])), whole)

    let_go = _judged_as(plan(priors=[told], reasons={DAY: "it was off"}))
    assert (let_go.is_loss_accepted, let_go.evaluations[1].is_passed, lacks_hours(let_go, None)) == (True, True, False)
    assert let_go.reason == "hours of a regular export never came, and any source holds 12 of 24 hours: it was off"
    again = _judged_as(plan(priors=[let_go]))
    assert (again.reason, lacks_hours(again, None)) == (let_go.reason, False)
    fewer = _judged_as(plan_of(came[1:], held[1:], markers=marked[1:], priors=[let_go]))
    assert lacks_hours(fewer, None)
    open_day = _judged_as(plan(now=DEADLINE, reasons={DAY: "it was off"}))
    assert (open_day.is_loss_accepted, open_day.evaluations[1].reason) == (False, "12 of 24 hours have no marker yet")
    # Past the horizon landing's markers may be gone with its objects; raw is the archive.
    archived = plan_of(recorded=held, now=LATER, priors=[replace(told, hours=tuple(range(24)))])
    assert archived.hours_held == frozenset(range(24))


def test_a_reason_for_a_lost_object_tells_of_hours_that_never_came_too() -> None:
    came = [a_delivery(hour) for hour in range(12) if hour != 3]
    plan = plan_of(came, [a_record(hour) for hour in range(12)], markers=markers_of([0]), reasons={DAY: "3 is lost"})
    told = plan.told_loss(Settings())
    assert told.startswith("lets go 1 objects with 5 rows of hours 3, first ")
    assert told.endswith("; hours of a regular export never came, and any source holds 11 of 24 hours: 3 is lost")


def test_an_hour_whose_object_a_person_excluded_came() -> None:
    """Also where landing lost it since: a recovery would bring the excluded data."""
    came = [a_delivery(hour) for hour in range(24)]
    marked = markers_of(hour for hour in range(24) if hour != 5)
    for listed in (came, [one for one in came if one.hour != 5]):
        assert plan_of(listed, markers=marked, exclusions=[an_exclusion(5)]).partial_hours is None
    assert plan_of([one for one in came if one.hour != 5], markers=marked).partial_hours == 23


def test_hours_before_a_project_began_are_not_missing() -> None:
    """Scenario: a project's first export is of 14:00. Outcome: its first day lacks no hour; other days are unaffected."""
    came = [a_delivery(hour) for hour in range(14, 24)]
    plan = plan_of(came, markers=markers_of(range(14, 24)))
    assert (plan.partial_hours, plan.from_its_start(DAY).partial_hours) == (10, None)
    assert plan.from_its_start(DAY - timedelta(days=1)).partial_hours == 10
    assert plan.from_its_start(None).partial_hours == 10
    short = plan_of(came[:-1], markers=markers_of(range(14, 23)))
    assert short.from_its_start(DAY).partial_hours == 23
    recovered = plan_of(came, markers=markers_of(range(14, 24)), priors=[recovered_of(3)])
    assert recovered.from_its_start(DAY).partial_hours == 11


def _odd(end: str, hour: int = 7, size_bytes: int = 9) -> UnrecognizedObject:
    answer = GRAMMAR.parse(Source.REGULAR, PROJECT, f"{PROJECT}/{PROJECT}_{DAY}_{hour}{end}", "e", size_bytes)
    assert isinstance(answer, UnrecognizedObject)
    return answer


@pytest.mark.parametrize(
    ("hours_complete_by", "marked"), [("markers", 24), ("quiet", 24), ("quiet", 0), ("markers", 0)]
)
def test_an_hour_with_an_object_that_cannot_be_placed_is_not_complete(hours_complete_by: str, marked: int) -> None:
    """Scenario: 24 markers, hour 7's name cut at the `#`. Outcome: the day lacks that hour and names the object."""
    came, held = [a_delivery(5)], [a_record(5)]
    settings: dict[str, Any] = {"hours_complete_by": hours_complete_by}
    known: dict[str, Any] = {"markers": markers_of(range(marked)), **settings}
    plan = plan_of(came, held, odd=[_odd("")], **known)
    told = _judged_as(plan, **settings)
    assert (lacks_hours(told, None), told.partial_hours, told.hours_marked) == (True, 23, max(0, marked - 1))
    complete = told.evaluations[1]
    assert f"hours 7 hold 1 objects whose names cannot be placed: {PROJECT}/{PROJECT}_{DAY}_7" in str(complete.reason)
    assert "Give these objects the vendor's names" in str(complete.hint)
    status = arrivals_of({BATCH: replace(plan, prior=told)})
    assert (status.due, "cannot be placed" in status.waiting[BATCH]) == ({}, True)

    assert not lacks_hours(told, recovered_of(7))
    let_go = plan_of(came, held, odd=[_odd("")], priors=[told], reasons={DAY: "it is lost"}, **known)
    assert not lacks_hours(_judged_as(let_go, **settings), None)
    mended = plan_of([*came, a_delivery(7)], held, priors=[told], **known)
    assert not lacks_hours(mended.record(BatchVerdict.ACCEPTED, told.evaluations[0], Settings(**settings)), None)
    # Once moved away it is no object of the hour: the day is judged again unasked.
    away = plan_of(came, held, priors=[told], **known)
    assert "lacked" in arrivals_of({BATCH: away}).due[BATCH]


def test_an_hour_of_which_one_object_is_read_and_another_cannot_be_placed_is_not_complete() -> None:
    plan = plan_of([a_delivery(7)], [a_record(7)], markers=markers_of(range(24)), odd=[_odd("#2")])
    assert (plan.partial_hours, plan.hours_known(Settings())) == (23, set())


@pytest.mark.parametrize(
    "odd", [_odd("#1.json.gz.md5"), _odd("#1.json.gz.tmp"), _odd("#2", size_bytes=0), _odd("_complete.x")]
)
def test_what_lies_beside_a_delivery_or_holds_nothing_makes_no_hour_incomplete(odd: UnrecognizedObject) -> None:
    plan = plan_of([a_delivery(7)], [a_record(7)], markers=markers_of(range(24)), odd=[odd])
    assert (plan.unplaced, plan.partial_hours, len(plan.hours_marked)) == ({}, None, 24)


def test_a_day_whose_every_object_cannot_be_placed_is_no_day_without_events() -> None:
    plan = plan_of(markers=markers_of(range(24)), odd=[_odd("")])
    for is_elsewhere in (False, True):
        verdict, evaluation = absent_of(plan, is_elsewhere=is_elsewhere)
        record = plan.record(verdict, evaluation, Settings())
        assert (verdict is BatchVerdict.REFUSED) is not is_elsewhere
        assert "cannot be placed" in " ".join(str(one.reason) for one in record.evaluations)
    assert not plan.is_newly_empty


def test_a_project_that_begins_with_an_hour_that_cannot_be_placed_lacks_that_hour() -> None:
    came = [a_delivery(hour) for hour in range(6, 24)]
    plan = plan_of(came, markers=markers_of(range(6, 24)), odd=[_odd("", hour=5)])
    assert plan.from_its_start(DAY).partial_hours == 23


def test_a_recovery_with_an_object_that_cannot_be_placed_keeps_its_day_open() -> None:
    plan = BatchPlan(BACKFILL, {"a": a_delivery(batch=BACKFILL)}, unplaced={"b": 7}, is_closed=True)
    record = plan.record(BatchVerdict.ACCEPTED, RECONCILED, Settings())
    assert is_short({BACKFILL: record}, BACKFILL)
    assert not is_short({BACKFILL: replace(record, evaluations=())}, BACKFILL)


BROKEN = Evaluation(Check.DELIVERY_RECONCILES, False, "1 unreadable objects", "cure", {"unreadable_objects": 1})
GONE = Evaluation(Check.DELIVERY_RECONCILES, False, "1 deliveries are missing", "cure", {"missing_objects": 1})


def refused_as(
    evaluation: Evaluation, listed: Sequence[Delivery], recorded: Sequence[DeliveryRecord] = ()
) -> BatchRecord:
    return plan_of(listed, recorded).record(BatchVerdict.REFUSED, evaluation, Settings())


@cases(
    ("changes", "is_repeat"),
    {
        "the same": ({}, True),
        "other version": ({"listed": [a_delivery(etag="e2")]}, False),
        "one more object": ({"listed": [a_delivery(), a_delivery(11)]}, False),
        "deleted": ({"listed": []}, False),
        "other parser": ({"code": "parser 2"}, False),
        "unreadable bound": ({"max_unreadable_objects": 1}, False),
        "share bound": ({"max_quarantined_share": 0.5}, False),
        "a bound of slices": ({"change_min_rows": 5}, True),
        "a reason": ({"reasons": {DAY: "why"}}, True),
        "time passes": ({"now": LATER}, True),
        "markers come": ({"markers": markers_of(range(24))}, True),
    },
)
def test_the_same_state_is_refused_only_once(changes: dict[str, Any], is_repeat: bool) -> None:
    listed = [a_delivery()]
    plan = plan_of(**{"listed": listed, "priors": [refused_as(BROKEN, listed)]} | changes)
    assert plan.is_repeated_refusal is is_repeat
    assert not (is_repeat and plan.needs_work)


@pytest.mark.parametrize("verdict", [BatchVerdict.ACCEPTED, BatchVerdict.WAITING, BatchVerdict.MOVED])
def test_only_refusals_stand(verdict: BatchVerdict) -> None:
    listed = [a_delivery()]
    prior = replace(refused_as(BROKEN, listed), verdict=verdict)
    assert plan_of(listed, priors=[prior]).needs_work


def test_a_batch_refused_as_missing_is_taken_up_with_a_reason_when_all_is_back_or_by_the_horizon() -> None:
    listed, recorded = [a_delivery(9)], [a_record(9), a_record(10)]
    prior = refused_as(GONE, listed, recorded)
    assert prior.is_missing
    # Past the horizon raw is the archive and no hour is missing any more.
    released = plan_of(listed, recorded, priors=[prior], now=LATER)
    assert (released.missing, released.is_repeated_refusal) == ((), False)
    standing = plan_of(listed, recorded, priors=[prior])
    assert (standing.is_repeated_refusal, standing.needs_work) == (True, False)
    accepted = plan_of(listed, recorded, priors=[prior], reasons={DAY: "why"})
    assert (accepted.withdrawn, accepted.needs_work) == ((a_record(10).object_key,), True)
    back = plan_of([*listed, a_delivery(10)], recorded, priors=[prior])
    assert (back.is_repeated_refusal, back.missing, back.withdrawn, back.changed) == (False, (), (), ())


def test_the_state_of_a_batch_does_not_depend_on_the_order_of_the_listing() -> None:
    deliveries = [a_delivery(hour) for hour in range(5)]
    states = {plan_of(order).input_state(Settings()) for order in (deliveries, deliveries[::-1])}
    assert len(states) == 1


@cases(
    ("first_arrival", "is_other_there", "hours", "now", "verdict"),
    {
        "before the first arrival": (DAY + timedelta(days=1), False, (), LATER, BatchVerdict.ACCEPTED),
        "on the first arrival's day": (DAY, False, (), LATER, BatchVerdict.REFUSED),
        "after it": (DAY - timedelta(days=1), False, (), LATER, BatchVerdict.REFUSED),
        "nothing was ever delivered": (None, False, (), LATER, BatchVerdict.REFUSED),
        "the other source is there": (DAY, True, (), LATER, BatchVerdict.ACCEPTED),
        "24 markers, nothing ever": (None, False, range(24), LATER, BatchVerdict.ACCEPTED),
        "24 markers": (DAY, False, range(24), DEADLINE, BatchVerdict.ACCEPTED),
        "23 markers": (DAY, False, range(23), LATER, BatchVerdict.REFUSED),
        "23 markers, at the deadline": (DAY, False, range(23), DEADLINE, BatchVerdict.WAITING),
        "at the deadline": (DAY, False, (), DEADLINE, BatchVerdict.WAITING),
        "past the deadline": (DAY, False, (), DEADLINE + timedelta(seconds=1), BatchVerdict.REFUSED),
        "nothing ever, at the deadline": (None, False, (), DEADLINE, BatchVerdict.WAITING),
        "before the first arrival, open": (DAY + timedelta(days=1), False, (), DEADLINE, BatchVerdict.ACCEPTED),
    },
)
def test_a_day_without_deliveries(
    first_arrival: date | None, is_other_there: bool, hours: Iterable[int], now: datetime, verdict: BatchVerdict
) -> None:
    plan = plan_of(markers=markers_of(hours), now=now)
    found, evaluation = absent_of(plan, now, first=first_arrival, is_elsewhere=is_other_there)
    assert (found, evaluation.check) == (verdict, Check.DELIVERY_RECONCILES)
    assert evaluation.is_passed is (verdict is BatchVerdict.ACCEPTED)
    assert evaluation.figures["hours_marked"] == len(tuple(hours))


@pytest.mark.parametrize("source", Source)
@cases(
    ("own", "others", "now", "verdict"),
    {
        "24 past the deadline": ((), range(24), LATER, BatchVerdict.ACCEPTED),
        "24 before it": ((), range(24), DEADLINE, BatchVerdict.ACCEPTED),
        "12 and the other 12": (range(12), range(12, 24), LATER, BatchVerdict.ACCEPTED),
        "23 past the deadline": ((), range(23), LATER, BatchVerdict.REFUSED),
        "23 before it": ((), range(23), DEADLINE, BatchVerdict.WAITING),
    },
)
def test_a_day_is_empty_by_its_markers_whichever_side_is_asked(
    source: Source, own: Iterable[int], others: Iterable[int], now: datetime, verdict: BatchVerdict
) -> None:
    """Outcome: with a marker in each hour the day is empty and good on either side; an earlier refusal is due once."""
    asked, other = (BATCH, BACKFILL) if source is Source.REGULAR else (BACKFILL, BATCH)
    there = BatchRecord(other, BatchVerdict.ACCEPTED, hours_marked=len(tuple(others)), hours=tuple(others))
    refused = BatchRecord(asked, BatchVerdict.REFUSED, reason="no delivery")
    marked = markers_of(own, batch=asked)
    plan = plan_of(markers=marked, priors=[there, refused], now=now, source=source)
    found, evaluation = absent_of(plan, now)
    assert (found, evaluation.is_passed) == (verdict, verdict is BatchVerdict.ACCEPTED)
    assert plan.is_newly_empty is (verdict is BatchVerdict.ACCEPTED)
    record = plan.record(found, evaluation, Settings())
    assert all(one.is_passed for one in record.evaluations) is (verdict is BatchVerdict.ACCEPTED)
    assert not plan_of(markers=marked, priors=[there, record], now=now, source=source).is_newly_empty
    unasked = plan_of(markers=marked, priors=[there], now=now, source=source)
    assert unasked.is_newly_empty is (verdict is BatchVerdict.ACCEPTED and source is Source.REGULAR)


def test_a_day_without_deliveries_says_what_to_do() -> None:
    asked = ((DEADLINE, DAY), (LATER, DAY), (LATER, None))
    waiting, refused, never = (absent_of(plan_of(now=now), now, first=first)[1] for now, first in asked)
    assert waiting.reason == f"{BATCH}: nothing is delivered yet"
    assert "2026-02-05 00:00 UTC" in str(waiting.hint)
    assert refused.reason == f"{BATCH}: no delivery of either source, and the deadline has passed"
    assert never.reason == f"{BATCH}: no delivery at all, and the deadline has passed"
    for name in ("TIDEMARK_LANDING_URL", "TIDEMARK_PROJECTS", "24 markers"):
        assert name in str(refused.hint)
    assert f"tidemark recover --from {DAY} --to {DAY} --project {PROJECT} --refused --load" in str(refused.hint)


@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("error", ["truncated_gzip", "", NOT_READABLE])
def test_a_refusal_of_what_cannot_be_read_names_the_recovery_of_the_day(source: Source, error: str) -> None:
    """As the page of health does; not for a refusal that a recovery does not end."""
    batch = BatchKey(source, PROJECT, DAY)
    delivery = a_delivery(batch=batch)
    lines = {"lines": 100, "rows": 1, "quarantined": 99} if not error else {}
    record = a_record(batch=batch, error=error or None, **lines)
    unread = {delivery.key: "no rights"} if error == NOT_READABLE else {}
    plan = BatchPlan(batch, listed={delivery.key: delivery}, changed=(delivery,))
    verdict, evaluation = judge({batch: plan}, {delivery.key: record}, unread, Settings())[batch]
    assert verdict is BatchVerdict.REFUSED
    (_, command, _) = commands(AnswerKind.ACCEPT_MISSING, source, (), (PROJECT,), DAY, DAY)
    is_named = bool(error) and source is Source.REGULAR
    assert str(evaluation.hint).endswith(f"; or fetch it from the vendor: {command}") == is_named
    words = shlex.split(command)[2:]
    options = {option for parameter in _SHELL.commands["recover"].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_what_was_accepted_stays_so_when_landing_has_lost_its_reason() -> None:
    """Markers expire with landing; an excluded object may too, and needs no horizon."""
    prior = BatchRecord(BATCH, BatchVerdict.ACCEPTED, evaluations=(RECONCILED,))
    expected = [
        (plan_of(priors=[prior], now=LATER), LATER, BatchVerdict.ACCEPTED, None),
        (plan_of(priors=[prior], now=SOON), SOON, BatchVerdict.REFUSED, "no delivery of either source"),
        (plan_of(exclusions=[an_exclusion()], now=SOON), SOON, BatchVerdict.ACCEPTED, "1 excluded: a test account"),
    ]
    for plan, now, verdict, said in expected:
        found, evaluation = absent_of(plan, now)
        assert found is verdict
        assert (said or "") in (evaluation.reason or "")


@cases("now", {"within the horizon": SOON, "past it": LATER})
@cases(
    ("listed", "recorded", "excluded", "read", "removed"),
    {
        "what raw holds": (["e1"], ["e1"], ["e1"], False, True),
        "never read": (["e1"], [], ["e1"], False, False),
        "another version came": (["e2"], ["e1"], ["e1"], True, False),
        "the version that came, beside a good one in raw": (["e2"], ["e1"], ["e2"], False, False),
        "an unknown version, landing's excluded": (["e1"], [""], ["e1"], False, False),
        "a version known by its rows alone": (["e1"], ["unread e1"], ["e1"], False, True),
        "a version of long ago": (["e1"], ["e1"], ["e2"], False, False),
        "what raw holds, gone from landing": ([], ["e1"], ["e1"], False, True),
    },
)
def test_an_excluded_version_is_not_read_and_its_rows_go(
    listed: Sequence[str], recorded: Sequence[str], excluded: Sequence[str], read: bool, removed: bool, now: datetime
) -> None:
    """Another object of the batch stays as it is."""
    there = [a_delivery(9), *(a_delivery(etag=etag) for etag in listed)]
    held = [a_record(etag=etag, sha256=f"bytes of {etag}" if etag[:1] == "e" else None) for etag in recorded]
    exclusions = [an_exclusion(etag=etag) for etag in excluded]
    plan = plan_of(there, [a_record(9), *held], exclusions=exclusions, now=now)
    key = a_delivery().key
    assert [delivery.key for delivery in plan.changed] == ([key] if read else [])
    assert plan.withdrawn == ((key,) if removed else ())
    assert (plan.missing, plan.needs_work) == ((), read or removed)
    assert (key in plan.known_bytes) == (read and bool(recorded))


@cases("held", {"raw holds these bytes": "bytes of e2", "raw holds others": "bytes of e1"})
def test_excluded_bytes_under_another_etag_leave_the_plan_and_not_the_one_it_was_made_from(held: str) -> None:
    plan = plan_of([a_delivery(9), a_delivery(etag="e2")], [a_record(9), a_record(sha256=held)])
    key = a_delivery().key
    out = plan.without(replace(an_exclusion(etag="e2"), sha256="bytes of e2"))

    assert [delivery.key for delivery in plan.changed] == [key]
    assert (out.changed, sorted(out.listed), sorted(out.excluded)) == ((), [a_delivery(9).key], [key])
    assert (out.withdrawn, out.ruled_out) == (((key,), {key}) if held == "bytes of e2" else ((), set()))
    assert out.exclusion_reason == "1 excluded: a test account"


def test_a_touched_object_is_neither_parsed_nor_replaced() -> None:
    batch = plan_of([a_delivery(9, etag="e2"), a_delivery(etag="e2")], [a_record(9), a_record(), a_record(9, 2)])
    attempt: Any = SimpleNamespace(touched={a_delivery(9).key: a_record(9, etag="e2")})
    attempt.to_parse = partial(Attempt.to_parse, attempt)
    assert (batch.needs_work, attempt.to_parse([batch])) == (True, [a_delivery(etag="e2")])
    assert Attempt.replaced(attempt, batch) == sorted([a_delivery().key, a_record(9, 2).object_key])


@pytest.mark.parametrize(
    ("source", "hours", "listed", "is_empty"),
    [
        (Source.REGULAR, range(24), [], True),
        (Source.REGULAR, range(23), [], False),
        (Source.REGULAR, range(24), [a_delivery(3)], False),
        (Source.BACKFILL, range(24), [], False),
    ],
)
def test_all_markers_of_a_regular_export_say_that_a_day_is_empty(
    source: Source, hours: Iterable[int], listed: list[Delivery], is_empty: bool
) -> None:
    batch = BatchKey(source, BATCH.project_id, DAY)
    plan = BatchPlan(batch, {one.key: one for one in listed}, hours_marked=frozenset(hours))
    assert plan.is_newly_empty is is_empty
    known = replace(plan, prior=BatchRecord(batch, BatchVerdict.ACCEPTED))
    assert not known.is_newly_empty


def relocated_of(
    gone: Sequence[DeliveryRecord], there: Sequence[Delivery], loaded: Sequence[DeliveryRecord] = (),
    exclusions: Sequence[Exclusion] = (),
) -> Relocated:  # fmt: skip
    return sort_relocated(
        gone, there, {record.object_key: record for record in loaded},
        {one.object_key: [one] for one in exclusions}, Settings(),
    )  # fmt: skip


def test_a_moved_delivery_is_awaited_until_its_copy_is_loaded_and_then_leaves() -> None:
    """Outcome: the hour's rows stay until the copy is loaded, then they leave; the hour is never missing."""
    gone, copy = a_record(), a_delivery(batch=BACKFILL)
    awaited = relocated_of([gone], [copy])
    assert awaited == Relocated(awaited=frozenset({gone.object_key}))
    waiting = plan_of([], [gone], relocated=awaited)
    assert (waiting.missing, waiting.withdrawn, waiting.needs_work) == ((), (), False)

    arrived = relocated_of([gone], [copy], [a_record(batch=BACKFILL)])
    assert arrived == Relocated(arrived=frozenset({gone.object_key}))
    for now in (SOON, LATER):
        leaving = plan_of([], [gone], relocated=arrived, now=now)
        assert (leaving.missing, leaving.withdrawn, leaving.let_go) == ((), (gone.object_key,), ())
        assert leaving.needs_work


def test_a_moved_delivery_hides_no_loss() -> None:
    """Another object of the day is gone: the day is refused, and nothing leaves meanwhile."""
    moved, lost = a_record(), a_record(hour=3)
    plan = plan_of([], [moved, lost], relocated=Relocated(arrived=frozenset({moved.object_key})))
    assert (plan.missing, plan.withdrawn, plan.needs_work) == ((lost.object_key,), (), False)


@cases(
    ("there", "loaded", "exclusions"),
    {
        "nothing listed": ([], [a_record(batch=BACKFILL)], []),
        "another hour": ([a_delivery(hour=11, batch=BACKFILL)], [], []),
        "another shard": ([a_delivery(shard=2, batch=BACKFILL)], [], []),
        "another size": ([replace(a_delivery(batch=BACKFILL), size_bytes=99)], [], []),
        "other bytes": ([a_delivery(batch=BACKFILL)], [a_record(batch=BACKFILL, sha256="other bytes")], []),
        "excluded": (
            [a_delivery(batch=BACKFILL)],
            [],
            [replace(an_exclusion(), object_key=a_delivery(batch=BACKFILL).key)],
        ),
    },
)
def test_what_is_no_copy_does_not_stand_for_a_delivery(
    there: list[Delivery], loaded: list[DeliveryRecord], exclusions: list[Exclusion]
) -> None:
    assert relocated_of([a_record()], there, loaded, exclusions) == Relocated()


def test_a_copy_under_an_ordinary_name_counts_too() -> None:
    """A move by hand keeps names, and the backfill prefix accepts them."""
    name = a_delivery().key.partition("/")[2]
    copy = replace(a_delivery(batch=BACKFILL), key=f"{BACKFILL.source.prefix(PROJECT)}/{name}")
    assert relocated_of([a_record()], [copy]).awaited == {a_record().object_key}
