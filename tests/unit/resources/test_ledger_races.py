"""Two runs write one ledger: the other's records stay, and a doubted head is looked at again."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from pipeline_assets.domain import records
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey, dimension_batch
from pipeline_assets.domain.errors import PublishConflictError, SliceConflictError
from pipeline_assets.domain.slices import ALL_PROJECTS, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.tables.events import QUARANTINE
from resources.ledger.changes import BatchAsRead, Changes
from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting

TABLE = "refined/events"
DAY = date(2026, 2, 2)
KEY = Slice(DAY, "10001")
BATCH = BatchKey(Source.REGULAR, "10001", DAY)
STATES = [records.InputState({records.InputDay("raw", DAY): Digest(number, number, number)}) for number in (1, 2)]
MINE = records.SliceRecord(
    TABLE, KEY, Verdict.PUBLISHED, digest=Digest(1, 1, 1), file_hash="mine", input_state=STATES[0]
)
THEIRS = replace(MINE, digest=Digest(2, 2, 2), file_hash="theirs", input_state=STATES[1])


def _slice(ledger: Ledger) -> records.SliceRecord:
    return ledger.slices(TABLE, None)[KEY]


def test_a_row_that_names_other_files_by_now_is_left_alone(ledger: Ledger) -> None:
    ledger.record(Changes(slices=[THEIRS]), "other")
    ledger.record(Changes(slices=[MINE]), "own")
    assert _slice(ledger).digest == THEIRS.digest

    read = _slice(ledger)
    ledger.record(Changes(slices=[replace(read, digest=Digest(3, 3, 3), file_hash="next")]), "own")
    assert _slice(ledger).file_hash == "next"
    ledger.record(Changes(slices=[replace(read, verdict=Verdict.WAITING)]), "late")
    assert _slice(ledger).verdict is Verdict.PUBLISHED


def test_who_published_tells_the_inputs_of_what_another_run_found(ledger: Ledger) -> None:
    found = replace(MINE, input_state=None)
    ledger.record(Changes(slices=[found]), "other")
    ledger.record(Changes(slices=[MINE]), "own")
    assert _slice(ledger).input_state == MINE.input_state
    ledger.record(Changes(slices=[found]), "another that looked before")
    assert _slice(ledger).input_state == MINE.input_state


def test_a_row_of_what_is_held_by_now_tells_of_the_hold_or_of_a_commit(ledger: Ledger) -> None:
    """The files are equal, so only the row keeps an earlier load from calling the slice good."""
    ledger.record(Changes(slices=[MINE]), "own")
    read = _slice(ledger)
    ledger.interventions.hold({TABLE: [KEY]}, "why", "person")
    ledger.record(Changes(slices=[replace(read, verdict=Verdict.HELD)]), "person")
    for verdict in (Verdict.UNCHANGED, Verdict.REFUSED, Verdict.PUBLISHED):
        ledger.record(Changes(slices=[replace(read, verdict=verdict)]), "load")
        assert _slice(ledger).verdict is (Verdict.PUBLISHED if verdict is Verdict.PUBLISHED else Verdict.HELD)
    ledger.interventions.release({TABLE: [KEY]}, "done", "person")
    ledger.record(Changes(slices=[replace(read, verdict=Verdict.UNCHANGED)]), "load")
    assert _slice(ledger).verdict is Verdict.UNCHANGED


def _publication(snapshot_id: int, parent_id: int) -> records.PublicationRecord:
    cause = Cause.of(CauseKind.DELIVERY)
    return records.PublicationRecord(TABLE, KEY, snapshot_id, parent_id, Digest(), MINE.digest, cause, "own")


def _strictly(ledger: Ledger, changes: Changes) -> None:
    with ledger.transaction() as connection:
        LedgerWriting(connection).record(changes, "load", is_strict=True)


def test_a_head_moves_only_from_the_one_that_was_known(ledger: Ledger) -> None:
    """With a foreign commit in between, or a row left to another run, the head is doubted."""
    ledger.record(Changes(head=(TABLE, 10, None)), "first")
    ledger.record(Changes(head=(TABLE, 11, 10)), "second")
    assert ledger.head(TABLE) == records.Head(11)
    ledger.record(Changes(head=(TABLE, 13, 12)), "third")
    assert ledger.head(TABLE) == records.Head(11, is_trusted=False)
    ledger.record(Changes(head=(TABLE, 14, 11)), "fourth")
    assert ledger.head(TABLE) == records.Head(11, is_trusted=False)

    ledger.record(Changes(slices=[THEIRS], head=(TABLE, 20, None)), "settled")
    left = Changes(slices=[MINE], publications=[_publication(21, 20)], head=(TABLE, 21, 20))
    ledger.record(left, "late")
    assert ledger.head(TABLE) == records.Head(20, is_trusted=False)
    assert [record.snapshot_id for record in ledger.publications()] == [21]


def test_other_files_of_the_same_rows_change_nothing_else_and_only_what_was_read(ledger: Ledger) -> None:
    """Verdicts and holds recorded while files were joined stay. Rows that name other files are not written, and the
    head is doubted where a commit cannot be taken back."""
    ledger.record(Changes(slices=[MINE], head=(TABLE, 10, None)), "own")
    ledger.interventions.hold({TABLE: [KEY]}, "why", "person")
    ledger.record(Changes(slices=[replace(_slice(ledger), verdict=Verdict.HELD, reason="held: why")]), "person")
    held = _slice(ledger)
    ledger.record(Changes(rewritten={(TABLE, KEY): ("mine", "joined")}, head=(TABLE, 11, 10)), "maintenance")
    assert _slice(ledger) == replace(held, file_hash="joined", read_hash="joined")
    assert ledger.head(TABLE) == records.Head(11)

    late = Changes(rewritten={(TABLE, KEY): ("mine", "again")}, head=(TABLE, 12, 11))
    with pytest.raises(SliceConflictError, match="recorded other files") as conflict:
        _strictly(ledger, late)
    assert conflict.value.slices == {(TABLE, KEY)}
    assert (_slice(ledger).file_hash, ledger.head(TABLE)) == ("joined", records.Head(11))
    ledger.record(late, "maintenance")
    assert (_slice(ledger).file_hash, ledger.head(TABLE)) == ("joined", records.Head(11, is_trusted=False))


def test_what_was_found_is_dropped_where_the_head_moved(ledger: Ledger) -> None:
    ledger.record(Changes(head=(TABLE, 10, None)), "first")
    found = Changes(slices=[MINE], publications=[_publication(10, 9)], head=(TABLE, 10, None))
    assert not ledger.record_found(found, "slow", known_head=None)
    assert ledger.slices(TABLE, None) == {}
    assert ledger.publications() == []
    assert ledger.record_found(found, "again", known_head=records.Head(10))


def test_a_snapshot_that_main_came_back_to_is_another_publication(ledger: Ledger) -> None:
    ledger.record(Changes(publications=[_publication(10, 9), _publication(10, 12), _publication(10, 9)]), "own")
    assert [record.parent_id for record in ledger.publications()] == [9, 12]
    assert ledger.recorded_snapshots(TABLE, [10, 11]) == {(KEY, 10)}


def _delivery(etag: str) -> records.DeliveryRecord:
    return records.DeliveryRecord(BATCH, "object", etag, 1, "sha", 1, 1, 0, 0, None, is_accepted=True)


def _judged(verdict: BatchVerdict, read: BatchAsRead, **more: object) -> Changes:
    changes = Changes(
        batches=[records.BatchRecord(BATCH, verdict, input_state=verdict.value)], read_batches={BATCH: read}
    )
    return replace(changes, **more)


NOTHING = BatchAsRead({}, None)


def test_a_batch_that_was_only_judged_keeps_the_newer_judgement(ledger: Ledger) -> None:
    ledger.record(_judged(BatchVerdict.REFUSED, NOTHING), "other")
    as_read = BatchAsRead({}, (BatchVerdict.REFUSED.value, BatchVerdict.REFUSED.value))
    for read, expected in ((NOTHING, BatchVerdict.REFUSED), (as_read, BatchVerdict.ACCEPTED)):
        ledger.record(_judged(BatchVerdict.ACCEPTED, read), "own")
        assert ledger.batches([BATCH.project_id], DAY, DAY)[BATCH].verdict is expected


def test_a_batch_that_both_loaded_refuses_the_second_whole(ledger: Ledger) -> None:
    ledger.record(_judged(BatchVerdict.ACCEPTED, NOTHING, deliveries=[_delivery("theirs")]), "other")
    mine = _judged(BatchVerdict.ACCEPTED, NOTHING, deliveries=[_delivery("mine")], slices=[MINE])
    with pytest.raises(PublishConflictError, match="run other loaded it meanwhile"):
        ledger.record(mine, "own")
    assert ledger.deliveries(Source.REGULAR, ["10001"], DAY, DAY)["object"].etag == "theirs"
    assert ledger.slices(TABLE, None) == {}


OUT = records.Exclusion(BATCH, "object", "mine", "sha", "a test account")


@pytest.mark.parametrize("is_new", [True, False])
def test_an_object_that_is_excluded_while_it_is_loaded_is_not_published(ledger: Ledger, is_new: bool) -> None:
    """Outcome: a conflict with the batch's place, nothing written; a load that plans with the exclusion goes through."""
    mine = _judged(BatchVerdict.ACCEPTED, NOTHING, deliveries=[_delivery("mine")])
    other = replace(OUT, batch=replace(BATCH, project_id="10002"), object_key="other")
    ledger.interventions.exclude([other], "person")
    _strictly(ledger, replace(mine, deliveries=[]))
    ledger.interventions.exclude([OUT], "person")
    if not is_new:
        ledger.record(_judged(BatchVerdict.ACCEPTED, NOTHING), "the person's load")

    with pytest.raises(SliceConflictError, match="an operator excluded object meanwhile") as conflict:
        _strictly(ledger, mine)

    assert conflict.value.slices == {(QUARANTINE.key, Slice(DAY, BATCH.project_id))}
    assert ledger.deliveries(Source.REGULAR, ["10001"], DAY, DAY) == {}
    read = (BatchVerdict.ACCEPTED.value, BatchVerdict.ACCEPTED.value)
    with_it = BatchAsRead({}, read, frozenset({("object", "mine")}))
    _strictly(ledger, _judged(BatchVerdict.ACCEPTED, with_it, deliveries=[replace(_delivery("other"), object_key="b")]))
    assert list(ledger.deliveries(Source.REGULAR, ["10001"], DAY, DAY)) == ["b"]


def test_an_object_that_is_included_again_while_it_is_withdrawn_stays(ledger: Ledger) -> None:
    """Scenario: an operator lifts an exclusion before the load publishes its withdrawal. Outcome: a conflict."""
    ledger.record(_judged(BatchVerdict.ACCEPTED, NOTHING, deliveries=[_delivery("mine")]), "former")
    ledger.interventions.exclude([OUT], "person")
    as_read = BatchAsRead({"object": "mine"}, None, frozenset({("object", "mine")}))
    gone = [(BATCH, "object")]
    withdrawal = Changes(forgotten_deliveries=gone, batch_days={BATCH: {}}, read_batches={BATCH: as_read})
    ledger.interventions.lift([OUT], "it was right", "person")

    with pytest.raises(SliceConflictError, match="an operator included object again meanwhile"):
        _strictly(ledger, withdrawal)

    assert list(ledger.deliveries(Source.REGULAR, ["10001"], DAY, DAY)) == ["object"]
    ledger.interventions.exclude([OUT], "person")
    _strictly(ledger, withdrawal)
    assert ledger.deliveries(Source.REGULAR, ["10001"], DAY, DAY) == {}


def test_a_batch_that_was_judged_before_an_exclusion_leaves_the_row_to_who_knows_it(ledger: Ledger) -> None:
    """Nothing of it is loaded, so the operator's load judges it, whichever comes first."""
    with_it = replace(NOTHING, exclusions=frozenset({("object", "mine")}))
    ledger.interventions.exclude([OUT], "person")
    _strictly(ledger, _judged(BatchVerdict.REFUSED, NOTHING))
    assert ledger.batches([BATCH.project_id], DAY, DAY) == {}
    _strictly(ledger, _judged(BatchVerdict.ACCEPTED, with_it))
    assert ledger.batches([BATCH.project_id], DAY, DAY)[BATCH].verdict is BatchVerdict.ACCEPTED


def test_a_snapshot_that_is_excluded_while_it_is_built_is_not_published(ledger: Ledger) -> None:
    """Outcome: a conflict with all slices of the step; none for a table without objects or a step without slices."""
    items = replace(MINE, table="dimensions/item_snapshot", key=Slice(DAY, ALL_PROJECTS))
    out = records.Exclusion(dimension_batch(DAY), "dimensions/item/2026-02-02.csv", "v1", "sha", "the wrong items")
    step = Changes(slices=[items], exclusions=frozenset())
    ledger.interventions.exclude([out], "person")

    with pytest.raises(SliceConflictError, match=f"an operator excluded {out.object_key} meanwhile") as lost:
        _strictly(ledger, step)

    assert lost.value.slices == {(items.table, items.key)}
    assert ledger.slices(items.table, None) == {}
    _strictly(ledger, replace(step, slices=[]))
    _strictly(ledger, replace(step, slices=[MINE], exclusions=None))
    knowing = replace(step, exclusions=frozenset({(out.object_key, "v1")}))
    ledger.interventions.lift([out], "they were right", "person")
    with pytest.raises(SliceConflictError, match=f"an operator included {out.object_key} again meanwhile"):
        _strictly(ledger, knowing)
    ledger.interventions.exclude([out], "person")
    _strictly(ledger, knowing)
    assert list(ledger.slices(items.table, None)) == [items.key]
