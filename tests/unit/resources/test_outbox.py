"""Recorded changes and refusals of final days reach every receiver once, despite failures."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import Result
from typer.testing import CliRunner

from pipeline_assets.cli.app import app
from pipeline_assets.domain import records
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.masking import receiver_id
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.health import read_health
from pipeline_assets.inspection.questions import receiver_troubles
from pipeline_assets.operations import notices
from pipeline_assets.operations.notices import Told, forget_notices, register_receivers, send_notices
from pipeline_assets.orchestration.health_page import page_of
from pipeline_assets.orchestration.runtime import telling_receivers
from resources.guarded_http import signature
from resources.ledger.changes import Changes
from resources.ledger.schema import NOTICES
from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting
from tests.support.webhook import HANG, SECRET, Webhook, a_webhook

REVENUE, EVENTS = "aggregates/daily_revenue", "refined/events"
DAY = date(2026, 2, 2)
KEY = Slice(DAY, "10001")
BATCH = BatchKey(Source.REGULAR, "10001", DAY)
BEFORE, AFTER = Digest(1, 1, 1), Digest(2, 2, 2)
LATER = datetime.now(UTC) + timedelta(days=40)
FINAL = records.SliceRecord(
    REVENUE, KEY, Verdict.PUBLISHED, is_final=True, digest=BEFORE, file_hash="old",
    input_state=records.InputState({records.InputDay("raw", DAY): BEFORE}),
    figures={"rows": 1, "revenue": 10.5, "purchases": 3, "control": 7},
)  # fmt: skip


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setenv("TIDEMARK_NOTIFY_SECRET", SECRET)
    monkeypatch.setattr("resources.guarded_http._FIRST_PAUSE_SECONDS", 0.01)
    with a_webhook() as webhook:
        yield webhook


def a_publication(snapshot_id: int = 11, **changes: Any) -> records.PublicationRecord:
    cause = Cause.of(CauseKind.INPUTS, EVENTS)
    return replace(records.PublicationRecord(REVENUE, KEY, snapshot_id, 10, BEFORE, AFTER, cause, "run-2"), **changes)


def publish(ledger: Ledger, run_id: str = "run-2", **changes: Any) -> Changes:
    read = ledger.slices(REVENUE, None).get(KEY, FINAL)
    record = replace(read, digest=AFTER, file_hash="new", figures={"rows": 2, "revenue": 12.0, "purchases": 3})
    made = Changes(slices=[record], publications=[a_publication(run_id=run_id, **changes)])
    ledger.record(made, run_id)
    return made


def told_of(ledger: Ledger) -> list[dict[str, Any]]:
    with ledger.engine.connect() as connection:
        return list(connection.execute(sa.select(NOTICES.c.body).order_by(NOTICES.c.number)).scalars())


def masked(url: str) -> str:
    """A receiver as logs name it."""
    return f"{url.partition('/services')[0]}/***"


def shell_of(ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line of this ledger and receiver."""
    names = {"CONFIG": "", "PROJECTS": "10001", "LEDGER_URL": ledger.url, "NOTIFY_URLS": webhook.url}
    for name, value in names.items():
        monkeypatch.setenv(f"TIDEMARK_{name}", value)
    return lambda *words: CliRunner().invoke(app, words)


def settings_of(ledger: Ledger, *urls: str) -> Settings:
    return Settings(ledger_url=ledger.url, notify_urls=urls)


def listening(ledger: Ledger, *urls: str) -> Settings:
    """Settings with receivers that were registered once a day was final."""
    settings = settings_of(ledger, *urls)
    ledger.record(Changes(slices=[FINAL]), "run-1")
    register_receivers(ledger, settings)
    return settings


def changed(ledger: Ledger, *urls: str) -> Settings:
    """Settings with receivers that are to hear of a change."""
    settings = listening(ledger, *urls)
    publish(ledger)
    return settings


def test_a_published_final_day_that_changes_makes_one_notice(any_ledger: Ledger) -> None:
    """Measures before and after, cause, run and deliveries; a repeated record adds nothing."""
    delivered = records.DeliveryRecord(BATCH, "10001/late.json.gz", "e", 1, "s", 1, 1, 0, 0, None, is_accepted=True)
    any_ledger.record(Changes(slices=[FINAL], publications=[a_publication(9, digest_before=EMPTY)]), "run-1")
    any_ledger.record(Changes(deliveries=[delivered], batch_days={BATCH: {DAY: records.BatchDay(AFTER)}}), "run-2")
    made = publish(any_ledger)
    any_ledger.record(made, "run-2")
    (notice,) = told_of(any_ledger)
    expected = {
        "kind": "change", "table": REVENUE, "day": "2026-02-02", "project": "10001", "run": "run-2", "snapshot_id": "11",
        "cause": "changed refined/events", "accepted_reason": None, "deliveries": ["10001/late.json.gz"],
        "deliveries_total": 1, "exclusions": [], "exclusions_total": 0,
        "measures": {
            "rows": {"before": 1, "after": 2}, "revenue": {"before": 10.5, "after": 12.0},
            "purchases": {"before": 3, "after": 3},
        },
    }  # fmt: skip
    assert {name: value for name, value in notice.items() if name not in ("id", "at")} == expected
    assert [one.id for one in any_ledger.outbox.of_run("run-2", REVENUE)] == [notice["id"]]
    published = any_ledger.outbox.published_since(datetime(2026, 1, 1, tzinfo=UTC))
    assert [(record.snapshot_id, was_final) for record, was_final in published] == [(9, False), (11, True)]


def test_an_exclusion_is_told_with_the_change_that_it_makes(ledger: Ledger) -> None:
    """Arrivals and exclusions before the last publication are not repeated."""
    days = {BATCH: {DAY: records.BatchDay(BEFORE)}}
    delivered = records.DeliveryRecord(BATCH, "10001/known.json.gz", "e", 1, "s", 1, 1, 0, 0, None, is_accepted=True)
    ledger.record(Changes(deliveries=[delivered], batch_days=days), "run-1")
    ledger.interventions.exclude([records.Exclusion(BATCH, "10001/before.json.gz", "e", "s", "why")], "run-1")
    ledger.record(Changes(slices=[FINAL], publications=[a_publication(9, digest_before=EMPTY)]), "run-1")
    ledger.interventions.exclude([records.Exclusion(BATCH, "10001/wrong.json.gz", "e", "t", "why")], "run-2")
    publish(ledger)
    (notice,) = told_of(ledger)
    assert (notice["deliveries"], notice["exclusions"]) == ([], ["10001/wrong.json.gz"])
    held = replace(ledger.slices(REVENUE, None)[KEY], verdict=Verdict.HELD, digest=BEFORE)
    rollback = {"cause": Cause.of(CauseKind.ROLLBACK), "accepted_reason": "it was right"}
    back = a_publication(21, digest_before=AFTER, digest_after=BEFORE, **rollback)
    ledger.interventions.exclude([records.Exclusion(BATCH, "10001/other.json.gz", "e", "u", "why")], "run-3")
    ledger.record(Changes(slices=[held], publications=[back]), "run-3")
    notice = told_of(ledger)[1]
    assert (notice["cause"], notice["accepted_reason"], notice["exclusions"]) == ("rollback", "it was right", [])


def test_a_provisional_day_and_one_that_keeps_its_content_are_not_told(ledger: Ledger) -> None:
    ledger.record(Changes(slices=[replace(FINAL, is_final=False)]), "run-1")
    publish(ledger)
    ledger.record(Changes(slices=[replace(ledger.slices(REVENUE, None)[KEY], is_final=True)]), "run-2")
    publish(ledger, snapshot_id=12, digest_before=AFTER)
    assert told_of(ledger) == []
    final = [was_final for _, was_final in ledger.outbox.published_since(datetime(2026, 1, 1, tzinfo=UTC))]
    assert final == [False, True]


def test_whoever_tells_of_a_commit_gives_it_the_same_id(tmp_path: Path) -> None:
    """The run that made it, or the one that finds it after that run died."""
    ids = []
    for run in ("run-2", "the next one"):
        with closing(Ledger(f"sqlite:///{tmp_path}/{run}.db")) as ledger:
            ledger.record(Changes(slices=[FINAL]), "run-1")
            publish(ledger, run)
            ids += [notice["id"] for notice in told_of(ledger)]
    assert ids == ids[:1] * 2


def test_a_notice_and_what_it_tells_of_are_one_transaction(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record(Changes(slices=[FINAL]), "run-1")
    with monkeypatch.context() as broken:
        broken.setattr(LedgerWriting, "_move_head", lambda *_, **__: 1 / 0)
        moved = [replace(ledger.slices(REVENUE, None)[KEY], digest=AFTER)]
        with pytest.raises(ZeroDivisionError):
            ledger.record(Changes(slices=moved, publications=[a_publication()], head=(REVENUE, 11, 10)), "x")
    assert told_of(ledger) == []
    assert ledger.publications() == []
    publish(ledger)
    assert len(told_of(ledger)) == 1


def refuse(ledger: Ledger, reason: str, run_id: str) -> None:
    read = ledger.slices(EVENTS, None).get(KEY, replace(FINAL, table=EVENTS))
    rejection = records.Rejection(records.InputState({records.InputDay("raw", DAY): AFTER}), "code")
    refused = replace(read, verdict=Verdict.REFUSED, reason=reason, hint="Correct it", rejection=rejection)
    ledger.record(Changes(slices=[refused]), run_id)


def stand(ledger: Ledger, verdict: Verdict, **changes: Any) -> None:
    read = ledger.slices(EVENTS, None)[KEY]
    ledger.record(Changes(slices=[replace(read, verdict=verdict, reason=None, hint=None, **changes)]), "run-9")


def test_a_refusal_is_told_once_and_its_end_once(any_ledger: Ledger) -> None:
    """Scenario: a day waits, is refused for several reasons, accepted, refused again. Outcome: one notice each."""
    any_ledger.record(Changes(slices=[replace(FINAL, table=EVENTS)]), "run-1")
    refuse(any_ledger, "shrinks by half", "run-2")
    stand(any_ledger, Verdict.WAITING)
    refuse(any_ledger, "shrinks by half", "run-3")
    refuse(any_ledger, "shrinks by a third", "run-4")
    accepted = Evaluation(Check.CHANGE_IS_EXPLAINED, True, "accepted: it is right")
    stand(any_ledger, Verdict.PUBLISHED, evaluations=(accepted,))
    stand(any_ledger, Verdict.UNCHANGED)
    refuse(any_ledger, "shrinks by half", "run-6")
    told = told_of(any_ledger)
    assert [(one["kind"], one.get("reason"), one["run"]) for one in told] == [
        ("refusal", "shrinks by half", "run-2"),
        ("refusal", "shrinks by a third", "run-4"),
        ("refusal_end", None, "run-9"),
        ("refusal", "shrinks by half", "run-6"),
    ]
    assert (told[0]["fix"], told[2]["refusal"], told[2]["verdict"]) == ("Correct it", told[1]["id"], "published")
    assert (told[2]["accepted_reason"], len({one["id"] for one in told})) == ("accepted: it is right", 4)


def test_refused_deliveries_are_told_by_their_arrival_day(ledger: Ledger) -> None:
    """Rows of the same day from another batch do not end it."""
    refused = records.BatchRecord(BATCH, BatchVerdict.REFUSED, "unreadable objects: 1", "Export it")
    ledger.record(Changes(batches=[refused]), "r1")
    ledger.record(Changes(slices=[replace(FINAL, table="raw/regular_events", is_final=False)]), "r2")
    ledger.record(Changes(batches=[records.BatchRecord(BATCH, BatchVerdict.MOVED)]), "r3")
    ledger.record(Changes(batches=[records.BatchRecord(BATCH, BatchVerdict.ACCEPTED)]), "r4")
    told = told_of(ledger)
    assert [(one["kind"], one["run"]) for one in told] == [("refusal", "r1"), ("refusal_end", "r4")]
    assert {(one["table"], one["day"]) for one in told} == {("raw/regular_events", "2026-02-02")}


def test_the_end_of_a_refusal_from_before_notices_is_told(ledger: Ledger) -> None:
    refuse(ledger, "shrinks", "run-1")
    with ledger.engine.begin() as connection:
        connection.execute(NOTICES.delete())
    refuse(ledger, "shrinks", "run-2")
    assert told_of(ledger) == []
    stand(ledger, Verdict.UNCHANGED)
    (end,) = told_of(ledger)
    assert (end["kind"], end["refusal"]) == ("refusal_end", None)


def test_each_receiver_gets_each_notice_once_batched_per_run_and_signed(any_ledger: Ledger, webhook: Webhook) -> None:
    with a_webhook() as other:
        settings = settings_of(any_ledger, webhook.url, other.url)
        any_ledger.record(Changes(slices=[FINAL]), "run-1")
        refuse(any_ledger, "from before anybody listened", "run-1")
        register_receivers(any_ledger, settings)
        stand(any_ledger, Verdict.UNCHANGED)
        publish(any_ledger)
        refuse(any_ledger, "shrinks", "run-2")
        for _ in range(2):
            told = send_notices(any_ledger, settings)
        assert told == []
        for one in (webhook, other):
            kinds = [(body["run"], [n["kind"] for n in body["notices"]]) for body in one.taken]
            assert kinds == [("run-9", ["refusal_end"]), ("run-2", ["change", "refusal"])]
            assert one.taken[1]["text"].startswith("Tidemark: published final days changed: 1, days refused: 1\n• ")
            assert "revenue 10.5 → 12" in one.taken[1]["text"]


def test_a_receiver_without_the_right_signature_takes_nothing(
    ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = changed(ledger, webhook.url)
    for secret in ("another", ""):
        monkeypatch.setenv("TIDEMARK_NOTIFY_SECRET", secret)
        (told,) = send_notices(ledger, settings)
        assert (told.left, told.reason) == (1, "it answered 401")
    assert webhook.taken == []


def test_a_receiver_that_is_down_for_a_day_loses_nothing_and_costs_nobody_else(
    ledger: Ledger, webhook: Webhook
) -> None:
    """Outcome: once back it gets all three changes in order, the other nothing twice; no log has its address's path."""
    with a_webhook() as away:
        url = away.url
    settings = listening(ledger, url, webhook.url)
    for number in range(3):
        publish(ledger, f"run-{number}", snapshot_id=20 + number)
        told = {one.place: one for one in send_notices(ledger, settings)}
    failed = told[masked(url)]
    assert (failed.left, failed.reason) == (3, "it cannot be reached (ConnectError)")
    assert "T0001" not in str(failed)
    assert len(webhook.notices) == 3

    assert ledger.outbox.receivers()[receiver_id(url)].failures == 3
    with a_webhook(int(url.split(":")[2].partition("/")[0])) as back:
        (told_now,) = send_notices(ledger, settings)
        assert (told_now.sent, told_now.left) == (3, 0)
        assert [one["run"] for one in back.notices] == ["run-0", "run-1", "run-2"]
    assert ledger.outbox.receivers()[receiver_id(url)].failures == 0
    assert len(webhook.notices) == 3


@pytest.mark.parametrize(("answers", "taken", "requests"), [
    ([(500, {})], True, 2), ([(429, {"Retry-After": "0"})], True, 2), ([(503, {}), (502, {})], True, 3),
    ([(500, {})] * 3, False, 3), ([(400, {})], False, 1), ([(429, {"Retry-After": "60"})], False, 1),
    ([(302, {"Location": "http://127.0.0.1:1/elsewhere"})], False, 1),
])  # fmt: skip
def test_answers_are_tried_again_where_that_can_help(
    ledger: Ledger, webhook: Webhook, answers: list[tuple[int, dict[str, str]]], taken: bool, requests: int
) -> None:
    settings = changed(ledger, webhook.url)
    webhook.answers.extend(answers)
    (told,) = send_notices(ledger, settings)
    assert (told.sent, told.left, webhook.requests) == (int(taken), int(not taken), requests)
    if answers[-1][1].get("Retry-After") == "60":
        (again,) = send_notices(ledger, settings)
        assert (again.left, webhook.requests) == (1, requests), "it asked for no request within a minute"


def test_a_receiver_that_hangs_is_left_alone_in_time(
    ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "ROUND_SECONDS", 2)
    # So that only the end of the round, not a single request, can be in time.
    monkeypatch.setattr("resources.guarded_http._ATTEMPT_SECONDS", 60)
    settings = changed(ledger, webhook.url)
    webhook.answer_next(HANG)
    begun = time.monotonic()
    (told,) = send_notices(ledger, settings)
    assert time.monotonic() - begun < 20
    assert told.left == 1
    assert told.reason in ("it did not answer in time", "it cannot be reached (ReadTimeout)")
    assert send_notices(ledger, settings) == [Told(masked(webhook.url), sent=1)]


def test_sent_and_not_marked_is_sent_again_under_the_same_id(
    ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the answer and the ledger."""
    settings = changed(ledger, webhook.url)
    with monkeypatch.context() as dying:
        dying.setattr("resources.ledger.outbox.Outbox.mark_sent", lambda *_: 1 / 0)
        send_notices(ledger, settings)
    receiver = ledger.outbox.receivers()[receiver_id(webhook.url)]
    assert (receiver.failures, receiver.error) == (1, "sending failed (ZeroDivisionError)")
    send_notices(ledger, settings)
    first, second = webhook.taken
    assert first == second


def test_a_sensor_leaves_a_failing_receiver_alone_for_a_while(ledger: Ledger, webhook: Webhook) -> None:
    settings = changed(ledger, webhook.url)
    webhook.answer_next(404, times=2)
    send_notices(ledger, settings)
    (told,) = send_notices(ledger, settings, is_due_only=True)
    assert (told.left, webhook.requests) == (1, 1)
    long_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    with ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE tidemark_receivers SET failed_at = :at"), {"at": long_ago})
    send_notices(ledger, settings, is_due_only=True)
    assert webhook.requests == 2


def test_many_notices_of_a_run_are_sent_in_parts_and_told_in_few_lines(
    ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_MOST_AT_ONCE", 25)
    settings = settings_of(ledger, webhook.url)
    days = [Slice(DAY + timedelta(days=number), "10001") for number in range(30)]
    ledger.record(Changes(slices=[replace(FINAL, key=key) for key in days]), "run-1")
    register_receivers(ledger, settings)
    ledger.record(Changes(publications=[a_publication(key=key) for key in days]), "run-2")
    send_notices(ledger, settings)
    assert [len(body["notices"]) for body in webhook.taken] == [25, 5]
    assert "• and 5 more" in webhook.taken[0]["text"]
    assert all(len(body["text"]) < 4_000 for body in webhook.taken)


def test_a_body_that_is_refused_for_good_holds_up_no_later_one_and_is_not_lost(
    any_ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: 400 five times to one run's body, then 404 once to the next. Outcome: the first is set aside with its
    command, the second goes next; maintenance keeps it; it is taken under its first id; a changed body counts anew."""
    settings = listening(any_ledger, webhook.url)
    place = masked(webhook.url)
    publish(any_ledger, "run-2", snapshot_id=21)
    webhook.answer_next(400, times=2)
    for _ in range(2):
        send_notices(any_ledger, settings)
    refuse(any_ledger, "the body of the run grows", "run-2")
    publish(any_ledger, "run-3", snapshot_id=22)
    for status in (400, 400, 500, 400, 400, 400, 404):
        webhook.answer_next(status)
    told = [str(*send_notices(any_ledger, settings)) for _ in range(6)]
    kept = f"{place} did not take 3 notices: it answered {{}}; kept, and sent by the next run"
    assert told[:5] == [kept.format(status) for status in (400, 400, 500, 400, 400)]
    assert told[5] == (
        f"{place} refuses 2 notices for good (it answered 400): set aside, sent by `tidemark notify --again` alone, "
        "then did not take 1 notice: it answered 404; kept, and sent by the next run"
    )
    trouble = receiver_troubles(any_ledger, settings)
    assert [one.command for one in trouble] == ["tidemark notify", "tidemark notify --again"]
    assert "waiting: 1; failed attempts: 9, the last" in str(trouble[0])
    assert "set aside: 2, since" in str(trouble[1])
    assert send_notices(any_ledger, settings) == [Told(place, sent=1)]
    assert [body["run"] for body in webhook.taken] == ["run-3"]
    assert [one.command for one in receiver_troubles(any_ledger, settings)] == ["tidemark notify --again"]
    assert forget_notices(any_ledger, settings, LATER, is_dry_run=False) == 1

    shell = shell_of(any_ledger, webhook, monkeypatch)
    webhook.answer_next(413)
    for words, code, said in (
        ((), 1, f"notices to {place}: set aside: 2"),
        (("--again",), 1, "refuses 2 notices for good (it answered 413)"),
        (("--again",), 0, "took 2 notices"),
        ((), 0, "everybody was told of everything"),
    ):
        done = shell("notify", *words)
        assert (done.exit_code, said in done.output) == (code, True), done.output
    assert [body["run"] for body in webhook.taken] == ["run-3", "run-2"]
    assert any_ledger.set_aside.all() == receiver_troubles(any_ledger, settings) == []


def test_who_is_not_told_is_named_where_people_look(
    ledger: Ledger, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Status and page name a failing receiver and unsigned notices; a run names the latter once."""
    monkeypatch.delenv("TIDEMARK_NOTIFY_SECRET")
    settings = settings_of(ledger, webhook.url).model_copy(update={"projects": ("10001",)})
    place = masked(webhook.url)
    ledger.record(Changes(slices=[FINAL]), "run-1")
    webhook.secret = None
    webhook.answer_next(503, times=3)
    log: list[str] = []
    runtime: Any = SimpleNamespace(ledger=ledger, settings=settings, log=log.append)
    with telling_receivers(runtime, is_dry_run=False):
        publish(ledger)
    unsigned = "they go unsigned, so that a receiver cannot tell them from a stranger's"
    assert [unsigned in said for said in log] == [False, True]
    assert log[1].startswith("notices to ")

    shell = shell_of(ledger, webhook, monkeypatch)
    done = shell("status", "--json")
    assert json.loads(done.stdout)
    for said in (done.stderr, shell("status").stdout):
        assert f"notices to {place}: waiting: 1; failed attempts: 1, the last " in said
        assert "it answered 503. Mend the receiver" in said
        assert unsigned in said

    report = read_health(ledger, settings, datetime.now(UTC))
    assert report.waiting == len(report.for_a_person) + 2
    for said in (f"<h4>notices to {place}</h4>", ">tidemark notify</code>", unsigned.replace("'", "&#x27;")):
        assert said in page_of(report)
    monkeypatch.setenv("TIDEMARK_NOTIFY_SECRET", SECRET)
    send_notices(ledger, settings)
    assert read_health(ledger, settings, datetime.now(UTC)).troubles == ()


def test_names_and_reasons_act_on_no_chat_and_addresses_reach_no_log(
    ledger: Ledger, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    settings = listening(ledger, webhook.url)
    refuse(ledger, "object <!channel> & \x1b[31m", "run-2")
    with caplog.at_level(logging.INFO):
        send_notices(ledger, settings)
    (body,) = webhook.taken
    assert "&lt;!channel&gt; &amp; \\x1b[31m" in body["text"]
    assert "of-this-test" not in caplog.text
    with ledger.engine.connect() as connection:
        assert "of-this-test" not in str(connection.execute(sa.text("SELECT * FROM tidemark_receivers")).all())


def test_old_notices_go_once_everybody_was_told_and_refusals_stay(any_ledger: Ledger, webhook: Webhook) -> None:
    """Numbers are not reused, so later notices are never missed."""
    settings = listening(any_ledger, webhook.url)
    refuse(any_ledger, "shrinks", "run-2")
    publish(any_ledger)
    assert forget_notices(any_ledger, settings, LATER, is_dry_run=False) == 0
    send_notices(any_ledger, settings)
    assert forget_notices(any_ledger, settings, datetime.now(UTC), is_dry_run=False) == 0
    assert forget_notices(any_ledger, settings, LATER, is_dry_run=True) == 1
    assert forget_notices(any_ledger, settings, LATER, is_dry_run=False) == 1
    assert [one["kind"] for one in told_of(any_ledger)] == ["refusal"]
    publish(any_ledger, snapshot_id=31)
    send_notices(any_ledger, settings)
    assert [one["kind"] for one in webhook.notices] == ["refusal", "change", "change"]


def test_a_receiver_that_nobody_names_any_more_is_forgotten(ledger: Ledger, webhook: Webhook) -> None:
    ledger.record(Changes(slices=[FINAL]), "run-1")
    register_receivers(ledger, settings_of(ledger, webhook.url, "https://old.example/hook"))
    publish(ledger)
    send_notices(ledger, settings_of(ledger, webhook.url))
    assert forget_notices(ledger, settings_of(ledger, webhook.url), LATER, is_dry_run=False) == 1
    assert {one.place for one in ledger.outbox.receivers().values()} == {masked(webhook.url)}


def test_a_body_is_what_the_documentation_shows(ledger: Ledger, webhook: Webhook) -> None:
    """Names of fields are a contract."""
    settings = changed(ledger, webhook.url)
    send_notices(ledger, settings)
    page = (PROJECT_ROOT / "docs" / "operations.md").read_text("utf-8")
    shown = json.loads(page.split("```json\n", 1)[1].split("```", 1)[0])
    (body,) = webhook.taken
    assert (shown.keys(), shown["notices"][0].keys()) == (body.keys(), body["notices"][0].keys())


def test_the_documented_check_of_a_signature_holds() -> None:
    """Scenario: the five documented lines see a good request, one of another body, and an old one."""
    page = (PROJECT_ROOT / "docs" / "operations.md").read_text("utf-8")
    lines = page.split("**Check the signature**", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    body, now = b'{"text": "x"}', int(time.time())
    for sent, at, is_good in ((body, now, True), (b"{}", now, False), (body, now - 600, False)):
        request = SimpleNamespace(headers={"Tidemark-Signature": signature(SECRET, at, body)}, body=sent)
        with nullcontext() if is_good else pytest.raises(AssertionError):
            exec(lines, {"SECRET": SECRET, "request": request})
