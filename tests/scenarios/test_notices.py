"""Readers of published numbers are notified once of changed final days and of refusals, despite crashes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.inspection.changes import changes_since
from pipeline_assets.orchestration.events import CHANGED, REFRESH
from resources.failpoints import Failpoint
from tests.support.builders import PROJECT, an_event, events_on
from tests.support.points import die, once
from tests.support.webhook import SECRET, Webhook, a_webhook

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
LATER_DAY = DAY + timedelta(days=2)
EVENTS, COUNTS, USERS = "refined/events", "aggregates/event_counts", "aggregates/active_users"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setenv("TIDEMARK_NOTIFY_SECRET", SECRET)
    with a_webhook() as webhook:
        yield webhook


def _tick(p: Any) -> str:
    definitions = p.definitions()
    with dg.build_sensor_context(instance=p.instance, definitions=definitions) as context:
        return str(definitions.resolve_sensor_def("notices").evaluate_tick(context).skip_message)


def _of(notices: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return sorted((one["kind"], one["table"], one["day"]) for one in notices)


def test_receivers_are_told_of_changed_and_refused_final_days(pipeline: Any, webhook: Webhook) -> None:
    """Scenario: changes, refusal and rollback of a final day, while the webhook fails and a run dies before it sends.
    Outcome: each change and the refusal's end arrive once, in order, with measures, cause, run and deliveries."""
    p = pipeline(notify_urls=(webhook.url,))
    began = datetime.now(UTC)
    p.deliver(DAY, events_on(DAY, 120))
    p.must_run(DAY)
    assert webhook.requests == 0, "a first build changes nothing that anybody read"

    late = an_event(
        event_time=f"{DAY} 09:00:00.000000", server_upload_time=f"{LATER_DAY} 15:00:00.000000", amplitude_id=999
    )
    key = p.deliver(LATER_DAY, [*events_on(LATER_DAY, 5), late], hour=15)
    webhook.answer_next(500)
    run = p.must_run(LATER_DAY)
    (body,) = webhook.taken
    assert body["run"] == run.run_id
    assert _of(body["notices"]) == [("change", table, str(DAY)) for table in (USERS, COUNTS, EVENTS)]
    of_table = {one["table"]: one for one in body["notices"]}
    assert of_table[EVENTS]["measures"] == {"rows": {"before": 120, "after": 121}}
    assert of_table[COUNTS]["measures"]["events"] == {"before": 120, "after": 121}
    assert of_table[EVENTS]["cause"] == "changed raw/regular_events"
    for one in of_table.values():
        assert (one["run"], one["project"], one["deliveries"]) == (run.run_id, PROJECT, [key])
    assert f"{EVENTS} {DAY}/{PROJECT} changed: rows 120 → 121 (changed raw/regular_events)" in body["text"]
    assert "rows 120 → 121" in run.metadata(EVENTS, DAY)[CHANGED]
    assert all(f"{table} {DAY}" in run.metadata(EVENTS, DAY)[REFRESH] for table in (EVENTS, COUNTS, USERS))
    assert CHANGED not in run.metadata(EVENTS, LATER_DAY)

    p.deliver(DAY, events_on(DAY, 60))
    with once(Failpoint.BEFORE_NOTICES, die):
        assert not p.run(DAY).success
    (pending,) = p.ledger.outbox.recorded_since(began)[3:]
    assert len(webhook.taken) == 1
    assert p.run(DAY).success, "the same refusal fails no further run"
    (refusal,) = webhook.taken[1]["notices"]
    assert refusal["id"] == pending.id
    assert _of([refusal]) == [("refusal", EVENTS, str(DAY))]
    assert "rows 120 -> 61" in refusal["reason"]
    assert "accept the change with a reason" in refusal["fix"]

    reason = "a test device"
    accepted = {f"{table}:{DAY}/{PROJECT}": reason for table in (EVENTS, COUNTS, USERS, "aggregates/daily_revenue")}
    webhook.answer_next(404)
    p.must_run(DAY, accept=accepted)
    assert len(webhook.taken) == 2
    with p.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE tidemark_receivers SET failed_at = '2026-01-01T00:00:00+00:00'")
    assert "took 5 notices" in _tick(p)
    assert _tick(p) == "everybody was told of everything"
    told = {(one["kind"], one["table"]): one for one in webhook.taken[2]["notices"]}
    assert told["change", EVENTS]["measures"] == {"rows": {"before": 121, "after": 61}}
    assert told["change", EVENTS]["accepted_reason"] == reason
    assert told["change", "aggregates/daily_revenue"]["measures"]["revenue"] == {"before": 30.0, "after": 15.0}
    end = told["refusal_end", EVENTS]
    assert (end["refusal"], end["verdict"], reason in end["accepted_reason"]) == (refusal["id"], "published", True)

    number = next(one.number for one in p.ledger.publications(EVENTS) if one.digest_after.rows == 121)
    back_to = {"from": str(DAY), "to": str(DAY), "back_to": str(number), "reason": "it was right", "tables": [COUNTS]}
    assert p.run_job("rollback", "roll_back", back_to).success
    (back,) = webhook.taken[3]["notices"]
    assert back["measures"]["events"] == {"before": 61, "after": 121}
    assert (back["cause"], back["accepted_reason"], back["deliveries"]) == ("rollback", "it was right", [])

    ids = [one["id"] for one in webhook.notices]
    assert len(ids) == len(set(ids)) == 10
    listed = changes_since(p.ledger, began, EVENTS)
    assert {one.id for one in listed.changes} == {one["id"] for one in webhook.notices if one["kind"] == "change"}
    assert [one.refused.id if one.refused else None for one in listed.refusals] == [refusal["id"]]
    assert listed.refresh is not None
    assert (EVENTS, 61) in {(one.table, one.rows_now) for one in listed.refresh if one.key.event_date == DAY}
