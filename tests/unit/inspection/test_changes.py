"""The ledger alone gives a period's changes, also before notices were kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.records import InputState, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.inspection.changes import changes_since
from pipeline_assets.tables.registry import downstream_of
from resources.ledger.changes import Changes
from resources.ledger.schema import NOTICES
from resources.ledger.store import Ledger
from tests.support.shell import commands
from tests.support.webhook import a_webhook

RAW, EVENTS, REVENUE = "raw/regular_events", "refined/events", "aggregates/daily_revenue"
DAY = date(2026, 2, 2)
KEY, NEXT = Slice(DAY, "10001"), Slice(DAY + timedelta(days=1), "10001")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    return commands(TIDEMARK_LEDGER_URL=f"sqlite:///{tmp_path}/ledger.db", TIDEMARK_PROJECTS="10001")


def digest(rows: int) -> Digest:
    return Digest(rows, rows, rows) if rows else EMPTY


def publish(ledger: Ledger, table: str, key: Slice, rows: int, run_id: str, *, is_final: bool = True) -> None:
    read = ledger.slices(table, None).get(key, SliceRecord(table, key, Verdict.PUBLISHED))
    snapshot = len(ledger.publications()) + 1
    figures = {"rows": rows, "revenue": 1.5 * rows}
    made = {"digest": digest(rows), "file_hash": str(snapshot), "input_state": InputState(), "figures": figures}
    record = replace(read, verdict=Verdict.PUBLISHED, reason=None, is_final=is_final, **made)
    place, digests = (table, key, snapshot, snapshot - 1), (read.digest, digest(rows))
    publication = PublicationRecord(*place, *digests, Cause.of(CauseKind.DELIVERY), run_id, figures=figures)
    ledger.record(Changes(slices=[record], publications=[publication]), run_id)


def refuse(ledger: Ledger, reason: str) -> None:
    read = ledger.slices(EVENTS, None)[KEY]
    ledger.record(Changes(slices=[replace(read, verdict=Verdict.REFUSED, reason=reason)]), "run-refused")


def now() -> datetime:
    return datetime.now(UTC)


def test_changes_and_refusals_of_a_period(ledger: Ledger) -> None:
    publish(ledger, EVENTS, KEY, 10, "run-1")
    refuse(ledger, "grows")
    before = now()
    refuse(ledger, "grows more")
    publish(ledger, EVENTS, KEY, 11, "run-2")
    publish(ledger, REVENUE, KEY, 3, "run-2")
    after = now()
    publish(ledger, REVENUE, KEY, 4, "run-3")

    found = changes_since(ledger, before)
    of_rows = [(one.table, one.run_id, one.measures["rows"]["after"]) for one in found.changes]
    assert of_rows == [(EVENTS, "run-2", 11), (REVENUE, "run-3", 4)]
    (refusal,) = found.refusals
    assert None not in (refusal.refused, refusal.ended)
    assert (refusal.refused.reason, refusal.ended.verdict) == ("grows more", "published")
    assert found.refresh is None
    assert [one.run_id for one in changes_since(ledger, after).changes] == ["run-3"]
    assert changes_since(ledger, now()).changes == ()
    everything = changes_since(ledger, LONG_AGO).refusals
    assert [(one.notice.reason, one.ended is not None) for one in everything] == [("grows", True), ("grows more", True)]


def test_changes_whose_notices_are_gone_are_told_by_publications(ledger: Ledger) -> None:
    publish(ledger, REVENUE, KEY, 10, "run-1")
    publish(ledger, REVENUE, KEY, 12, "run-2")
    with_notices = changes_since(ledger, LONG_AGO).changes
    with ledger.engine.begin() as connection:
        connection.execute(NOTICES.delete())
    assert changes_since(ledger, LONG_AGO).changes == with_notices
    (change,) = with_notices
    assert (change.measures["revenue"]["before"], change.measures["revenue"]["after"]) == (15.0, 18.0)


def test_what_to_refresh_is_what_differs_in_a_table_and_below_it(ledger: Ledger) -> None:
    """A change that came back needs no refresh; a provisional one is read again."""
    publish(ledger, RAW, KEY, 5, "run-1", is_final=False)
    publish(ledger, EVENTS, KEY, 10, "run-1")
    publish(ledger, EVENTS, NEXT, 10, "run-1", is_final=False)
    publish(ledger, REVENUE, KEY, 3, "run-1")
    since = now()
    publish(ledger, RAW, KEY, 6, "run-2", is_final=False)
    publish(ledger, EVENTS, KEY, 11, "run-2")
    publish(ledger, EVENTS, KEY, 10, "run-3")
    publish(ledger, EVENTS, NEXT, 12, "run-2")
    publish(ledger, REVENUE, KEY, 4, "run-2")

    def refresh(table: str) -> list[tuple[str, Slice, int, bool]]:
        found = changes_since(ledger, since, table)
        assert {one.table for one in found.changes} <= {table, *(one.key for one in downstream_of(table))}
        assert found.refresh is not None
        return [(one.table, one.key, one.rows_now, one.was_final) for one in found.refresh]

    below = [(EVENTS, NEXT, 12, False), (REVENUE, KEY, 4, True)]
    assert (refresh(EVENTS), refresh(RAW), refresh(REVENUE)) == (below, [(RAW, KEY, 6, False), *below], below[1:])


def test_the_shell_lists_changes_and_tells_receivers(ledger: Ledger, shell: Callable[..., Any]) -> None:
    publish(ledger, EVENTS, KEY, 10, "run-1")
    with a_webhook() as webhook:
        webhook.secret = None
        there = {"TIDEMARK_NOTIFY_URLS": webhook.url}
        assert "everybody was told" in shell("notify", **there).output
        refuse(ledger, "grows by half")
        publish(ledger, EVENTS, KEY, 1_100, "run-2")
        webhook.answer_next(404)
        failed = shell("notify", **there)
        assert (failed.exit_code, "did not take" in failed.output, "of-this-test" in failed.output) == (1, True, False)
        assert shell("notify", **there).exit_code == 0
        assert [one["kind"] for one in webhook.notices] == ["refusal", "change", "refusal_end"]
    plain = shell("changes", "--since", "2026-01-01", "--table", EVENTS)
    assert plain.exit_code == 0, plain.output
    for words in ("rows 10 → 1,100", "grows by half", "published", "1 days to refresh", "was final"):
        assert words in plain.output
    told = json.loads(shell("changes", "--since", "2026-01-01T10:00", "--json").output)
    assert told.keys() == {"since", "changes", "refusals"}
    assert told["changes"][0]["measures"] == {"rows": {"before": 10, "after": 1100}}
    assert told["refusals"][0]["ended"]["verdict"] == "published"
    assert "refresh" in json.loads(shell("changes", "--since", "2026-01-01", "--table", RAW, "--json").output)


@pytest.mark.parametrize(("words", "said"), [
    ("changes --since soon", "--since soon: is not a time"),
    ("changes --since 2026-01-01 --table events", "events: is not a table"),
    ("notify", "TIDEMARK_NOTIFY_URLS: names nobody to tell"),
])  # fmt: skip
def test_bad_usage_is_one_sentence(shell: Callable[..., Any], words: str, said: str) -> None:
    done = shell(*words.split())
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_downstream_is_transitive_and_in_order() -> None:
    names = ("daily_revenue", "event_counts", "active_users", "active_item_events")
    below = [f"aggregates/{name}" for name in names]
    assert [table.key for table in downstream_of(EVENTS)] == below
    assert [table.key for table in downstream_of(RAW)] == [EVENTS, *below]
    assert downstream_of(REVENUE) == ()
    with pytest.raises(KeyError):
        downstream_of("nothing")
