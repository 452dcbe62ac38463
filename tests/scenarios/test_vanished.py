"""Deliveries that vanish from landing: the wrong bucket, lifecycle rules, unfinished rewrites, expired credentials.

Whatever the cause, nothing that is published is emptied by it; a person is told, and a later delivery heals.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.tables.registry import DERIVED
from resources.landing.store import LandingStore
from tests.support.builders import LATER, PROJECT, Outcome, events_on
from tests.support.s3 import a_server_that_answers

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
BEFORE, NEXT, THIRD = (DAY + timedelta(days=shift) for shift in (-1, 1, 2))
RAW, REFINED = "raw/regular_events", "refined/events"
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Past the deadline, inside the redelivery horizon."""


def _published(p: Any) -> Any:
    """All that readers see, and how often it changed."""
    rows = {table: sorted(map(repr, p.rows(table))) for table in (RAW, *(table.key for table in DERIVED))}
    return rows, p.digests(), p.history(), len(p.ledger.publications())


def _batch(p: Any, day: date) -> Any:
    return p.ledger.batches([PROJECT], day, day)[BatchKey(Source.REGULAR, PROJECT, day)]


def _told(run: Outcome, day: date) -> str:
    """What `delivery_reconciles` of a day says."""
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    found = [event.asset_check_evaluation_data for event in run.result.all_events if event.event_type is kind]
    texts = [e.description for e in found if (e.check_name, str(e.partition)) == ("delivery_reconciles", str(day))]
    return str(texts[0]) if texts else ""


def _assert_missing(p: Any, run: Outcome, day: date, count: int, first: str) -> None:
    """The day is refused for want of deliveries: the run fails, the check is red, the ledger names reason and cure."""
    reason = f"deliveries missing from landing: {count}, first {first}"
    assert f"{day} {RAW} {PROJECT} refused: {reason}" in run.failure()
    assert (RAW, "delivery_reconciles", str(day)) in run.failed_checks()
    batch = _batch(p, day)
    assert (batch.verdict, batch.reason) == (BatchVerdict.REFUSED, reason)
    assert _told(run, day) == f"{PROJECT}: {reason}. {batch.hint}"
    for hint in ("load again later", "TIDEMARK_LANDING_URL", "credentials", "lifecycle rules", "export the day again"):
        assert hint in batch.hint
    assert "accept_missing" in batch.hint
    assert f"tidemark recover --from {day} --to {day} --project {PROJECT} --refused --load" in batch.hint


def test_the_wrong_bucket_empties_nothing(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: landing points at an empty folder, and days loaded before are asked for again; then it points back.
    Outcome: both days are refused as missing; back again they are green at once, and nothing is published anew."""
    p = pipeline()
    p.now = SOON
    keys = {day: p.deliver(day, events_on(day, 10)) for day in (DAY, NEXT)}
    assert p.run(DAY, NEXT).success
    before, right = _published(p), p.settings.landing_url
    (tmp_path / "empty").mkdir()
    p.change(landing_url=str(tmp_path / "empty"))

    wrong = p.run(DAY, NEXT)

    assert not wrong.success
    for day, key in keys.items():
        _assert_missing(p, wrong, day, 1, key)
        assert p.verdict(REFINED, day) == "waiting"
    assert wrong.materialized(RAW) == wrong.materialized(REFINED) == set()
    assert _published(p) == before

    p.change(landing_url=right)
    back = p.run(DAY, NEXT)
    assert back.success, back.failure()
    assert back.materialized(RAW) == back.materialized(REFINED) == {str(DAY), str(NEXT)}
    assert not back.failed_checks()
    assert _published(p) == before


def test_history_may_expire_behind_the_horizon_and_not_before_it(pipeline: Any) -> None:
    """Scenario: a lifecycle rule deletes whole days and single hours; two days lie past the redelivery horizon, one on
    its last day and one inside. Outcome: past it all is green, because raw is the archive; inside it the days are
    refused, and a whole day is released when the horizon has passed it. Nothing changes at any time."""
    p = pipeline()
    p.now = SOON
    days = (BEFORE, DAY, NEXT, THIRD)
    keys = {day: [p.deliver(day, events_on(day, 5, prefix=f"h{hour}"), hour=hour) for hour in (8, 9)] for day in days}
    assert p.run(BEFORE, THIRD).success
    before = _published(p)
    p.remove(*keys[BEFORE], keys[DAY][0], keys[NEXT][0], *keys[THIRD])
    p.now = datetime(2026, 3, 5, 12, tzinfo=UTC)
    assert p.now.date() - timedelta(days=p.settings.redelivery_horizon_days) == NEXT

    run = p.run(BEFORE, THIRD)

    assert not run.success
    _assert_missing(p, run, NEXT, 1, keys[NEXT][0])
    _assert_missing(p, run, THIRD, 2, keys[THIRD][0])
    assert run.materialized(RAW) == run.materialized(REFINED) == {str(BEFORE), str(DAY)}
    assert [_batch(p, day).verdict for day in (BEFORE, DAY)] == [BatchVerdict.ACCEPTED] * 2
    assert _published(p) == before

    p.now = LATER
    released = p.run(THIRD)
    assert released.success, released.failure()
    # The day beside it lies in reach of the run and is released with it.
    assert released.materialized(RAW) == released.materialized(REFINED) == {str(NEXT), str(THIRD)}
    assert _published(p) == before


def test_a_rewrite_under_way_is_refused_and_heals_when_it_is_finished(pipeline: Any) -> None:
    """Scenario: the vendor exports a day again: whole hours are gone, one is already there with fewer objects; later
    all are there in other numbers of objects. Outcome: refused while hours lack; then exactly the final objects count,
    as in a pipeline that never saw anything else."""
    p = pipeline()
    p.now = SOON
    old = [
        p.deliver(DAY, events_on(DAY, 5, prefix=f"h{hour}-{shard}"), hour=hour, shard=shard)
        for hour, shard in ((1, 1), (1, 2), (2, 1), (3, 1), (3, 2))
    ]
    assert p.run(DAY).success
    before = _published(p)
    p.remove(*old)
    p.deliver(DAY, [*events_on(DAY, 5, prefix="h3-1"), *events_on(DAY, 2, prefix="new")], hour=3)

    half = p.run(DAY)

    assert not half.success
    _assert_missing(p, half, DAY, 3, old[0])
    assert half.materialized(RAW) == half.materialized(REFINED) == set()
    assert _published(p) == before

    for shard in (7, 8, 9):
        p.deliver(DAY, events_on(DAY, 4, prefix=f"h1-{shard}"), hour=1, shard=shard)
    p.deliver(DAY, events_on(DAY, 6, prefix="h2-1"), hour=2)
    whole = p.run(DAY)
    assert whole.success, whole.failure()
    assert not whole.failed_checks()
    assert p.count(RAW) == p.count(REFINED) == 7 + 12 + 6
    assert old[4] not in {row["_object_key"] for row in p.rows(RAW)}

    fresh = pipeline()
    fresh.now = SOON
    shutil.copytree(p.landing, fresh.landing, dirs_exist_ok=True)
    assert fresh.load(DAY).success
    assert p.digests() == fresh.digests()


def test_a_half_copied_landing_takes_no_rows_and_a_rewritten_hour_is_accepted(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: landing is copied to a new place, where all times and etags are others; shard 1 of each hour is not there yet.
    Then an hour is rewritten with one new object, which a later load finds alone; at last a person lets a shard go that came
    before another one of its hour. Outcome: the half is refused as missing, once, and nothing changes; the rewritten hour is
    accepted; the loss is beyond the bound until the person accepts it, on record."""
    p = pipeline(change_min_rows=10)
    p.now = SOON
    days, hours = (DAY, NEXT, THIRD), (7, 8, 9)

    def deliver(day: date, hour: int, shard: int, events: int = 5) -> str:
        return str(p.deliver(day, events_on(day, events, prefix=f"{hour}-{shard}"), hour=hour, shard=shard))

    gone = {day: [deliver(day, hour, 1) for hour in hours] for day in days}
    second = [deliver(day, hour, 2) for day in days for hour in hours]
    assert p.run(DAY, THIRD).success
    before, whole = _published(p), p.landing

    p.landing = tmp_path / "copy"
    shutil.copytree(whole, p.landing, copy_function=shutil.copyfile)
    p.remove(*(key for keys in gone.values() for key in keys))
    p.change(landing_url=str(p.landing))
    half = p.run(DAY, THIRD)
    assert _published(p) == before
    for day, keys in gone.items():
        _assert_missing(p, half, day, 3, keys[0])
    assert p.run(DAY, THIRD).success, "it stands refused, and fails one run"
    assert _published(p) == before

    for key in (key for keys in gone.values() for key in keys):
        shutil.copyfile(whole / key, p.landing / key)
    back = p.run(DAY, THIRD)
    assert back.success, back.failure()
    assert not back.failed_checks()
    assert _published(p) == before

    p.deliver(DAY, [*events_on(DAY, 5, prefix="7-1"), *events_on(DAY, 5, prefix="7-2")], hour=7, shard=7)
    p.remove(gone[DAY][0], second[0])
    rewritten = p.run(DAY)
    assert rewritten.success, rewritten.failure()
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (30, 30)
    assert p.digests()[REFINED] == before[1][REFINED]

    deliver(NEXT, 7, 3)
    assert p.run(NEXT).success
    before = _published(p)
    p.remove(gone[NEXT][0])
    lost = p.run(NEXT)
    reason = f"rows vanished from landing: 5 of 35 (14.3%), first {gone[NEXT][0]}"
    assert f"{NEXT} {RAW} {PROJECT} refused: {reason}" in lost.failure()
    assert _published(p) == before
    accepted = p.run(
        NEXT, accept={f"{RAW}:{NEXT}": "a test of the vendor"} | {f"{t.key}:{NEXT}": "why" for t in DERIVED}
    )
    assert accepted.success, accepted.failure()
    assert p.count(RAW, NEXT) == 30
    assert _batch(p, NEXT).reason == "1 withdrawn: a test of the vendor"
    last = [one for one in p.ledger.publications() if one.table == RAW][-1]
    assert (last.key.event_date, last.accepted_reason) == (NEXT, "a test of the vendor")


def test_a_batch_that_is_gone_stands_refused_beside_other_days_until_a_person_accepts_it(pipeline: Any) -> None:
    """Scenario: a whole batch is gone while the next day arrives; the same again; then a person lets it go.
    Outcome: the next day is published, the refusal fails the first run only and stays red; accepted, its rows leave raw
    and refined on every day they lay on, and the reason is on record."""
    p = pipeline()
    p.now = SOON
    reason = "a test of the vendor, deleted on purpose"
    p.deliver(BEFORE, events_on(BEFORE, 10))
    gone = [
        p.deliver(DAY, events_on(DAY, 10), hour=3),
        p.deliver(DAY, events_on(BEFORE, 3, prefix="late"), hour=4),
    ]
    assert p.run(BEFORE, DAY).success
    digests, history = p.digests(), p.history()
    p.remove(*gone)
    p.deliver(NEXT, events_on(NEXT, 10))

    first = p.run(DAY, NEXT)

    assert not first.success
    _assert_missing(p, first, DAY, 2, gone[0])
    assert str(NEXT) not in first.failure()
    assert first.materialized(RAW) == first.materialized(REFINED) == {str(NEXT)}
    assert {
        table: history[table] + 1 for table in (RAW, *(table.key for table in DERIVED))
    }.items() <= p.history().items()
    for table, slices in digests.items():
        assert slices.items() <= p.digests()[table].items()

    before = _published(p)
    second = p.run(DAY, NEXT)
    assert second.success, second.failure()
    assert (RAW, "delivery_reconciles", str(DAY)) in second.failed_checks()
    assert second.materialized(REFINED) == {str(NEXT)}
    assert _published(p) == before

    known = len(p.ledger.publications())
    accepted = p.run(DAY, NEXT, accept={f"{RAW}:{DAY}": reason})
    assert accepted.success, accepted.failure()
    assert not accepted.failed_checks()
    assert accepted.materialized(RAW) == accepted.materialized(REFINED) >= {str(DAY), str(NEXT)}
    for table in (RAW, REFINED):
        assert [p.count(table, day) for day in (BEFORE, DAY, NEXT)] == [10, 0, 10]
    assert (_batch(p, DAY).verdict, _batch(p, DAY).reason) == (BatchVerdict.ACCEPTED, f"2 withdrawn: {reason}")
    changes = [one for one in p.ledger.publications()[known:] if one.table == RAW]
    assert {(one.key.event_date, one.accepted_reason) for one in changes} == {(BEFORE, reason), (DAY, reason)}


def test_an_accepted_loss_stays_accepted(pipeline: Any) -> None:
    """Scenario: a final day beyond the bounds is gone; a person accepts that for raw, sees refined refused as a shrink,
    and accepts that too; then the day is loaded again. Outcome: refined stands until it is accepted, then all tables are
    empty for the day, and later runs are quiet."""
    p = pipeline()
    p.now = SOON
    p.deliver(BEFORE, events_on(BEFORE, 5))
    gone = p.deliver(DAY, events_on(DAY, 150))
    assert p.run(BEFORE, DAY).success
    p.remove(gone)

    raw_only = p.run(DAY, accept={f"{RAW}:{DAY}": "why"})
    assert (p.count(RAW, DAY), p.count(REFINED, DAY)) == (0, 150)
    assert "final slice shrinks" in raw_only.failure()

    rest = p.run(DAY, accept={f"{table.key}:{DAY}": "why" for table in DERIVED})
    assert rest.success, rest.failure()
    assert [p.count(table.key, DAY) for table in DERIVED] == [0] * len(DERIVED)
    before = _published(p)
    again = p.run(DAY)
    assert again.success, again.failure()
    assert not again.failed_checks()
    assert _batch(p, DAY).verdict is BatchVerdict.ACCEPTED
    assert _published(p) == before


def test_a_reason_is_on_record_where_it_was_given(pipeline: Any) -> None:
    """Scenario: two batches are gone and accepted for different reasons, by a run in which a third is delivered again.
    Outcome: each publication carries the reason of its own day, an ordinary one none."""
    p = pipeline()
    p.now = SOON
    p.deliver(BEFORE, events_on(BEFORE, 10))
    gone = [p.deliver(day, events_on(day, 10)) for day in (DAY, NEXT)]
    assert p.load(BEFORE, NEXT).success
    known = len(p.ledger.publications())
    p.remove(*gone)
    p.deliver(BEFORE, events_on(BEFORE, 12))

    assert p.load(BEFORE, NEXT, accept={f"{RAW}:{DAY}": "one", f"{RAW}:{NEXT}": "two"}).success

    changes = [one for one in p.ledger.publications()[known:] if one.table == RAW]
    assert {one.key.event_date: one.accepted_reason for one in changes} == {BEFORE: None, DAY: "one", NEXT: "two"}


def test_a_loss_in_reach_of_a_run_is_told_by_that_run(pipeline: Any) -> None:
    """Scenario: a day is loaded while a batch of the day before, in reach of the run, is gone. Outcome: this run, the
    first to see it, fails and names it, because no later one will; the requested day is published."""
    p = pipeline()
    p.now = SOON
    gone = p.deliver(DAY, events_on(DAY, 10))
    p.deliver(NEXT, events_on(NEXT, 10))
    assert p.run(DAY, NEXT).success
    before = _published(p)
    p.remove(gone)

    run = p.run(NEXT)

    assert _published(p) == before
    assert run.materialized(REFINED) == {str(NEXT)}
    assert _batch(p, DAY).verdict is BatchVerdict.REFUSED
    _assert_missing(p, run, DAY, 1, gone)


def test_a_recovered_day_stays_good_when_the_recovery_expires(pipeline: Any) -> None:
    """Scenario: a day came as a backfill export only; past the horizon its objects expire, and both sources are loaded
    again. Outcome: green for both, because raw is the archive."""
    p = pipeline()
    key = p.deliver(DAY, events_on(DAY, 10), source=Source.BACKFILL)
    assert p.load(DAY, source=Source.BACKFILL).success
    p.remove(key)
    assert p.load(DAY, source=Source.BACKFILL).success
    run = p.load(DAY)
    assert p.count(REFINED, DAY) == 10
    assert run.success, run.failure()


@contextmanager
def an_s3(*, refuses: str, listing: str | None = None) -> Iterator[S3Resource]:
    """A server that refuses every request with 403 and this code, but for the listing, where one is given."""

    def answer(path: str) -> tuple[int, str]:
        if listing is not None and "list-type=2" in path:
            return 200, listing
        return 403, f"<Error><Code>{refuses}</Code><Message>not you</Message></Error>"

    with a_server_that_answers(answer) as url:
        yield S3Resource(endpoint_url=url, max_attempts=2)


ACCESS_CURE = "Check TIDEMARK_LANDING_URL, region, endpoint and credentials, and the rights to list and read"


def test_a_landing_that_cannot_be_listed_is_not_an_empty_one(pipeline: Any) -> None:
    """Scenario: credentials have expired, or lack rights; later the folder that landing is in is gone, and comes back.
    Outcome: each run fails with one sentence that names the place, the reason and the cure; nothing is judged and nothing
    changes; then all is as before."""
    p = pipeline()
    p.deliver(DAY, events_on(DAY, 10))
    assert p.run(DAY).success
    before, batch, right = _published(p), _batch(p, DAY), p.settings.landing_url

    def assert_refused(message: str) -> None:
        run = p.run(DAY)
        assert not run.success
        assert run.failure() == message
        assert run.materialized(RAW) == run.materialized(REFINED) == set()
        assert run.failed_checks() == set()
        assert _batch(p, DAY) == batch

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
    back = p.run(DAY)
    assert back.success, back.failure()
    assert _published(p) == before


def test_an_object_that_may_be_listed_and_not_read_is_named(pipeline: Any) -> None:
    """Scenario: the credentials may list the bucket and not read from it. Outcome: the run fails with one sentence that
    names the object, the reason and the cure."""
    p = pipeline(landing_url="s3://exports")
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
