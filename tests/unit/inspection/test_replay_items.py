"""A replay from today's inputs is refused for missing items, and blames the setting where it is the cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.records import InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.inspection.replay_inputs import Items, items_of, without_items
from pipeline_assets.inspection.replay_result import Obstacle, Origin
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.dimension import ACTIVE_ITEM_EVENTS, ITEM

DAY, NOW = date(2026, 2, 4), datetime(2026, 2, 20, tzinfo=UTC)
KEY, SNAPSHOT, VALIDITY = Slice(DAY, "10001"), ITEM.snapshot.key, ITEM.validity.key
THREE_BEFORE = DAY - timedelta(days=3)
SOME = Digest(3, 1, 1)
PREVIOUS = {"missing_snapshot": MissingSnapshot.PREVIOUS}


def facts_of(*snapshots: date, events: Digest = SOME, verdict: Verdict = Verdict.PUBLISHED, **settings: Any) -> Facts:
    on_record = {
        Slice(day, ALL_PROJECTS): SliceRecord(SNAPSHOT, Slice(day, ALL_PROJECTS), verdict, digest=SOME)
        for day in snapshots
    }
    month = Slice(DAY.replace(day=1), ALL_PROJECTS)
    state = InputState({InputDay(SNAPSHOT, day): SOME for day in snapshots})
    return Facts(
        Settings(projects=("10001",), **settings), frozenset({KEY}), {}, {},
        records={
            "refined/events": {KEY: SliceRecord("refined/events", KEY, Verdict.PUBLISHED, digest=events)},
            SNAPSHOT: on_record,
            VALIDITY: {month: SliceRecord(VALIDITY, month, Verdict.PUBLISHED, digest=SOME, input_state=state)},
        },
        first_snapshots={SNAPSHOT: min(snapshots)} if snapshots else {},
    )  # fmt: skip


def chosen(facts: Facts) -> Items:
    return items_of(facts, ACTIVE_ITEM_EVENTS, KEY, NOW)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (facts_of(THREE_BEFORE), f"{SNAPSHOT} has no snapshot of {DAY} (missing_snapshot = wait)"),
        (facts_of(THREE_BEFORE, missing_snapshot="refuse"), f"{SNAPSHOT} has no snapshot of {DAY} (missing_snapshot = refuse)"),
        (
            facts_of(THREE_BEFORE, **PREVIOUS, previous_snapshot_days=2),
            f"{SNAPSHOT} has no snapshot of {DAY}, and none of the 2 days before it (missing_snapshot = previous)",
        ),
        (facts_of(), f"{SNAPSHOT} holds no snapshot of {DAY} or of a day before it"),
    ],
)  # fmt: skip
def test_events_without_items_are_not_computed_and_the_reason_is_a_loads(facts: Facts, reason: str) -> None:
    found = chosen(facts)
    assert (found.are_missing, found.reason) == (True, reason)


def test_items_that_stand_are_chosen_and_a_day_without_events_needs_none() -> None:
    own = chosen(facts_of(THREE_BEFORE, DAY))
    assert own == Items((InputDay(SNAPSHOT, DAY),))
    assert chosen(facts_of(THREE_BEFORE, **PREVIOUS)).days == (InputDay(SNAPSHOT, THREE_BEFORE),)
    held = chosen(facts_of(DAY, verdict=Verdict.HELD))
    assert (held.are_missing, held.days, held.reason) == (False, own.days, f"{SNAPSHOT} {DAY} is held")
    assert not chosen(facts_of(events=EMPTY)).are_missing


@pytest.mark.parametrize(
    ("then", "today", "causes"),
    [
        (PREVIOUS, {}, ["setting missing_snapshot: previous -> wait", "none stands"]),
        (
            {**PREVIOUS, "previous_snapshot_days": 3},
            {**PREVIOUS, "previous_snapshot_days": 2},
            ["setting previous_snapshot_days: 3 -> 2", "none stands"],
        ),
        ({**PREVIOUS, "previous_snapshot_days": 2}, {}, ["none stands"]),
        ({}, {}, ["none stands"]),
    ],
)
def test_a_setting_is_blamed_where_that_of_then_would_still_find_items(
    then: Mapping[str, Any], today: Mapping[str, Any], causes: list[str]
) -> None:
    facts = facts_of(THREE_BEFORE, **today)
    origin = Origin(InputState(), {}, facts_of(**then).settings, are_settings_known=True, is_same_code=True)

    def choose(settings: Settings) -> Items:
        return chosen(replace(facts, settings=settings))

    found = without_items(ACTIVE_ITEM_EVENTS, origin, facts.settings, "none stands", choose)
    assert [cause.reason for cause in found] == causes
    assert all(cause.hint for cause in found)
    unknown = without_items(ACTIVE_ITEM_EVENTS, Obstacle("lost", ""), facts.settings, "none stands", choose)
    assert [cause.reason for cause in unknown] == ["none stands"]
