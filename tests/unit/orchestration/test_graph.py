"""The frozen graph: keys, dependencies, checks, jobs. A change here is a change of the product."""

from __future__ import annotations

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings

SETTINGS = Settings(projects=("1",))
DEFINITIONS = build_defs(SETTINGS)
GRAPH = DEFINITIONS.resolve_asset_graph()
HEALTH = dg.AssetKey(["ops", "health_report"])
AGGREGATES = {"aggregates/daily_revenue", "aggregates/event_counts", "aggregates/active_users"}


def test_keys_and_dependencies() -> None:
    found = {
        key.to_user_string(): sorted(parent.to_user_string() for parent in GRAPH.get(key).parent_keys)
        for key in GRAPH.get_all_asset_keys()
    }
    assert found == {
        "landing/regular_exports": [],
        "landing/backfill_exports": [],
        "raw/regular_events": ["landing/regular_exports"],
        "raw/backfill_events": ["landing/backfill_exports"],
        "refined/events": ["raw/backfill_events", "raw/regular_events"],
        **{name: ["refined/events"] for name in AGGREGATES},
        "landing/item_snapshots": [],
        "dimensions/item_snapshot": ["landing/item_snapshots"],
        "dimensions/item_validity": ["dimensions/item_snapshot"],
        "aggregates/active_item_events": ["dimensions/item_snapshot", "dimensions/item_validity", "refined/events"],
        "ops/health_report": [],
    }


def test_checks_say_what_they_hold() -> None:
    found: dict[str, set[str]] = {}
    for check in GRAPH.asset_check_keys:
        found.setdefault(check.asset_key.to_user_string(), set()).add(check.name)
    raw = {"delivery_reconciles", "delivery_complete"}
    refined = {"unique_event_key", "reconciles_with_raw", "change_is_explained", "reconciles_with_golden"}
    aggregate = {"reconciles_with_refined", "change_is_explained", "reconciles_with_golden"}
    assert found == {
        "raw/regular_events": raw,
        "raw/backfill_events": raw,
        "refined/events": refined,
        **dict.fromkeys(AGGREGATES, aggregate),
        "dimensions/item_snapshot": {"snapshot_is_whole", "count_is_expected"},
        "dimensions/item_validity": {"reconciles_with_snapshots", "intervals_are_whole"},
        "aggregates/active_item_events": {"items_are_known", "methods_agree", "change_is_explained"},
    }
    descriptions = [GRAPH.get_check_spec(key).description for key in GRAPH.asset_check_keys]
    assert len(set(descriptions)) == 13
    assert all(descriptions)


def test_what_only_dimensions_need_is_a_group_of_its_own() -> None:
    """Else a backfill of the events' group would fail without dimensions."""
    groups: dict[str, set[str]] = {}
    for key in GRAPH.get_all_asset_keys():
        groups.setdefault(GRAPH.get(key).group_name or "", set()).add(key.path[-1])
    assert groups["dimensions"] == {"item_snapshots", "item_snapshot", "item_validity", "active_item_events"}
    assert not groups["events"] & groups["dimensions"]


def test_jobs_load_one_source_each() -> None:
    derived = {"refined/events", *AGGREGATES, "aggregates/active_item_events"}
    for name, tables in {
        "daily_load": derived | {"raw/regular_events"},
        "backfill_load": derived | {"raw/backfill_events"},
        "heal_load": derived | {"dimensions/item_validity"},
        "dimension_load": {"aggregates/active_item_events", "dimensions/item_snapshot", "dimensions/item_validity"},
    }.items():
        keys = DEFINITIONS.resolve_job_def(name).asset_layer.selected_asset_keys
        assert {key.to_user_string() for key in keys} == tables


def test_a_code_server_can_load_it() -> None:
    """Loading checks more than building, such as names that two definitions share."""
    DEFINITIONS.get_repository_def().load_all_definitions()


def test_the_page_of_health_disturbs_no_load() -> None:
    """It has no partitions, checks, pool or automation, and no load selects it."""
    node = GRAPH.get(HEALTH)
    assert (node.partitions_def, node.pools, node.automation_condition) == (None, set(), None)
    assert DEFINITIONS.resolve_job_def("health_report").asset_layer.selected_asset_keys == {HEALTH}


@pytest.mark.parametrize("is_running", [False, True])
def test_sensors_and_schedules_launch_their_jobs_and_start_as_the_settings_say(is_running: bool) -> None:
    definitions = build_defs(SETTINGS.model_copy(update={"sensors_running": is_running}))
    status = dg.DefaultScheduleStatus.RUNNING if is_running else dg.DefaultScheduleStatus.STOPPED
    schedules = [one for one in definitions.schedules or () if isinstance(one, dg.ScheduleDefinition)]
    assert {(one.name, one.job_name, one.cron_schedule, one.default_status) for one in schedules} == {
        ("maintenance_nightly", "maintenance", "30 3 * * *", status),
        ("health_report_daily", "health_report", "0 6 * * *", status),
        ("reconcile_daily", "reconcile", "30 6 * * *", status),
    }
    found = {
        (one.name, *(of.job_name for of in one.targets), one.minimum_interval_seconds, one.default_status.value)
        for one in definitions.get_repository_def().sensor_defs
    }
    assert found == {
        ("regular_exports_arrived", "daily_load", 60, status.value),
        ("backfill_exports_arrived", "backfill_load", 60, status.value),
        ("dimension_snapshots_arrived", "dimension_load", 60, status.value),
        ("heal", "heal_load", 300, status.value),
        # It launches nothing and frees what dead runs hold, so it runs by itself.
        ("dead_runs", 20, "RUNNING"),
    }


def test_a_sensor_sends_notices_where_anybody_is_told() -> None:
    """It starts nothing, so it runs from the start; without a receiver there is none (the test above)."""
    there = build_defs(SETTINGS.model_copy(update={"notify_urls": ("https://bi.example/hook",)})).get_repository_def()
    (sensor,) = [one for one in there.sensor_defs if one.name == "notices"]
    assert (sensor.default_status, sensor.minimum_interval_seconds) == (dg.DefaultSensorStatus.RUNNING, 60)


def test_every_asset_says_whose_it_is_and_how_to_recover_it_and_runs_in_chunks() -> None:
    owner = "Ada@example.com"
    graph = build_defs(SETTINGS.model_copy(update={"owners": (owner,)})).resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        assert list(graph.get(key).owners) == [owner]
    shown = {"dagster/column_schema", "dagster/column_lineage", "dagster/table_name", "dagster/uri"}
    for key in graph.get_all_asset_keys() - {HEALTH}:
        assert "A partition" in (graph.get(key).description or "")
    for key in graph.materializable_asset_keys - {HEALTH}:
        node = graph.get(key)
        assert "When a day is red" in (node.description or "")
        assert "To load a day again" in (node.description or "")
        assert shown <= node.metadata.keys()
        assert (node.backfill_policy, node.pools) == (dg.BackfillPolicy.multi_run(30), {"tidemark_load"})


@pytest.mark.parametrize(
    "name",
    ["refined/event:rows", "refined/events:row", "aggregates/event_counts:keys_added", "raw/regular_events:rows"],
)
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a bounded measure"):
        build_defs(Settings(projects=("10001",), change_bounds={name: {"growth": 1}}))
    build_defs(Settings(projects=("10001",), change_bounds={"aggregates/daily_revenue:revenue": {"growth": 1}}))
