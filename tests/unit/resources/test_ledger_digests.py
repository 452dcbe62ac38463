"""Digests of a former version get their present names wherever the ledger keeps them, and nothing else changes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.input_state import InputDay, InputState, Rejection
from pipeline_assets.domain.records import BatchDay, Head, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from resources.ledger.changes import Changes
from resources.ledger.digests import DOUBTED, Renamed
from resources.ledger.store import Ledger

RAW, REFINED = "raw/regular_events", "refined/events"
DAY, OTHER = date(2026, 2, 2), date(2026, 2, 3)
KEY, BESIDE = Slice(DAY, "10001"), Slice(OTHER, "10001")
FORMER, PRESENT, WAS = Digest(2, 1, 1, version=1), Digest(2, 8, 9), Digest(1, 5, 5, version=1)
DELIVERY = Cause.of(CauseKind.DELIVERY)
BATCH = BatchKey(Source.REGULAR, "10001", DAY)
STATE = InputState({InputDay(RAW, DAY): FORMER, InputDay(RAW, OTHER): FORMER}, cross_day=str(FORMER))
REJECTION = Rejection(STATE, judged_by="2-ab (1, 2)", waits_for=(OTHER,))


def test_a_table_without_former_digests_is_asked_once(tmp_path: Path) -> None:
    """Scenario: a table that the ledger does not know, one with slices, another one; a ledger that is begun anew. Outcome: what
    was found out of one is remembered of it alone, as long as its head is on record, whatever head that is."""
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.digests.note_present(RAW)
        assert not ledger.digests.are_present(RAW)
        for table in (RAW, REFINED):
            ledger.record(Changes(head=(table, 7, None)), "run")
        ledger.digests.note_present(RAW)
        ledger.record(Changes(head=(RAW, 8, 7)), "run")
        ledger.record(Changes(head=(RAW, 12, 11)), "run")
        assert (ledger.digests.are_present(RAW), ledger.digests.are_present(REFINED)) == (True, False)
        assert ledger.head(RAW) == Head(8, is_trusted=False)


def test_a_digest_is_renamed_in_every_place(tmp_path: Path) -> None:
    """Scenario: a raw slice, its batch day and publications, and a refined slice and a publication built from it, by version 1.
    Outcome: the slice's digest has its present name everywhere; other days, other content and other entries keep theirs."""
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        slices = [
            SliceRecord(RAW, KEY, Verdict.PUBLISHED, digest=FORMER, file_hash="f"),
            SliceRecord(RAW, BESIDE, Verdict.PUBLISHED, digest=EMPTY),
            SliceRecord(REFINED, KEY, Verdict.PUBLISHED, digest=WAS, input_state=STATE, rejection=REJECTION),
            SliceRecord(REFINED, Slice(DAY, "10002"), Verdict.PUBLISHED, digest=WAS, input_state=STATE),
        ]
        publications = [
            PublicationRecord(RAW, KEY, 1, 0, EMPTY, WAS, DELIVERY, "run"),
            PublicationRecord(RAW, KEY, 2, 1, WAS, FORMER, DELIVERY, "run"),
            PublicationRecord(
                REFINED, KEY, 3, 2, EMPTY, WAS, Cause.of(CauseKind.FIRST_BUILD), "run", input_state=STATE
            ),
        ]
        days = {BATCH: {DAY: BatchDay(FORMER, "abc"), OTHER: BatchDay()}}
        ledger.record(Changes(slices=slices, publications=publications, batch_days=days, head=(RAW, 7, None)), "run")
        assert ledger.digests.former_slices(RAW) == {KEY: FORMER}
        assert ledger.digests.batch_days(Source.REGULAR) == {KEY: {DAY: BatchDay(FORMER, "abc")}}

        present = BatchDay(PRESENT, "h2:1:2")
        ledger.digests.rename(RAW, {KEY: Renamed(FORMER, PRESENT)}, {(BATCH, DAY): (FORMER, present)})
        assert ledger.digests.former_slices(RAW) == {}
        assert ledger.slices(RAW, None)[KEY].digest == PRESENT
        assert ledger.batch_days(Source.REGULAR, ["10001"], DAY, DAY)[BATCH] == {DAY: present, OTHER: BatchDay()}
        renamed = replace(STATE, upstream={**STATE.upstream, InputDay(RAW, DAY): PRESENT})
        refined = ledger.slices(REFINED, None)
        assert (refined[KEY].input_state, refined[KEY].digest) == (renamed, WAS)
        assert refined[KEY].rejection == replace(REJECTION, inputs=renamed)
        assert refined[Slice(DAY, "10002")].input_state == STATE
        found = [(record.digest_before, record.digest_after, record.input_state) for record in ledger.publications()]
        assert found == [(EMPTY, WAS, None), (WAS, PRESENT, None), (EMPTY, WAS, renamed)]
        assert ledger.head(RAW) == Head(7)

        ledger.digests.doubt(RAW, [KEY])
        assert ledger.head(RAW) == Head(7, is_trusted=False)
        assert ledger.slices(RAW, None)[KEY].file_hash == DOUBTED
