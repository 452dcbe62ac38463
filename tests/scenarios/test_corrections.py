"""Corrections of published events: what is sent again, moved, sent too late, tied; through both sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from pipeline_assets.domain.slices import Slice, Source
from tests.support.builders import PROJECT, an_event, events_on
from tests.support.reference import raw_rows, refined_rows, require_known, winners

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY, NEXT, FAR = date(2026, 2, 2), date(2026, 2, 3), date(2026, 1, 30)
SOON = datetime(2026, 2, 20, tzinfo=UTC)
REFINED, REVENUE = "refined/events", "aggregates/daily_revenue"
SENT = {
    "event_time": f"{DAY} 10:00:00.000000",
    "server_upload_time": f"{DAY} 10:30:00.000000",
    "processed_time": f"{DAY} 10:31:00.000000",
}
LATER = {"server_upload_time": f"{NEXT} 12:00:00.000000", "processed_time": f"{NEXT} 12:01:00.000000"}
Found = dict[date, float]
"""Event day -> amount of the one event that is left there."""


@dataclass(frozen=True)
class Correction:
    """A purchase of 10 is published; then this comes."""

    what: str
    changes: dict[str, str]
    """Of its times; its amount is 25."""
    left: dict[Source, Found | None]
    """Source that brings the correction -> what is left; None = one of the two, whichever the content decides."""


def _same(found: Found | None) -> dict[Source, Found | None]:
    return dict.fromkeys(Source, found)


CORRECTIONS = (
    Correction("the amount is sent again", LATER, _same({DAY: 25})),
    Correction("the time moves over midnight", {**LATER, "event_time": f"{NEXT} 00:10:00.000000"}, _same({NEXT: 25})),
    Correction(
        "older than what is published",
        {"server_upload_time": f"{DAY} 10:29:00.000000"},
        _same({DAY: 10}),
    ),
    Correction(
        "the same key beyond the window",
        {**LATER, "event_time": f"{FAR} 10:00:00.000000"},
        _same({DAY: 10, FAR: 25}),
    ),
    Correction("uploaded at once, processed later", {"processed_time": f"{DAY} 10:32:00.000000"}, _same({DAY: 25})),
    Correction("uploaded at once, processed earlier", {"processed_time": f"{DAY} 10:30:30.000000"}, _same({DAY: 10})),
    Correction("a tie on both times", {}, {Source.BACKFILL: {DAY: 25}, Source.REGULAR: None}),
)


def _purchase(number: int, amount: float, uuid: str, **times: str) -> dict[str, Any]:
    bag = {"$revenue": amount, "currency": "EUR"}
    return an_event(**{**SENT, **times}, insert_id=f"p{number}", uuid=f"{uuid}{number}", event_properties=bag)


def _left(p: Any) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for row in p.rows(REFINED):
        if str(row["insert_id"]).startswith("p"):
            amount = json.loads(row["event_properties"])["$revenue"]
            found.setdefault(row["insert_id"], {})[row["event_date"]] = amount
    return found


@pytest.mark.parametrize("source", list(Source), ids=lambda source: source.value)
def test_corrections_fold_in(pipeline: Any, source: Source) -> None:
    """Scenario: closed days are published; a delivery of either source brings corrections of all kinds. Outcome: the later one
    wins wherever it came from, one that is older or loses its tie changes nothing, an event that moves leaves its old day in
    the commit that brings it to the new one, a key far away is another event; revenue follows; a second load does nothing."""
    p = pipeline()
    p.now = SOON
    p.deliver(DAY, [*events_on(DAY, 300), *(_purchase(n, 10, "first") for n in range(len(CORRECTIONS)))])
    p.deliver(NEXT, events_on(NEXT, 50))
    assert p.load(DAY, NEXT).success
    known = len(p.ledger.publications())

    sent = [_purchase(n, 25, "again", **one.changes) for n, one in enumerate(CORRECTIONS)]
    p.deliver(NEXT, sent, hour=13, source=source)
    run = p.load(NEXT, source=source)

    assert run.success, run.failure()
    left = _left(p)
    page = Table("correction", "source", "left", title=f"corrections through {source.value}")
    for number, one in enumerate(CORRECTIONS):
        found = left[f"p{number}"]
        page.add_row(one.what, source.value, ", ".join(f"{day}: {amount}" for day, amount in sorted(found.items())))
    Console(width=120).print(page)
    for number, one in enumerate(CORRECTIONS):
        expected = one.left[source]
        assert left[f"p{number}"] in ([{DAY: 10}, {DAY: 25}] if expected is None else [expected]), one.what
    assert refined_rows(p.lakehouse) == winners(raw_rows(p.lakehouse), p.settings)
    new = [
        record for record in p.ledger.publications(REFINED) if record.number > p.ledger.publications()[known - 1].number
    ]
    assert {record.key.event_date for record in new} == {DAY, NEXT, FAR}
    assert len({record.snapshot_id for record in new}) == 1
    for day in (DAY, NEXT, FAR):
        amounts = sum(found[day] for found in left.values() if day in found)
        others = {DAY: 30 * 2.5, NEXT: 5 * 2.5, FAR: 0.0}[day]
        (revenue,) = [row["revenue"] for row in p.rows(REVENUE) if row["event_date"] == day]
        assert float(revenue) == amounts + others
    require_known(p)
    history = p.history()
    assert p.load(NEXT, source=source).success
    assert p.history() == history


def test_an_older_correction_alone_publishes_nothing(pipeline: Any) -> None:
    """Scenario: all that comes for a published day is older than what it holds. Outcome: raw keeps it, with the reason why it
    lost; refined and what follows are not written again."""
    p = pipeline()
    p.now = SOON
    p.deliver(DAY, [*events_on(DAY, 20), _purchase(0, 10, "first")])
    assert p.load(DAY).success
    before, known = p.history(), p.ledger.publications(REFINED)

    p.deliver(DAY, [_purchase(0, 25, "older", server_upload_time=f"{DAY} 10:29:00.000000")], hour=13)
    run = p.load(DAY)

    assert run.success, run.failure()
    assert {table for table, count in p.history().items() if count != before[table]} == {"raw/regular_events"}
    assert p.ledger.publications(REFINED) == known
    record = p.ledger.slices(REFINED, [PROJECT], [DAY])[Slice(DAY, PROJECT)]
    assert record.figures["send_duplicate"] == 1
    assert _left(p) == {"p0": {DAY: 10}}
