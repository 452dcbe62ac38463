"""A publish of several walks, and the slices that go with a lost one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.load.draft import Draft, _TableDraft, condensed
from pipeline_assets.tables.aggregates import DAILY_REVENUE
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

PROJECT, REFINED, REVENUE, RAW = "10001", REFINED_EVENTS.key, DAILY_REVENUE.key, "raw/regular_events"
DAY, NEXT, FAR = (Slice(date(2026, 2, day), PROJECT) for day in (2, 3, 20))
ONE, TWO = Digest(1, 1, 1), Digest(2, 2, 2)


def a_record(verdict: Verdict, **more: Any) -> SliceRecord:
    return SliceRecord(REFINED, DAY, verdict, **more)


def a_publication(before: Digest, after: Digest) -> PublicationRecord:
    return PublicationRecord(REFINED, DAY, 7, 6, before, after, Cause.of(CauseKind.DELIVERY), "run")


def test_a_slice_is_told_of_once_by_the_last_walk() -> None:
    """Outcome: one publication from the state before both walks to the last; the last step moves the head."""
    first = Changes(
        slices=[a_record(Verdict.PUBLISHED, digest=ONE, read_hash="before", is_final=True)],
        publications=[a_publication(EMPTY, ONE)],
        head=(REFINED, 8, 6),
    )
    second = Changes(
        slices=[a_record(Verdict.PUBLISHED, digest=TWO, read_hash="between")],
        publications=[a_publication(ONE, TWO)],
        head=(REFINED, 9, 6),
    )
    (_, one), (_, other) = condensed([(REFINED, first), (REFINED, second)])
    assert (one.slices, one.publications, one.head) == ([], [], None)
    assert [(record.digest, record.read_hash) for record in other.slices] == [(TWO, "before")]
    assert [(record.digest_before, record.digest_after) for record in other.publications] == [(EMPTY, TWO)]
    assert other.head == (REFINED, 9, 6)


@pytest.fixture
def draft(tmp_path: Path) -> Iterator[Draft]:
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        runtime: Any = SimpleNamespace(ledger=ledger, settings=Settings(projects=(PROJECT,), dedupe_window_days=2))
        yield Draft(runtime, "run", "run")


def test_slices_that_exchange_events_go_together(draft: Draft) -> None:
    """Near days may have exchanged events, whichever raw days they came from; a distant one stays."""
    for table in (REFINED_EVENTS, DAILY_REVENUE):
        draft._tables[table.key] = _TableDraft(table, 1, 2, {DAY, NEXT, FAR})
    draft.record(DAILY_REVENUE, Changes(), {key: {(REFINED, key): ONE} for key in (DAY, NEXT, FAR)})
    gone, batches = draft._with_what_follows({(REFINED, DAY)})
    assert (gone, batches) == ({(REFINED, DAY), (REFINED, NEXT), (REVENUE, DAY), (REVENUE, NEXT)}, frozenset())


def test_a_batch_goes_with_any_of_its_days(draft: Draft) -> None:
    """Its other days go too, with its quarantine and everything built from any of them."""
    batch = BatchKey(Source.REGULAR, PROJECT, NEXT.event_date)
    part = BatchDay(ONE)
    draft.record(REFINED_EVENTS, Changes(batch_days={batch: {DAY.event_date: part, FAR.event_date: part}}))
    draft.record(REFINED_EVENTS, Changes(), {FAR: {(RAW, FAR): ONE}})
    gone, batches = draft._with_what_follows({(RAW, DAY)})
    assert (batches, gone) == ({batch}, {(RAW, DAY), (RAW, FAR), ("raw/quarantine", NEXT), (REFINED, FAR)})
