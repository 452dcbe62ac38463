"""Vanished deliveries (wrong bucket, lifecycle rules, unfinished rewrites, expired credentials) empty no published day."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.slices import BatchVerdict, Source
from resources.landing.store import LandingStore
from tests.support.builders import LATER, PROJECT, RAW_AND_REFINED, Loaded, events_on
from tests.support.s3 import a_server_that_answers
from tests.support.world import Steps, Story, stories_in, tell

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
BEFORE, NEXT, THIRD = (DAY + timedelta(days=shift) for shift in (-1, 1, 2))
RAW, REFINED = "raw/regular_events", "refined/events"


def _published(p: Any) -> Any:
    return p.digests(), p.history()


def _assert_missing(p: Story, run: Loaded, day: date, count: int, first: str) -> None:
    """The load fails, the check is red, the ledger names reason and hint."""
    reason = f"deliveries missing from landing: {count}, first {first}"
    assert f"{day} {RAW} {p.project} refused: {reason}" in run.failure()
    assert (RAW, "delivery_reconciles", day) in run.failed_checks()
    batch = p.batch(day)
    assert (batch.verdict, batch.reason) == (BatchVerdict.REFUSED, reason)
    recover = f"tidemark recover --from {day} --to {day} --project {p.project} --refused --load"
    for hint in (
        "load again later",
        "TIDEMARK_LANDING_URL",
        "credentials",
        "lifecycle rules",
        "accept_missing",
        recover,
    ):
        assert hint in str(batch.hint)


def the_wrong_bucket_empties_nothing(p: Story) -> Steps:
    """Outcome: both days are refused as missing; after the return they are green, and nothing is published anew."""
    keys = {day: p.deliver(day, events_on(day, 10)) for day in (DAY, NEXT)}
    yield p.must_load(DAY, NEXT)
    before = _published(p)
    empty = p.landing.parent / "empty"
    empty.mkdir()
    p.change(landing_url=str(empty))
    wrong = yield p.load(DAY, NEXT)
    for day, key in keys.items():
        _assert_missing(p, wrong, day, 1, key)
        assert p.verdict(REFINED, day) == "waiting"
    assert wrong.good(RAW) == wrong.good(REFINED) == set()
    assert _published(p) == before
    p.change(landing_url=str(p.landing))
    back = yield p.must_load(DAY, NEXT)
    assert back.good(RAW) == back.good(REFINED) == {DAY, NEXT}
    assert not back.failed_checks()
    assert _published(p) == before


def history_may_expire_behind_the_horizon_and_not_before_it(p: Story) -> Steps:
    """Scenario: a lifecycle rule deletes days and hours before, on and inside the redelivery horizon.
    Outcome: past it all is green, because raw is the archive; inside it days are refused. Nothing changes at any time."""
    days = (BEFORE, DAY, NEXT, THIRD)
    keys = {day: [p.deliver(day, events_on(day, 5, prefix=f"h{hour}"), hour=hour) for hour in (8, 9)] for day in days}
    yield p.must_load(BEFORE, THIRD)
    before = _published(p)
    p.remove(*keys[BEFORE], keys[DAY][0], keys[NEXT][0], *keys[THIRD])
    p.now = datetime(2026, 3, 5, 12, tzinfo=UTC)
    run = yield p.load(BEFORE, THIRD)
    _assert_missing(p, run, NEXT, 1, keys[NEXT][0])
    _assert_missing(p, run, THIRD, 2, keys[THIRD][0])
    assert run.good(RAW) == run.good(REFINED) == {BEFORE, DAY}
    assert [p.batch(day).verdict for day in (BEFORE, DAY)] == [BatchVerdict.ACCEPTED] * 2
    assert _published(p) == before
    p.now = LATER
    released = yield p.must_load(THIRD)
    # The day beside it lies in the load's reach and is released with it.
    assert released.good(RAW) == released.good(REFINED) == {NEXT, THIRD}
    assert _published(p) == before


def a_rewrite_under_way_is_refused_and_heals_when_it_is_finished(p: Story) -> Steps:
    """Outcome: refused while hours are missing; then exactly the final objects count."""
    old = [
        p.deliver(DAY, events_on(DAY, 5, prefix=f"h{hour}-{shard}"), hour=hour, shard=shard)
        for hour, shard in ((1, 1), (1, 2), (2, 1), (3, 1), (3, 2))
    ]
    yield p.must_load(DAY)
    before = _published(p)
    p.remove(*old)
    final = {p.deliver(DAY, [*events_on(DAY, 5, prefix="h3-1"), *events_on(DAY, 2, prefix="new")], hour=3): 7}
    half = yield p.load(DAY)
    _assert_missing(p, half, DAY, 3, old[0])
    assert half.good(RAW) == half.good(REFINED) == set()
    assert _published(p) == before
    for shard in (7, 8, 9):
        final[p.deliver(DAY, events_on(DAY, 4, prefix=f"h1-{shard}"), hour=1, shard=shard)] = 4
    final[p.deliver(DAY, events_on(DAY, 6, prefix="h2-1"), hour=2)] = 6
    whole = yield p.must_load(DAY)
    assert not whole.failed_checks()
    for table in (RAW, REFINED):
        keys = [row["_object_key"] for row in p.rows(table)]
        assert {key: keys.count(key) for key in keys} == final


def a_half_copied_landing_takes_no_rows_and_a_rewritten_hour_is_accepted(p: Story) -> Steps:
    """Scenario: landing is half copied with new times and etags; an hour becomes one new object; a shard is given up.
    Outcome: the half is refused once without a change; the rewritten hour is accepted; the loss needs an acceptance."""
    p.change(change_min_rows=10)
    days, hours = (DAY, NEXT, THIRD), (7, 8, 9)

    def deliver(day: date, hour: int, shard: int) -> str:
        return p.deliver(day, events_on(day, 5, prefix=f"{hour}-{shard}"), hour=hour, shard=shard)

    gone = {day: [deliver(day, hour, 1) for hour in hours] for day in days}
    second = [deliver(day, hour, 2) for day in days for hour in hours]
    yield p.must_load(DAY, THIRD)
    before, whole = _published(p), p.landing
    p.landing = whole.parent / "copy"
    shutil.copytree(whole / p.project, p.landing / p.project, copy_function=shutil.copyfile)
    p.remove(*(key for keys in gone.values() for key in keys))
    p.change(landing_url=str(p.landing))
    half = yield p.load(DAY, THIRD)
    for day, keys in gone.items():
        _assert_missing(p, half, day, 3, keys[0])
    assert (yield p.load(DAY, THIRD)).success, "it stands refused, and fails one load"
    assert _published(p) == before

    for key in (key for keys in gone.values() for key in keys):
        shutil.copyfile(whole / key, p.landing / key)
    back = yield p.must_load(DAY, THIRD)
    assert not back.failed_checks()
    assert _published(p) == before

    p.deliver(DAY, [*events_on(DAY, 5, prefix="7-1"), *events_on(DAY, 5, prefix="7-2")], hour=7, shard=7)
    p.remove(gone[DAY][0], second[0])
    yield p.must_load(DAY, THIRD)
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (30, 30)
    assert p.digests()[REFINED] == before[0][REFINED]

    deliver(NEXT, 7, 3)
    yield p.must_load(DAY, THIRD)
    before = _published(p)
    p.remove(gone[NEXT][0])
    lost = yield p.load(DAY, THIRD)
    reason = f"rows vanished from landing: 5 of 35 (14.3%), first {gone[NEXT][0]}"
    assert f"{NEXT} {RAW} {p.project} refused: {reason}" in lost.failure()
    assert _published(p) == before
    accept = {f"{RAW}:{NEXT}": "a test of the vendor", f"{REFINED}:{NEXT}": "why"}
    yield p.must_load(DAY, THIRD, accept=accept)
    assert p.count(RAW, NEXT) == 30
    assert p.batch(NEXT).reason == "1 withdrawn: a test of the vendor"
    last = p.publications(RAW)[-1]
    assert (last.key.event_date, last.accepted_reason) == (NEXT, "a test of the vendor")


def a_batch_that_is_gone_stands_refused_beside_other_days_until_a_person_accepts_it(p: Story) -> Steps:
    """Scenario: a whole batch is gone while the next day arrives; the same again; an operator accepts the loss.
    Outcome: the next day is published, the refusal fails the first load only; accepted, its rows leave raw and refined."""
    reason = "a test of the vendor, deleted on purpose"
    p.deliver(BEFORE, events_on(BEFORE, 10))
    gone = [p.deliver(DAY, events_on(DAY, 10), hour=3), p.deliver(DAY, events_on(BEFORE, 3, prefix="late"), hour=4)]
    yield p.must_load(BEFORE, DAY)
    digests = p.digests()
    p.remove(*gone)
    p.deliver(NEXT, events_on(NEXT, 10))
    first = yield p.load(DAY, NEXT)
    _assert_missing(p, first, DAY, 2, gone[0])
    assert str(NEXT) not in first.failure()
    assert first.good(RAW) == first.good(REFINED) == {NEXT}
    for table, slices in digests.items():
        assert p.digests()[table] == slices | {NEXT: p.digests()[table][NEXT]}
    before = _published(p)
    second = yield p.must_load(DAY, NEXT)
    assert (RAW, "delivery_reconciles", DAY) in second.failed_checks()
    assert second.good(REFINED) == {NEXT}
    assert _published(p) == before
    known = len(p.publications(RAW))
    accepted = yield p.must_load(DAY, NEXT, accept={f"{RAW}:{DAY}": reason})
    assert not accepted.failed_checks()
    for table in (RAW, REFINED):
        assert [p.count(table, day) for day in (BEFORE, DAY, NEXT)] == [10, 0, 10]
    assert (p.batch(DAY).verdict, p.batch(DAY).reason) == (BatchVerdict.ACCEPTED, f"2 withdrawn: {reason}")
    changes = p.publications(RAW)[known:]
    assert {(one.key.event_date, one.accepted_reason) for one in changes} == {(BEFORE, reason), (DAY, reason)}


def an_accepted_loss_stays_accepted(p: Story) -> Steps:
    """Scenario: an operator accepts a lost day in raw, then its shrink in refined; it is loaded again.
    Outcome: refined stands until accepted, then both are empty for the day; later loads are quiet."""
    gone = p.deliver(DAY, events_on(DAY, 150))
    yield p.must_load(DAY)
    p.remove(gone)
    raw_only = yield p.load(DAY, accept={f"{RAW}:{DAY}": "why"})
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (0, 150)
    assert "final slice shrinks" in raw_only.failure()
    yield p.must_load(DAY, accept={f"{REFINED}:{DAY}": "why"})
    assert p.count(REFINED, DAY) == 0
    before = _published(p)
    again = yield p.must_load(DAY)
    assert not again.failed_checks()
    assert p.batch(DAY).verdict is BatchVerdict.ACCEPTED
    assert _published(p) == before


def a_reason_is_on_record_where_it_was_given(p: Story) -> Steps:
    """Outcome: each publication carries the reason of its own day, an ordinary one none."""
    p.deliver(BEFORE, events_on(BEFORE, 10))
    gone = [p.deliver(day, events_on(day, 10)) for day in (DAY, NEXT)]
    p.deliver(THIRD, events_on(THIRD, 1))
    yield p.must_load(BEFORE, THIRD)
    known = len(p.publications(RAW))
    p.remove(*gone)
    p.deliver(BEFORE, events_on(BEFORE, 12))
    yield p.must_load(BEFORE, NEXT, accept={f"{RAW}:{DAY}": "one", f"{RAW}:{NEXT}": "two"})
    changes = p.publications(RAW)[known:]
    assert {one.key.event_date: one.accepted_reason for one in changes} == {BEFORE: None, DAY: "one", NEXT: "two"}


def a_loss_in_reach_of_a_load_is_told_by_that_load(p: Story) -> Steps:
    """Scenario: a batch of the day before is gone. Outcome: this load names it and fails, because no later one will."""
    gone = p.deliver(DAY, events_on(DAY, 10))
    p.deliver(NEXT, events_on(NEXT, 10))
    yield p.must_load(DAY, NEXT)
    before = _published(p)
    p.remove(gone)
    run = yield p.load(NEXT)
    assert _published(p) == before
    assert run.good(REFINED) == {NEXT}
    _assert_missing(p, run, DAY, 1, gone)


def a_recovered_day_stays_good_when_the_recovery_expires(p: Story) -> Steps:
    """Outcome: past the horizon both sources are green, because raw is the archive."""
    p.now = LATER
    key = p.deliver(DAY, events_on(DAY, 10), source=Source.BACKFILL)
    yield p.must_load(DAY, source=Source.BACKFILL)
    p.remove(key)
    yield p.must_load(DAY, source=Source.BACKFILL)
    yield p.must_load(DAY)
    assert p.count(REFINED, DAY) == 10


def test_deliveries_that_vanish(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()), only=RAW_AND_REFINED)


@contextmanager
def an_s3(*, refuses: str, listing: str | None = None) -> Iterator[S3Resource]:
    """A server that answers 403 with this code, except for the listing, where given."""

    def answer(path: str) -> tuple[int, str]:
        if listing is not None and "list-type=2" in path:
            return 200, listing
        return 403, f"<Error><Code>{refuses}</Code><Message>not you</Message></Error>"

    with a_server_that_answers(answer) as url:
        yield S3Resource(endpoint_url=url, max_attempts=2)


ACCESS_CURE = "Check TIDEMARK_LANDING_URL, region, endpoint and credentials, and the rights to list and read"


def test_a_landing_that_cannot_be_listed_is_not_an_empty_one(pipeline: Any) -> None:
    """Scenario: credentials expire or lack rights; landing's folder goes and comes back.
    Outcome: each run names place, reason and cure, and judges and changes nothing; then all is as before."""
    p = pipeline(only=RAW_AND_REFINED)
    p.deliver(DAY, events_on(DAY, 10))
    p.must_run(DAY)
    before, right = _published(p), p.settings.landing_url
    batch = p.ledger.batches([PROJECT], DAY, DAY)

    def assert_refused(message: str) -> None:
        run = p.run(DAY)
        assert not run.success
        assert run.failure() == message
        assert run.materialized(RAW) == run.materialized(REFINED) == set()
        assert run.failed_checks() == set()
        assert p.ledger.batches([PROJECT], DAY, DAY) == batch

    p.change(landing_url="s3://exports/amplitude")
    for code in ("AccessDenied", "ExpiredToken"):
        with an_s3(refuses=code) as s3:
            p.resources["landing"] = LandingStore.from_settings(p.settings, s3)
            assert_refused(f"s3://exports/amplitude: landing refused: {code}, not you. {ACCESS_CURE}")
    assert _published(p) == before

    p.change(landing_url=right)
    p.resources.clear()
    away = p.landing.rename(p.landing.with_name("unmounted"))
    assert_refused(f"{right}: is not a folder. Correct TIDEMARK_LANDING_URL or create it")
    assert _published(p) == before
    away.rename(p.landing)
    p.must_run(DAY)
    assert _published(p) == before


def test_an_object_that_may_be_listed_and_not_read_is_named(pipeline: Any) -> None:
    """Outcome: the run fails with one sentence that names the object, the reason and the cure."""
    p = pipeline(landing_url="s3://exports", only=RAW_AND_REFINED)
    key = f"{PROJECT}/{PROJECT}_{DAY}_10#1.json.gz"
    rest = "<Size>100</Size><LastModified>2026-02-02T00:00:00Z</LastModified><ETag>&quot;e&quot;</ETag>"
    listing = f"<ListBucketResult><Contents><Key>{key}</Key>{rest}</Contents></ListBucketResult>"
    with an_s3(refuses="AccessDenied", listing=listing) as s3:
        p.resources["landing"] = LandingStore.from_settings(p.settings, s3)
        run = p.run(DAY)
    assert p.count(RAW) == 0
    reason = "landing refused: AccessDenied, not you, and no other object can be read"
    hint = "Check TIDEMARK_LANDING_URL and credentials, and the rights to read what is listed"
    assert run.failure() == f"{key}: {reason}. {hint}"
