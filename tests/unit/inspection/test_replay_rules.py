"""Pure rules of replay: a publication's inputs and items, their readable places, and the first cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import InputDay, InputState, PublicationRecord, SliceRecord
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Source, Verdict
from pipeline_assets.inspection.replay import Items, choose, derived_table, items_of, places, remedy
from pipeline_assets.inspection.replay_result import (
    InputSlice,
    Keys,
    Obstacle,
    Origin,
    PublishedToday,
    Share,
    as_published_causes,
    gone,
    origin_of,
    other_rows,
)
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM
from pipeline_assets.tables.events import REFINED_EVENTS

DAY, KEY = date(2026, 2, 2), Slice(date(2026, 2, 2), "10001")
RAW = InputDay("raw/regular_events", DAY)
SETTINGS = Settings(projects=("10001",))
TEN, ELEVEN, OTHER_TEN = Digest(10, 1, 2), Digest(11, 3, 4), Digest(10, 5, 6)
PUBLICATION = PublicationRecord(
    REFINED_EVENTS.key, KEY, 20, 19, EMPTY, TEN, Cause.of(CauseKind.FIRST_BUILD), "run-1", InputState({RAW: ELEVEN}),
    REFINED_EVENTS.code_version(SETTINGS), number=1, pins={RAW.table: 7},
    settings=REFINED_EVENTS.recorded_settings(SETTINGS),
)  # fmt: skip


def _origin(publication: PublicationRecord = PUBLICATION, settings: Settings = SETTINGS) -> Origin:
    found = origin_of(REFINED_EVENTS, publication, None, settings)
    assert isinstance(found, Origin)
    return found


def test_a_publication_tells_what_it_was_built_from() -> None:
    today = SETTINGS.model_copy(
        update={"dedupe_window_days": 3, "source_precedence": (Source.REGULAR, Source.BACKFILL)}
    )
    origin = _origin(settings=today)
    assert origin.settings.dedupe_window_days == 1
    assert origin.settings.source_precedence == (Source.BACKFILL, Source.REGULAR)
    assert (origin.is_same_code, origin.are_settings_known, origin.notes) == (True, True, ())
    assert (origin.pins, origin.digest(RAW)) == ({RAW.table: 7}, ELEVEN)
    assert origin.digest(InputDay("raw/backfill_events", DAY)) == EMPTY


def test_settings_that_were_not_recorded_are_todays_where_the_code_version_says_so() -> None:
    older = replace(PUBLICATION, settings=None, pins=None)
    same = _origin(older)
    assert (same.are_settings_known, same.notes, same.pins) == (True, (), {})
    other = _origin(older, SETTINGS.model_copy(update={"dedupe_window_days": 3}))
    assert not other.are_settings_known
    assert "its settings were not recorded" in other.notes[0]


def test_other_code_is_said() -> None:
    origin = _origin(replace(PUBLICATION, code_version="1-abcdef12"))
    assert (origin.is_same_code, origin.are_settings_known) == (False, True)
    assert "published by other code" in origin.notes[0]


@pytest.mark.parametrize(("cause", "said"), [
    (CauseKind.FOREIGN, "no run of ours published it"),
    (CauseKind.UNRECORDED_RUN, "died before it recorded"),
    (CauseKind.ROLLBACK, "rolled back to a state whose inputs are not on record"),
    (CauseKind.CODE, "its inputs are not on record"),
])  # fmt: skip
def test_inputs_that_are_not_on_record_are_an_obstacle(cause: CauseKind, said: str) -> None:
    older = replace(PUBLICATION, input_state=None, cause=Cause.of(cause, "run-9"))
    found = origin_of(REFINED_EVENTS, older, None, SETTINGS)
    assert isinstance(found, Obstacle)
    assert said in found.reason
    assert found.hint


def test_a_publication_found_after_a_kill_has_the_inputs_that_confirmed_it() -> None:
    """Scenario: the run died before its record; the next load found the same rows, or other ones."""
    dead = replace(PUBLICATION, input_state=None, code_version=None, cause=Cause.of(CauseKind.UNRECORDED_RUN, "run-9"))
    confirmed = SliceRecord(
        REFINED_EVENTS.key, KEY, Verdict.UNCHANGED, digest=TEN, input_state=InputState({RAW: ELEVEN}),
        code_version=PUBLICATION.code_version,
    )  # fmt: skip
    found = origin_of(REFINED_EVENTS, dead, confirmed, SETTINGS)
    assert isinstance(found, Origin)
    assert found.digest(RAW) == ELEVEN
    assert "a later load found the same rows" in found.notes[0]
    assert isinstance(origin_of(REFINED_EVENTS, dead, replace(confirmed, digest=OTHER_TEN), SETTINGS), Obstacle)
    assert isinstance(origin_of(REFINED_EVENTS, dead, replace(confirmed, input_state=None), SETTINGS), Obstacle)


def test_what_another_hash_or_another_table_made_is_an_obstacle() -> None:
    former = replace(PUBLICATION, digest_after=Digest(10, 1, 2, version=1))
    elsewhere = replace(PUBLICATION, input_state=InputState({InputDay("raw/others", DAY): TEN}))
    for publication, said in ((former, "another version of the row hash"), (elsewhere, "no longer built from")):
        found = origin_of(REFINED_EVENTS, publication, None, SETTINGS)
        assert isinstance(found, Obstacle)
        assert said in found.reason


def test_a_slice_of_then_is_looked_for_in_kept_snapshots_alone() -> None:
    first = replace(PUBLICATION, table=RAW.table, snapshot_id=3, parent_id=2, digest_after=ELEVEN)
    second = replace(first, snapshot_id=6, parent_id=5, digest_before=ELEVEN, digest_after=TEN, number=2)

    def found(digest: Digest, pin: int | None) -> tuple[int, ...]:
        return places([first, second], digest, pin, head=9, kept={5, 6, 9})

    assert (found(ELEVEN, pin=3), found(ELEVEN, pin=5)) == ((5,), (5,))
    assert found(TEN, pin=6) == found(TEN, pin=None) == (6, 9)
    assert found(OTHER_TEN, pin=4) == ()
    # A pinned snapshot is read without a record: its digest decides.
    assert found(OTHER_TEN, pin=6) == (6,)


def test_the_first_cause_is_the_nearest_to_the_source() -> None:
    """Scenario: no fault, then inputs, settings, code, published files. Outcome: each is named, and none is equal."""
    good, lost = InputSlice(RAW, ELEVEN, 7, 7, ELEVEN), InputSlice(RAW, ELEVEN, 7, 7, TEN)
    origin = _origin()
    other_code = replace(origin, is_same_code=False)
    unknown = replace(other_code, are_settings_known=False)
    today = PublishedToday(TEN, is_settled=True)

    def first(of: Origin, one: InputSlice, replayed: Digest, published: PublishedToday | None = today) -> str | None:
        causes = as_published_causes(of, [one], TEN, replayed, published)
        assert all(cause.hint for cause in causes)
        return causes[0].reason.split(":")[0] if causes else None

    assert first(origin, good, TEN) is None
    assert first(other_code, good, TEN) is None
    assert first(origin, good, TEN, None) is None
    # Equal rows from a changed input are no replay.
    assert first(origin, lost, TEN) == f"input {RAW.table} {DAY} is not what it was"
    assert (first(unknown, good, OTHER_TEN), first(other_code, good, OTHER_TEN)) == ("settings", "code")
    assert first(origin, good, OTHER_TEN) == "code"
    assert first(origin, good, TEN, replace(today, rows=OTHER_TEN)) == "the published files were changed in their place"
    assert first(origin, good, TEN, PublishedToday(OTHER_TEN, is_settled=False)).startswith("the table was changed")  # type: ignore[union-attr]
    assert first(origin, good, TEN, replace(today, rows="no file")) == "the published rows cannot be read"
    assert gone([good, lost]) == []
    lost_file = InputSlice(RAW, ELEVEN, 7, reason="no file", is_lost=True)
    assert gone([lost_file])[0].hint.startswith("Restore the files")
    assert "has expired" in gone([InputSlice(RAW, ELEVEN, 7, reason="snapshot 7 has expired")])[0].reason


def test_how_content_differs_is_told_by_rows() -> None:
    assert other_rows(ELEVEN, TEN) == "lost rows: 10 of 11 are left"
    assert other_rows(TEN, ELEVEN) == "hold 11 rows, but 10 are on record"
    assert other_rows(TEN, OTHER_TEN) == "hold 10 rows as on record, but not the same ones"
    assert str(Share("a delivery", Keys(added=3), {"rows": 3.0})) == "a delivery: keys added 3; rows +3"
    assert str(Share("a setting", Keys(kept=3))) == "a setting: no key differs"


def test_publications_are_chosen_by_project_number_and_run() -> None:
    later = replace(PUBLICATION, number=5, run_id="run-2")
    other = replace(PUBLICATION, number=3, key=Slice(DAY, "10002"))
    records, both = [PUBLICATION, other, later], ("10001", "10002")

    def chosen(number: int | None = None, run: str | None = None, projects: tuple[str, ...] = both) -> list[int]:
        found = choose(records, REFINED_EVENTS.key, DAY, projects, number=number, run=run)
        return [one.number for one in found]

    assert (chosen(), chosen(number=1), chosen(run="run-1")) == ([5, 3], [1], [1, 3])
    for wrong in ({"number": 9}, {"run": "x"}, {"projects": ("10003",)}):
        with pytest.raises(UsageError, match="is not on record"):
            chosen(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tidemark history refined/events 2026-02-03"):
        choose(records, REFINED_EVENTS.key, date(2026, 2, 3), both)
    with pytest.raises(UsageError, match="tidemark verify"):
        derived_table("raw/backfill_events")


ITEM_DAY, NOW = date(2026, 2, 4), datetime(2026, 2, 20, tzinfo=UTC)
ITEM_KEY, SNAPSHOT, VALIDITY = Slice(ITEM_DAY, "10001"), ITEM.snapshot.key, ITEM.validity.key
THREE_BEFORE = ITEM_DAY - timedelta(days=3)
SOME = Digest(3, 1, 1)
PREVIOUS = {"missing_snapshot": MissingSnapshot.PREVIOUS}


def facts_of(*snapshots: date, events: Digest = SOME, verdict: Verdict = Verdict.PUBLISHED, **settings: Any) -> Facts:
    keys = [Slice(day, ALL_PROJECTS) for day in snapshots]
    on_record = {key: SliceRecord(SNAPSHOT, key, verdict, digest=SOME) for key in keys}
    month = Slice(ITEM_DAY.replace(day=1), ALL_PROJECTS)
    state = InputState({InputDay(SNAPSHOT, day): SOME for day in snapshots})
    return Facts(
        Settings(projects=("10001",), **settings), frozenset({ITEM_KEY}), {}, {},
        records={
            "refined/events": {ITEM_KEY: SliceRecord("refined/events", ITEM_KEY, Verdict.PUBLISHED, digest=events)},
            SNAPSHOT: on_record,
            VALIDITY: {month: SliceRecord(VALIDITY, month, Verdict.PUBLISHED, digest=SOME, input_state=state)},
        },
        first_snapshots={SNAPSHOT: min(snapshots)} if snapshots else {},
    )  # fmt: skip


def chosen(facts: Facts) -> Items:
    return items_of(facts, ACTIVE_ITEM_EVENTS, ITEM_KEY, NOW)


_NONE = f"{SNAPSHOT} has no snapshot of {ITEM_DAY}"


@pytest.mark.parametrize(("facts", "reason"), [
    (facts_of(THREE_BEFORE), f"{_NONE} (missing_snapshot = wait)"),
    (facts_of(THREE_BEFORE, missing_snapshot="refuse"), f"{_NONE} (missing_snapshot = refuse)"),
    (facts_of(THREE_BEFORE, **PREVIOUS, previous_snapshot_days=2),
     f"{_NONE}, and none of the 2 days before it (missing_snapshot = previous)"),
    (facts_of(), f"{SNAPSHOT} holds no snapshot of {ITEM_DAY} or of a day before it"),
])  # fmt: skip
def test_events_without_items_are_not_computed_and_the_reason_is_a_loads(facts: Facts, reason: str) -> None:
    assert chosen(facts) == ((), reason)


def test_items_that_stand_are_chosen_and_a_day_without_events_needs_none() -> None:
    own = InputDay(SNAPSHOT, ITEM_DAY)
    assert chosen(facts_of(THREE_BEFORE, ITEM_DAY)) == ((own,), "")
    assert chosen(facts_of(THREE_BEFORE, **PREVIOUS))[0] == (InputDay(SNAPSHOT, THREE_BEFORE),)
    assert chosen(facts_of(ITEM_DAY, verdict=Verdict.HELD)) == ((own,), f"{SNAPSHOT} {ITEM_DAY} is held")
    assert chosen(facts_of(events=EMPTY)) == ((), "")


_WITHIN_2, _WITHIN_3 = ({**PREVIOUS, "previous_snapshot_days": days} for days in (2, 3))


@pytest.mark.parametrize(("then", "today", "is_blamed"), [
    (PREVIOUS, {}, True),
    (_WITHIN_3, _WITHIN_2, True),
    (_WITHIN_2, {}, False),
    ({"active_statuses": ("gone",)}, {}, False),
])  # fmt: skip
def test_a_setting_is_blamed_where_that_of_then_would_still_find_items(
    then: Mapping[str, Any], today: Mapping[str, Any], is_blamed: bool
) -> None:
    facts = facts_of(THREE_BEFORE, **today)
    origin = Origin(InputState(), {}, facts_of(**then).settings, are_settings_known=True, is_same_code=True)

    def choose(settings: Settings) -> Items:
        return chosen(replace(facts, settings=settings))

    told = remedy(ACTIVE_ITEM_EVENTS, origin, then.keys() | today.keys(), choose)
    assert told.startswith("Replay it with the settings of then" if is_blamed else "Have the snapshot")
    assert remedy(ACTIVE_ITEM_EVENTS, Obstacle("lost", ""), then, choose).startswith("Have the snapshot")
