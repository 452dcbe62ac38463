"""Digests of a former version get their present names wherever the ledger keeps them, and nothing else changes."""

from __future__ import annotations

from contextlib import closing
from datetime import date
from pathlib import Path

from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source, Verdict
from resources.ledger.digests import DOUBTED, Renamed
from resources.ledger.records import BatchDay, Changes, PublicationRecord, SliceRecord
from resources.ledger.store import Ledger

RAW, REFINED = "raw/regular_events", "refined/events"
DAY, OTHER = date(2026, 2, 2), date(2026, 2, 3)
KEY, BESIDE = Slice(DAY, "10001"), Slice(OTHER, "10001")
FORMER, PRESENT, WAS = Digest(2, 1, 1, version=1), Digest(2, 8, 9), Digest(1, 5, 5, version=1)
BATCH = BatchKey(Source.REGULAR, "10001", DAY)
STATE = {f"{RAW}:{DAY}": str(FORMER), f"{RAW}:{OTHER}": str(FORMER), "rivals": str(FORMER), "code": "2-ab (1, 2)"}


def test_a_digest_is_renamed_in_every_place(tmp_path: Path) -> None:
    """Scenario: a raw slice, its batch day and publications, and a refined slice and a publication built from it, by version 1.
    Outcome: the slice's digest has its present name everywhere; other days, other content and other entries keep theirs."""
    with closing(Ledger(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        slices = [
            SliceRecord(RAW, KEY, Verdict.PUBLISHED, digest=FORMER, file_hash="f"),
            SliceRecord(RAW, BESIDE, Verdict.PUBLISHED, digest=EMPTY),
            SliceRecord(REFINED, KEY, Verdict.PUBLISHED, digest=WAS, input_state=STATE, refused_state=STATE),
            SliceRecord(REFINED, Slice(DAY, "10002"), Verdict.PUBLISHED, digest=WAS, input_state=STATE),
        ]
        publications = [
            PublicationRecord(RAW, KEY, 1, 0, EMPTY, WAS, "delivery", "run"),
            PublicationRecord(RAW, KEY, 2, 1, WAS, FORMER, "delivery", "run"),
            PublicationRecord(REFINED, KEY, 3, 2, EMPTY, WAS, "first build", "run", input_state=STATE),
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
        told = {**STATE, f"{RAW}:{DAY}": str(PRESENT)}
        refined = ledger.slices(REFINED, None)
        assert (refined[KEY].input_state, refined[KEY].refused_state, refined[KEY].digest) == (told, told, WAS)
        assert refined[Slice(DAY, "10002")].input_state == STATE
        found = [(record.digest_before, record.digest_after, record.input_state) for record in ledger.publications()]
        assert found == [(EMPTY, WAS, None), (WAS, PRESENT, None), (EMPTY, WAS, told)]
        assert ledger.head(RAW) == 7

        ledger.digests.doubt(RAW, [KEY])
        assert (ledger.head(RAW), ledger.slices(RAW, None)[KEY].file_hash) == (-7, DOUBTED)
