"""Input states, rejections, causes and heads are values in code with stable stored forms."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain import records
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from resources.ledger.changes import Changes
from resources.ledger.schema import PUBLICATIONS, SLICES, head_of
from resources.ledger.store import Ledger

TABLE, RAW, BACKFILL = "refined/events", "raw/regular_events", "raw/backfill_events"
DAY, NEXT = date(2026, 2, 2), date(2026, 2, 3)
KEY = Slice(DAY, "10001")
_THREE, _ONE = Digest(3, 10, 11, version=2), Digest(1, -1, 2, version=2)
STATES: dict[str, tuple[dict[str, str] | None, records.InputState | None]] = {
    "unknown": (None, None),
    "of a raw slice": ({}, records.InputState()),
    "never compared with other days": (
        {f"{RAW}:2026-02-02": "h2:3:a:b"}, records.InputState({records.InputDay(RAW, DAY): _THREE})),
    "compared": (
        {f"{BACKFILL}:2026-02-03": f"h2:1:{'f' * 32}:2", f"{RAW}:2026-02-02": "h2:3:a:b", "rivals": "h2:2:1:1:tied"},
        records.InputState({records.InputDay(RAW, DAY): _THREE, records.InputDay(BACKFILL, NEXT): _ONE}, "h2:2:1:1:tied"),
    ),
    "by the first row hash": ({f"{RAW}:2026-02-02": "3:a:b", "rivals": "0:0:0"},
                              records.InputState({records.InputDay(RAW, DAY): Digest(3, 10, 11, version=1)}, "0:0:0")),
    "of a snapshot": ({"delivered": "dimensions/item/2026-02-02.csv v1 9"},
                      records.InputState(delivered="dimensions/item/2026-02-02.csv v1 9")),
    "of an aggregate": ({f"{TABLE}:2026-02-02": "h2:3:a:b"}, records.InputState({records.InputDay(TABLE, DAY): _THREE})),
}  # fmt: skip
"""Stored form -> value."""
REJECTIONS: dict[str, tuple[dict[str, str] | None, records.Rejection | None]] = {
    "none": (None, None),
    "refused": (
        {"code": "2-ab [] {}", f"{RAW}:2026-02-02": "h2:3:a:b", "rivals": "0:0:0"},
        records.Rejection(records.InputState({records.InputDay(RAW, DAY): _THREE}, "0:0:0"), "2-ab [] {}"),
    ),
    "of nothing, before bounds were on record": ({}, records.Rejection(records.InputState())),
    "waits for other days": (
        {"code": "2-ab", f"{RAW}:2026-02-02": "h2:3:a:b", "waits for": "2026-02-01,2026-02-03"},
        records.Rejection(records.InputState({records.InputDay(RAW, DAY): _THREE}), "2-ab", (date(2026, 2, 1), NEXT)),
    ),
}
CAUSES = {
    "first build": (CauseKind.FIRST_BUILD, False),
    "first build, code": (CauseKind.FIRST_BUILD, True),
    "code": (CauseKind.CODE, True),
    "changed raw/backfill_events, raw/regular_events": (CauseKind.INPUTS, False),
    "changed refined/events, code": (CauseKind.INPUTS, True),
    "changed aggregates/promo_codes": (CauseKind.INPUTS, False),
    "changed rows of its events on other days": (CauseKind.CROSS_DAY, False),
    "delivery": (CauseKind.DELIVERY, False),
    "the same rows, in other objects or lines": (CauseKind.SAME_ROWS, False),
    "exclusion": (CauseKind.EXCLUSION, False),
    "rollback": (CauseKind.ROLLBACK, False),
    "unrecorded run 0a1b": (CauseKind.UNRECORDED_RUN, False),
    "unrecorded run None": (CauseKind.UNRECORDED_RUN, False),
    "foreign": (CauseKind.FOREIGN, False),
    "": (CauseKind.UNCHANGED, False),
    "what no version says": (CauseKind.OTHER, False),
}


def _stored(ledger: Ledger, table: sa.Table, name: str) -> Any:
    with ledger.engine.connect() as connection:
        (text,) = connection.exec_driver_sql(f"SELECT {name} FROM {table.name}").one()
    return text


def _with(ledger: Ledger, name: str, stored: Any) -> records.SliceRecord:
    ledger.record(Changes(slices=[records.SliceRecord(TABLE, KEY, Verdict.REFUSED)]), "run")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {SLICES.name} SET {name} = ?", (json.dumps(stored),))
    return ledger.slices(TABLE, None)[KEY]


@pytest.mark.parametrize("name", STATES)
def test_an_input_state_keeps_its_stored_form(ledger: Ledger, name: str) -> None:
    stored, state = STATES[name]
    record = _with(ledger, "input_state", stored)
    assert record.input_state == state
    publication = records.PublicationRecord(TABLE, KEY, 2, 1, EMPTY, EMPTY, Cause.of(CauseKind.DELIVERY), "run", state)
    ledger.record(Changes(slices=[record], publications=[publication]), "next")
    assert [found.input_state for found in ledger.publications()] == [state]
    assert [_stored(ledger, table, "input_state") for table in (SLICES, PUBLICATIONS)] == [json.dumps(stored)] * 2


@pytest.mark.parametrize("name", REJECTIONS)
def test_a_rejection_keeps_its_stored_form(ledger: Ledger, name: str) -> None:
    stored, rejection = REJECTIONS[name]
    record = _with(ledger, "refused_state", stored)
    assert record.rejection == rejection
    ledger.record(Changes(slices=[record]), "next")
    assert _stored(ledger, SLICES, "refused_state") == json.dumps(stored)


@pytest.mark.parametrize("stored", [{"raw": "8:c:d"}, {f"{RAW}:2026-02-02": "eight"}, {f"{RAW}:yesterday": "8:c:d"}])
def test_a_state_that_names_no_days_and_digests_is_unknown(ledger: Ledger, stored: dict[str, str]) -> None:
    _with(ledger, "input_state", stored)
    record = _with(ledger, "refused_state", stored)
    assert (record.input_state, record.rejection, record.knows_inputs) == (None, None, False)


@pytest.mark.parametrize("text", CAUSES)
def test_a_cause_keeps_its_text(ledger: Ledger, text: str) -> None:
    kind, has_new_code = CAUSES[text]
    cause = Cause.parse(text)
    assert (cause.kind, cause.text, cause.has_new_code) == (kind, text, has_new_code)
    ledger.record(
        Changes(publications=[records.PublicationRecord(TABLE, KEY, 2, 1, EMPTY, EMPTY, cause, "run")]), "run"
    )
    assert [found.cause for found in ledger.publications()] == [cause]


def test_a_cause_is_what_its_text_says() -> None:
    made = [
        *(Cause.of(kind) for kind in CauseKind if kind not in (CauseKind.INPUTS, CauseKind.UNRECORDED_RUN)),
        Cause.of(CauseKind.INPUTS, RAW, has_new_code=True), Cause.of(CauseKind.INPUTS, f"{BACKFILL}, {RAW}"),
        Cause.of(CauseKind.UNRECORDED_RUN, "0a1b"),
    ]  # fmt: skip
    assert [Cause.parse(cause.text) for cause in made] == made
    assert {cause.kind for cause in made if cause.is_found} == {CauseKind.FOREIGN, CauseKind.UNRECORDED_RUN}


def test_a_doubted_head_is_stored_as_the_negative() -> None:
    assert [head_of(number) for number in (7, -7)] == [records.Head(7), records.Head(7, is_trusted=False)]


def test_a_publication_keeps_what_it_was_built_from(ledger: Ledger) -> None:
    """Outcome: snapshots and settings come back, ids as exact text, for the requested projects alone."""
    plain = records.PublicationRecord(TABLE, KEY, 2, 1, EMPTY, EMPTY, Cause.of(CauseKind.DELIVERY), "run")
    pins, told = {RAW: 6012345678901234567}, {"b": ["x", "y"], "a": 1}
    built = replace(plain, snapshot_id=3, parent_id=2, pins=pins, settings=told)
    other = replace(built, key=Slice(KEY.event_date, "10002"))
    ledger.record(Changes(publications=[built]), "run")
    assert _stored(ledger, PUBLICATIONS, "pins") == f'{{"{RAW}": "6012345678901234567"}}'
    ledger.record(Changes(publications=[plain, other]), "run")
    found = ledger.publications(TABLE, [KEY.project_id], [KEY.event_date])
    assert [(one.pins, one.settings) for one in found] == [(built.pins, built.settings), (None, None)]
    assert ledger.publications(TABLE, [KEY.project_id], []) == []


def test_the_first_day_of_a_table_stays_its_first_when_a_person_rolls_it_back(ledger: Ledger) -> None:
    """Outcome: after rollback, hold and release the first day stays the first; a day that never held rows is none."""
    digest, cause = _THREE, Cause.of(CauseKind.DELIVERY)
    empty = records.SliceRecord(RAW, KEY, Verdict.WAITING)
    later = records.SliceRecord(TABLE, Slice(NEXT, "10001"), Verdict.PUBLISHED, digest=digest)
    ledger.record(Changes(slices=[empty, later]), "run")
    assert (ledger.first_day(RAW), ledger.first_day(TABLE)) == (None, NEXT)
    held = records.SliceRecord(TABLE, KEY, Verdict.HELD)
    ledger.record(Changes(slices=[held]), "rollback")
    assert ledger.first_day(TABLE) == DAY, "held, whatever it holds"
    ledger.record(Changes(slices=[replace(held, verdict=Verdict.WAITING)]), "release")
    assert ledger.first_day(TABLE) == NEXT
    published = [records.PublicationRecord(TABLE, KEY, 1, 0, EMPTY, digest, cause, "run")]
    published.append(
        records.PublicationRecord(TABLE, KEY, 2, 1, digest, EMPTY, Cause.of(CauseKind.ROLLBACK), "rollback")
    )
    ledger.record(Changes(publications=published), "run")
    assert ledger.first_day(TABLE) == DAY


def test_the_same_bytes_keep_the_moment_of_their_delivery(ledger: Ledger) -> None:
    """Outcome: only other bytes are a later delivery, not another etag."""
    batch = BatchKey(Source.REGULAR, "10001", DAY)
    first = records.DeliveryRecord(batch, "key", "e1", 9, "bytes", 1, 1, 0, 0, None, True)

    def recorded(record: records.DeliveryRecord) -> records.DeliveryRecord:
        ledger.record(Changes(deliveries=[record]), "run")
        return ledger.deliveries(Source.REGULAR, ["10001"], DAY, DAY)["key"]

    known = recorded(first)
    again = recorded(replace(known, etag="e2"))
    other = recorded(replace(first, etag="e3", sha256="others"))
    assert (again.etag, again.recorded_at) == ("e2", known.recorded_at)
    assert known.recorded_at < other.recorded_at < records.THIS_LOAD
