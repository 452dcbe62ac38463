"""Compared keys: equal sides, missing days, counted rows; no Spark."""

from __future__ import annotations

from datetime import date
from io import StringIO

import pytest
from rich.console import Console

from pipeline_assets.cli.reconcile import compared_keys, keys_json
from pipeline_assets.cli.terminal import show
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.key_list import read_key_list
from pipeline_assets.inspection.key_comparison import KeyComparison, KeyRange, are_rows_counted
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.transforms.key_changes import FEWER_HERE, MORE_HERE, ONLY_HERE, ONLY_THERE, SAME, STATES

DAY = date(2026, 2, 2)
RANGE = KeyRange(("10001",), DAY, DAY)


def _found(*states: str) -> KeyComparison:
    counts = {("10001", DAY, state): 2 for state in states}
    samples = {state: (f"{DAY}/10001 e-{state}",) for state in states if state != SAME}
    return KeyComparison("refined/events", "keys.csv", RANGE, counts, samples)


def test_equal_are_keys_that_are_the_same_alone() -> None:
    assert _found(SAME).is_good
    assert not KeyComparison("refined/events", "keys.csv", RANGE).is_good
    for state in STATES:
        assert _found(SAME, state).is_good == (state == SAME)


@pytest.mark.parametrize(
    ("state", "is_lacking"), [(ONLY_THERE, True), (FEWER_HERE, True), (ONLY_HERE, False), (MORE_HERE, False)]
)
def test_a_day_lacks_where_a_key_does_or_has_too_few_rows(state: str, is_lacking: bool) -> None:
    assert _found(SAME, state).lacking == {Slice(DAY, "10001"): is_lacking}


def test_each_state_is_counted_and_sampled_for_people_and_machines() -> None:
    found = _found(SAME, FEWER_HERE, MORE_HERE)
    told = keys_json(found)
    assert told["totals"] == {**dict.fromkeys(STATES, 0), "same": 2, "fewer here": 2, "more here": 2}
    assert not told["is_equal"]
    console = Console(file=StringIO(), width=200)
    show(console, *compared_keys(found))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"fewer here {DAY}/10001 e-fewer here\nand 1 more keys fewer here" in shown
    assert "2 same, 0 only here, 0 only there, 0 different, 2 fewer here, 2 more here" in shown


def test_rows_are_counted_where_a_row_is_an_event_and_no_sender_is_named() -> None:
    alone, sent = (read_key_list("keys.csv", [header]) for header in ("insert_id,day,app\n", "insert_id,device_id\n"))
    assert are_rows_counted(REFINED_EVENTS, alone)
    assert not are_rows_counted(REFINED_EVENTS, sent)
    assert not are_rows_counted(RAW_TABLES[Source.BACKFILL], alone)
