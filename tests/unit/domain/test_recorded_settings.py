"""Settings as publications record them: what is kept, what differs, and settings made from it again."""

from __future__ import annotations

import json

import pytest

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.records import differing, on_record, with_recorded
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.tables.aggregates import DAILY_REVENUE
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED

THEN = Settings(
    dedupe_window_days=2, source_precedence=(Source.REGULAR, Source.BACKFILL), revenue_properties=("a", "b")
)


def test_settings_come_back_as_they_were() -> None:
    for table in (*DERIVED, *AS_OF_TABLES):
        recorded = json.loads(json.dumps(table.recorded_settings(THEN)))
        again = with_recorded(Settings(), recorded)
        assert table.code_version(again) == table.code_version(THEN)
        assert differing(recorded, table.recorded_settings(again)) == {}


def test_what_chooses_the_inputs_is_recorded_and_is_no_other_code() -> None:
    """Scenario: the policy for days without a snapshot is another. Outcome: a publication names it, what is published stays."""
    other = THEN.model_copy(update={"missing_snapshot": MissingSnapshot.PREVIOUS, "previous_snapshot_days": 3})
    for table in AS_OF_TABLES:
        sides = table.recorded_settings(THEN), table.recorded_settings(other)
        assert differing(*sides) == {"missing_snapshot": ("wait", "previous"), "previous_snapshot_days": (7, 3)}
        assert table.code_version(THEN) == table.code_version(other)
    for table in DERIVED:
        assert table.recorded_settings(THEN) == table.recorded_settings(other)


def test_which_events_repeat_revenue_is_recorded_and_is_other_code() -> None:
    """Outcome: a list that changed makes the revenue of published days stale, and a replay uses the list of then."""
    sides = Settings(), Settings(event_types_without_revenue=())
    recorded = [DAILY_REVENUE.recorded_settings(one) for one in sides]
    default = ["[Amplitude] Revenue (Verified)", "[Amplitude] Revenue (Unverified)"]
    assert differing(*recorded) == {"event_types_without_revenue": (default, [])}
    assert DAILY_REVENUE.code_version(sides[0]) != DAILY_REVENUE.code_version(sides[1])
    assert with_recorded(sides[1], recorded[0]) == sides[0]


def test_what_differs_is_told_with_both_values() -> None:
    names = ("dedupe_window_days", "source_precedence")
    assert differing(on_record(THEN, names), on_record(Settings(), names)) == {
        "dedupe_window_days": (2, 1),
        "source_precedence": (["regular", "backfill"], ["backfill", "regular"]),
    }
    assert differing({"gone": 1}, {"new": 2}) == {"gone": (1, None), "new": (None, 2)}


def test_no_secret_is_recorded() -> None:
    """Scenario: a table of a user's own reads a setting that may hold a password. Outcome: no record holds it."""
    names = ("catalog_url", "notify_urls", "spark_config", "dedupe_window_days")
    assert on_record(THEN, names) == {"dedupe_window_days": 2}


def test_a_recorded_value_that_means_nothing_now_is_refused_and_an_unknown_name_left_out() -> None:
    assert with_recorded(THEN, {"a_setting_of_then": 5}) == THEN
    with pytest.raises(SettingsError, match="source_precedence: has the recorded value"):
        with_recorded(THEN, {"source_precedence": ["somewhere else"]})
