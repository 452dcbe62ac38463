"""The graph, frozen: keys, dependencies, checks, jobs. A change here is a change of the product."""

from __future__ import annotations

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings

SETTINGS = Settings(projects=("1",))
HEALTH = dg.AssetKey(["ops", "health_report"])


def _definitions() -> dg.Definitions:
    return build_defs(SETTINGS)


def test_keys_and_dependencies() -> None:
    graph = _definitions().resolve_asset_graph()
    found = {
        key.to_user_string(): sorted(parent.to_user_string() for parent in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    }
    assert found == {
        "landing/regular_exports": [],
        "landing/backfill_exports": [],
        "raw/regular_events": ["landing/regular_exports"],
        "raw/backfill_events": ["landing/backfill_exports"],
        "refined/events": ["raw/backfill_events", "raw/regular_events"],
        "aggregates/daily_revenue": ["refined/events"],
        "aggregates/event_counts": ["refined/events"],
        "aggregates/active_users": ["refined/events"],
        "landing/item_snapshots": [],
        "dimensions/item_snapshot": ["landing/item_snapshots"],
        "dimensions/item_validity": ["dimensions/item_snapshot"],
        "aggregates/active_item_events": [
            "dimensions/item_snapshot",
            "dimensions/item_validity",
            "refined/events",
        ],
        "ops/health_report": [],
    }


def test_checks() -> None:
    graph = _definitions().resolve_asset_graph()
    found: dict[str, set[str]] = {}
    for check in graph.asset_check_keys:
        found.setdefault(check.asset_key.to_user_string(), set()).add(check.name)
    raw = {"delivery_reconciles", "delivery_complete"}
    aggregate = {"reconciles_with_refined", "change_is_explained", "reconciles_with_golden"}
    assert found == {
        "raw/regular_events": raw,
        "raw/backfill_events": raw,
        "refined/events": {
            "unique_event_key",
            "reconciles_with_raw",
            "change_is_explained",
            "reconciles_with_golden",
        },
        "aggregates/daily_revenue": aggregate,
        "aggregates/event_counts": aggregate,
        "aggregates/active_users": aggregate,
        "dimensions/item_snapshot": {"snapshot_is_whole", "count_is_expected"},
        "dimensions/item_validity": {"reconciles_with_snapshots", "intervals_are_whole"},
        "aggregates/active_item_events": {"items_are_known", "methods_agree", "change_is_explained"},
    }


def test_what_only_dimensions_need_is_a_group_of_its_own() -> None:
    """A backfill of the group of events ends well where no dimension is delivered."""
    graph = _definitions().resolve_asset_graph()
    groups: dict[str, set[str]] = {}
    for key in graph.get_all_asset_keys():
        groups.setdefault(graph.get(key).group_name or "", set()).add(key.path[-1])
    assert groups["dimensions"] == {"item_snapshots", "item_snapshot", "item_validity", "active_item_events"}
    assert not groups["events"] & groups["dimensions"]


def test_jobs_load_one_source_each() -> None:
    definitions = _definitions()
    joined = {"aggregates/active_item_events"}
    derived = {
        "refined/events",
        "aggregates/daily_revenue",
        "aggregates/event_counts",
        "aggregates/active_users",
    } | joined
    for name, raw in (("daily_load", "raw/regular_events"), ("backfill_load", "raw/backfill_events")):
        keys = definitions.resolve_job_def(name).asset_layer.selected_asset_keys
        assert {key.to_user_string() for key in keys} == derived | {raw}
    healed = definitions.resolve_job_def("heal_load").asset_layer.selected_asset_keys
    assert {key.to_user_string() for key in healed} == derived | {"dimensions/item_validity"}
    loaded = definitions.resolve_job_def("dimension_load").asset_layer.selected_asset_keys
    assert {key.to_user_string() for key in loaded} == joined | {"dimensions/item_snapshot", "dimensions/item_validity"}


def test_a_code_server_can_load_it() -> None:
    """Building definitions checks less than loading them does, such as names that two definitions share."""
    repository = _definitions().get_repository_def()
    repository.load_all_definitions()
    assert {job.name for job in repository.get_all_jobs()} >= {
        "daily_load",
        "backfill_load",
        "heal_load",
        "maintenance",
        "rollback",
        "release",
        "recover_exports",
        "rebuild",
        "health_report",
        "reconcile",
    }


def test_the_page_of_health_disturbs_no_load() -> None:
    """It has no partitions, checks, pool or automation; no load selects it; it is drawn by itself only where sensors run."""
    for is_running, status in ((False, dg.DefaultScheduleStatus.STOPPED), (True, dg.DefaultScheduleStatus.RUNNING)):
        definitions = build_defs(SETTINGS.model_copy(update={"sensors_running": is_running}))
        node = definitions.resolve_asset_graph().get(HEALTH)
        assert (node.partitions_def, node.pools, node.automation_condition) == (None, set(), None)
        assert definitions.resolve_job_def("health_report").asset_layer.selected_asset_keys == {HEALTH}
        for job in ("daily_load", "backfill_load", "heal_load"):
            assert HEALTH not in definitions.resolve_job_def(job).asset_layer.selected_asset_keys
        (schedule,) = [one for one in definitions.schedules or () if one.name == "health_report_daily"]
        assert isinstance(schedule, dg.ScheduleDefinition)
        assert (schedule.job_name, schedule.default_status) == ("health_report", status)


def test_golden_totals_that_came_late_are_compared_every_morning_where_sensors_run() -> None:
    for is_running, status in ((False, dg.DefaultScheduleStatus.STOPPED), (True, dg.DefaultScheduleStatus.RUNNING)):
        definitions = build_defs(SETTINGS.model_copy(update={"sensors_running": is_running}))
        (schedule,) = [one for one in definitions.schedules or () if one.name == "reconcile_daily"]
        assert isinstance(schedule, dg.ScheduleDefinition)
        assert (schedule.job_name, schedule.cron_schedule, schedule.default_status) == (
            "reconcile",
            "30 6 * * *",
            status,
        )


def test_sensors_launch_their_jobs_and_start_as_the_settings_say() -> None:
    for is_running, status in ((False, dg.DefaultSensorStatus.STOPPED), (True, dg.DefaultSensorStatus.RUNNING)):
        sensors = (
            build_defs(SETTINGS.model_copy(update={"sensors_running": is_running})).get_repository_def().sensor_defs
        )
        assert {
            (one.name, one.job_name, one.minimum_interval_seconds, one.default_status)
            for one in sensors
            if one.name != "dead_runs"
        } == {
            ("regular_exports_arrived", "daily_load", 60, status),
            ("backfill_exports_arrived", "backfill_load", 60, status),
            ("dimension_snapshots_arrived", "dimension_load", 60, status),
            ("heal", "heal_load", 300, status),
        }
        # It launches nothing and frees what dead runs hold: it runs whether the others do or not.
        (monitor,) = [one for one in sensors if one.name == "dead_runs"]
        assert (monitor.name, monitor.minimum_interval_seconds, monitor.default_status) == (
            "dead_runs",
            20,
            dg.DefaultSensorStatus.RUNNING,
        )


def test_a_sensor_sends_notices_where_anybody_is_told() -> None:
    """It starts nothing, so it runs from the start; without a receiver there is none."""
    there = build_defs(SETTINGS.model_copy(update={"notify_urls": ("https://bi.example/hook",)})).get_repository_def()
    (sensor,) = [one for one in there.sensor_defs if one.name == "notices"]
    assert (sensor.default_status, sensor.minimum_interval_seconds) == (dg.DefaultSensorStatus.RUNNING, 60)
    assert not [one for one in _definitions().get_repository_def().sensor_defs if one.name == "notices"]


def test_every_asset_says_whose_it_is_and_how_to_recover_it_and_runs_in_chunks() -> None:
    owner = "Ada@example.com"
    graph = build_defs(SETTINGS.model_copy(update={"owners": (owner,)})).resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        assert list(graph.get(key).owners) == [owner]
    for key in graph.get_all_asset_keys() - {HEALTH}:
        assert "A partition" in (graph.get(key).description or "")
    for key in graph.materializable_asset_keys - {HEALTH}:
        node = graph.get(key)
        assert "When a day is red" in (node.description or "")
        assert "To load a day again" in (node.description or "")
        assert {
            "dagster/column_schema",
            "dagster/column_lineage",
            "dagster/table_name",
            "dagster/uri",
        } <= node.metadata.keys()
        assert node.backfill_policy == dg.BackfillPolicy.multi_run(30)
        assert node.pools == {"tidemark_load"}


def test_every_check_says_what_it_holds() -> None:
    graph = _definitions().resolve_asset_graph()
    descriptions = [graph.get_check_spec(key).description for key in graph.asset_check_keys]
    assert len(set(descriptions)) == 13
    assert all(descriptions)


@pytest.mark.parametrize(
    "name",
    ["refined/event:rows", "refined/events:row", "aggregates/event_counts:keys_added", "raw/regular_events:rows"],
)
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a bounded measure"):
        build_defs(Settings(projects=("10001",), change_bounds={name: {"growth": 1}}))
    build_defs(Settings(projects=("10001",), change_bounds={"aggregates/daily_revenue:revenue": {"growth": 1}}))
