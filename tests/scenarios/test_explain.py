"""`explain`: a row's origin, the reason why another one lost, and its publications."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.errors import SettingsError, UsageError
from pipeline_assets.domain.identity import RankPart, RowFate
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.explain import Event, Explanation, explain, place
from pipeline_assets.inspection.status import day_statuses
from pipeline_assets.tables.events import REFINED_EVENTS
from tests.support.builders import LATER, PROJECT, RAW_AND_REFINED, an_event, events_on
from tests.support.shell import OfPipeline
from tests.support.world import Steps, Story, stories_in, tell

pytestmark = pytest.mark.slow
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)


def _explain(p: Story, identifier: str, **scope: Any) -> Explanation:
    return explain(p.runtime, identifier, now=p.now, **scope)


def _only(explanation: Explanation) -> Event:
    (event,) = explanation.events
    return event


def _at(day: date, time: str) -> str:
    return f"{day} {time}.000000"


def duplicates_name_the_row_that_beats_them(p: Story) -> Steps:
    """Scenario: an event is exported twice and sent twice. Outcome: each loser names its better and the deciding rank."""
    event = an_event(insert_id="i-1", uuid="u-1")
    again = event | {"processed_time": _at(DAY, "12:00:00")}
    resent = event | {"uuid": "u-2", "server_upload_time": _at(DAY, "10:00:07")}
    first = p.deliver(DAY, [*events_on(DAY, 3), event], hour=10)
    second = p.deliver(DAY, [again, event], hour=11)
    third = p.deliver(DAY, [resent], hour=12)
    yield p.must_load(DAY)

    before = (p.publications(), p.digests())
    found = _explain(p, "i-1")
    assert (p.publications(), p.digests()) == before
    one = _only(found)
    assert one.project_id == p.project
    assert one.agrees
    assert not found.is_cut
    told = {
        place(d.row): (d.outcome, d.defeat and place(d.defeat.by), d.defeat and d.defeat.part) for d in one.deliveries
    }
    assert told == {
        f"{third} line 1": (RowFate.WINNER, None, None),
        f"{second} line 1": (RowFate.SEND_DUPLICATE, f"{third} line 1", RankPart.RECEIVED_AT),
        f"{second} line 2": (RowFate.DELIVERY_DUPLICATE, f"{second} line 1", RankPart.PROCESSED_AT),
        f"{first} line 4": (RowFate.DELIVERY_DUPLICATE, f"{second} line 1", RankPart.PROCESSED_AT),
    }
    assert one.deliveries[0].outcome is RowFate.WINNER
    reasons = [d.reason for d in one.deliveries]
    assert reasons[1].startswith(f"send duplicate: sent again as uuid u-2, {third} line 1; that one has the later")
    assert "2026-02-02 10:00:07.000000 against 2026-02-02 10:00:05.000000" in reasons[1]
    assert all(d.etag and d.arrival_date == DAY for d in one.deliveries)
    (publication,) = one.publications
    assert publication.visible == f"yes, as {third} line 1"
    assert publication.record.cause.kind is CauseKind.FIRST_BUILD
    assert one.standings[0].reason is None

    for uuid in ("u-1", "u-2"):
        assert _only(_explain(p, uuid)) == one
    with pytest.raises(SettingsError):
        _explain(p, "i-1", projects=["7"])
    with pytest.raises(UsageError):
        _explain(p, " ")


def a_tie_is_decided_by_source_and_of_equal_rows_the_one_shown_stays(p: Story) -> Steps:
    """Scenario: a backfill delivers a row twice as it was, and one of other content with equal times.
    Outcome: the published row stays, source precedence decides; without its object the least of the others wins."""
    event, other = (an_event(insert_id=f"i-{n}", uuid=f"u-{n}") for n in (1, 2))
    regular = p.deliver(DAY, [other], hour=9), p.deliver(DAY, [event], hour=10)
    yield p.must_load(DAY)
    recovered = p.deliver(DAY, [event, event, other | {"city": "Köln"}], hour=11, source=Source.BACKFILL)
    yield p.must_load(DAY, source=Source.BACKFILL)

    def told(name: str) -> list[Any]:
        return [(place(d.row), d.outcome, d.defeat and d.defeat.part) for d in _only(_explain(p, name)).deliveries]

    assert told("i-1") == [
        (f"{regular[1]} line 1", RowFate.WINNER, None),
        (f"{recovered} line 2", RowFate.DELIVERY_DUPLICATE, RankPart.EQUAL),
        (f"{recovered} line 1", RowFate.DELIVERY_DUPLICATE, RankPart.EQUAL),
    ]
    assert "identical" in _only(_explain(p, "i-1")).deliveries[1].reason
    assert told("i-2") == [
        (f"{recovered} line 3", RowFate.WINNER, None),
        (f"{regular[0]} line 1", RowFate.DELIVERY_DUPLICATE, RankPart.SOURCE),
    ]
    assert "source" in _only(_explain(p, "i-2")).deliveries[1].reason

    yield p.must_load(DAY, exclude={regular[1]: "ruled out"})
    assert [row[:2] for row in told("i-1")] == [
        (f"{recovered} line 1", RowFate.WINNER),
        (f"{recovered} line 2", RowFate.DELIVERY_DUPLICATE),
    ]
    one = _only(_explain(p, "i-1"))
    assert one.agrees
    # The day was published again for the other event, not for the withdrawn delivery.
    assert [publication.visible for publication in one.publications] == [f"yes, as {regular[1]} line 1"] * 2


def a_time_that_could_not_be_read_is_told_where_it_decides(p: Story) -> Steps:
    """Scenario: ties with an unreadable and with an absent processed_time. Outcome: only the first is reported."""
    broken = "2026:02:02 12:00:00.000000"
    events = [an_event(insert_id=name, uuid=f"u-{name}") for name in ("unread", "absent")]
    corrected = [event | {"uuid": f"v-{event['uuid']}", "city": "Köln"} for event in events]
    p.deliver(DAY, [events[0] | {"processed_time": broken}, events[1] | {"processed_time": None}], hour=10)
    p.deliver(DAY, corrected, hour=11)
    yield p.must_load(DAY)

    one, other = (_only(_explain(p, name)) for name in ("unread", "absent"))
    assert [(d.outcome, d.row.unread) for d in one.deliveries] == [
        (RowFate.WINNER, None),
        (RowFate.SEND_DUPLICATE, broken),
    ]
    assert one.deliveries[1].reason.endswith(f"against none); processed_time could not be read: {broken}")
    assert "could not be read" not in other.deliveries[1].reason
    told = [
        reason for status in day_statuses(p.ledger, [p.project], [DAY], [Source.REGULAR]) for reason in status.reasons
    ]
    assert told == [
        f"{p.project}: 1 values of processed_time could not be read and are null; their text is kept in _extra",
        f"{p.project}: 1 rows lost to unequal ones by a time that could not be read: tidemark explain",
    ]


def a_correction_that_moves_the_day_is_seen_in_both_publications(p: Story) -> Steps:
    """Scenario: an event moves to the next day; its id recurs a week later. Outcome: the far row is its own event."""
    far = DAY + timedelta(days=7)
    event = an_event(insert_id="i-1", uuid="u-1")
    old = p.deliver(DAY, [event, *events_on(DAY, 2)])
    yield p.must_load(DAY)
    moved = event | {"uuid": "u-2", "event_time": _at(NEXT, "00:00:01"), "server_upload_time": _at(NEXT, "08:00:00")}
    new = p.deliver(NEXT, [moved], hour=8)
    p.deliver(
        far, [event | {"uuid": "u-3", "event_time": _at(far, "10:00:00"), "server_upload_time": _at(far, "10:00:01")}]
    )
    yield p.must_load(NEXT)
    yield p.must_load(far)

    near, later = _explain(p, "i-1").events
    assert [(place(d.row), d.outcome) for d in near.deliveries] == [
        (f"{new} line 1", RowFate.WINNER),
        (f"{old} line 1", RowFate.SUPERSEDED_BY_OTHER_DAY),
    ]
    assert near.deliveries[1].reason.startswith(
        f"superseded by another day: {NEXT}, {new} line 1; that one has the later"
    )
    assert [(r.record.key.event_date, r.visible) for r in near.publications] == [
        (DAY, f"yes, as {old} line 1"),
        (DAY, f"no, but on {NEXT} as {new} line 1"),
        (NEXT, f"yes, as {new} line 1"),
    ]
    assert near.agrees
    assert [(standing.key.event_date, len(standing.live)) for standing in near.standings] == [(DAY, 0), (NEXT, 1)]
    assert [d.row.row_id for d in later.deliveries] == ["u-3"]
    # A range of event days keeps the rows that decide about it.
    assert _only(_explain(p, "i-1", first=DAY, last=DAY)) == near
    assert _only(_explain(p, "i-1", first=far)) == later
    assert _only(_explain(p, "u-3")) == later

    name = p.runtime.lakehouse.identifier(REFINED_EVENTS).split(".", 1)
    gone = near.publications[0].record.snapshot_id
    p.runtime.spark.sql(f"CALL {name[0]}.system.expire_snapshots(table => '{name[1]}', snapshot_ids => array({gone}))")
    expired = _explain(p, "i-1").events[0]
    assert expired.publications[0].visible == "unknown: the snapshot is expired"
    assert expired.publications[1:] == near.publications[1:]


def a_redelivery_that_moves_the_day_is_seen_though_raw_forgot_the_old_row(p: Story) -> Steps:
    """Scenario: a redelivery moves the event to the next day. Outcome: the old publication still shows it."""
    event = an_event(insert_id="i-1", uuid="u-1")
    key = p.deliver(DAY, [event, *events_on(DAY, 2)])
    yield p.must_load(DAY)
    p.deliver(DAY, [event | {"event_time": _at(NEXT, "00:00:01")}, *events_on(DAY, 2)])
    p.deliver(NEXT, events_on(NEXT, 2))
    yield p.must_load(DAY, NEXT)

    one = _only(_explain(p, "u-1"))
    assert [(place(d.row), d.row.event_date) for d in one.deliveries] == [(f"{key} line 1", NEXT)]
    assert [(r.record.key.event_date, r.visible) for r in one.publications] == [
        (DAY, f"yes, as {key} line 1"),
        (NEXT, f"yes, as {key} line 1"),
    ]


def a_refused_day_says_why_it_does_not_show_the_present_winner(p: Story) -> Steps:
    """Scenario: a backfill grows a final day beyond bounds. Outcome: the old row is live; the refusal is the reason."""
    events = events_on(DAY, 120)
    p.deliver(DAY, events)
    yield p.must_load(DAY)
    corrected = events[0] | {"processed_time": _at(DAY, "23:00:00"), "event_properties": {"color": "red"}}
    recovered = p.deliver(DAY, [corrected, *events_on(DAY, 60, prefix="new")], source=Source.BACKFILL)
    assert not (yield p.load(DAY, source=Source.BACKFILL)).success

    one = _only(_explain(p, events[0]["uuid"]))
    assert place(one.winners[0]) == f"{recovered} line 1"
    assert not one.agrees
    assert "does not show it yet" in one.verdict
    (standing,) = one.standings
    assert standing.live[0].source is Source.REGULAR
    assert standing.reason is not None
    assert standing.reason.startswith("is refused: change_is_explained")
    assert standing.hint == standing.record.hint
    assert standing.hint

    # An event of refused content is in raw and in no publication.
    waiting = _only(_explain(p, f"new-{DAY}-1"))
    assert not waiting.agrees
    assert [r.visible for r in waiting.publications] == ["no"]


def refused_lines_are_found_by_the_bytes_that_were_kept(p: Story) -> Steps:
    """Outcome: a refused line is named with its reason; an unknown id is found nowhere."""
    bad = json.dumps({"$insert_id": "i-bad", "event_time": "no time", "uuid": "u-bad"}).encode()
    key = p.deliver(DAY, [*events_on(DAY, 3), bad])
    p.deliver(NEXT, events_on(NEXT, 3), truncated=True)
    yield p.load(DAY, NEXT)

    found = _explain(p, "i-bad")
    assert found.is_found
    assert not found.events
    (line,) = found.quarantined
    assert (line.object_key, line.line_number, line.is_batch_accepted) == (key, 4, True)
    assert line.reason

    unknown = _explain(p, "i-unknown")
    assert not unknown.is_found
    assert "raw/quarantine" in unknown.searched
    assert [str(batch.key) for batch in unknown.not_in_raw] == [f"regular/{p.project}/{NEXT}"]


def test_rows_are_explained(pipeline: Any, subtests: Any) -> None:
    tell(pipeline, subtests, stories_in(globals()), now=LATER, only=RAW_AND_REFINED)


def test_the_command_draws_it_prints_json_and_exits_by_what_it_found(pipeline: Any) -> None:
    """Outcome: exit 0 for an event, 1 for an unknown id."""
    p = pipeline(only=RAW_AND_REFINED)
    shell = OfPipeline(p)
    empty = shell("explain", "i-1")
    assert empty.returncode == 1
    assert "nothing is loaded yet" in empty.stderr
    event = an_event(insert_id="i-1", uuid="u-1")
    p.deliver(DAY, [event, event | {"uuid": "u-2", "server_upload_time": _at(DAY, "10:00:07")}])
    p.must_load(DAY)

    drawn = shell.must("explain", "i-1").stdout
    assert "send duplicate: sent again as uuid u-2" in " ".join(drawn.split())
    (found,) = json.loads(shell.must("explain", "u-1", "--json", "--from", str(DAY)).stdout)["events"]
    assert found["key"] == {"app": int(PROJECT), "device_id": "d1", "insert_id": "i-1"}
    assert [delivery["outcome"] for delivery in found["deliveries"]] == ["winner", "send_duplicate"]
    assert found["deliveries"][1]["decided_by"] == "server_upload_time"

    unknown = shell("explain", "i-2")
    assert unknown.returncode == 1
    assert "found nowhere" in unknown.stdout
    assert "refined/events" in unknown.stdout
