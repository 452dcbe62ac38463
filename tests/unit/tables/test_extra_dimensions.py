"""An external dimension or aggregate is one module and one setting; a name that leads nowhere is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import PROJECT_ROOT
from pipeline_assets.tables import registry
from pipeline_assets.tables.dimension import ITEM, dimension
from pipeline_assets.tables.table import AggregateTable

GRAPH = """
import json
from pipeline_assets.definitions import build_defs
graph = build_defs().resolve_asset_graph()
print(json.dumps({
    "parents": {key.to_user_string(): sorted(one.to_user_string() for one in graph.get(key).parent_keys)
                for key in graph.get_all_asset_keys() if "shop" in key.path[-1] or "city" in key.path[-1]},
    "checks": [sorted(check.name for check in graph.asset_check_keys if word in check.asset_key.path[-1])
               for word in ("shop", "city")],
    "job": sorted(key.to_user_string() for key in
                  build_defs().resolve_job_def("dimension_load").asset_layer.selected_asset_keys),
}))
"""


def _run(tmp_path: Path, name: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "TIDEMARK_EXTRA_DIMENSIONS": name, "TIDEMARK_PROJECTS": "10001",
        "TIDEMARK_EXTRA_AGGREGATES": "tests.scenarios.city_events:CITY_EVENTS",
        "TIDEMARK_CATALOG_URL": f"sqlite:///{tmp_path}/catalog.db", "PYTHONPATH": str(PROJECT_ROOT),
    }  # fmt: skip
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_graph_shows_them_with_their_checks_and_the_job_loads_a_dimension(tmp_path: Path) -> None:
    done = _run(tmp_path, "tests.scenarios.shops:SHOP", sys.executable, "-c", GRAPH)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown["parents"] == {
        "landing/shop_snapshots": [],
        "dimensions/shop_snapshot": ["landing/shop_snapshots"],
        "dimensions/shop_validity": ["dimensions/shop_snapshot"],
        "aggregates/city_events": ["refined/events"],
    }
    assert shown["checks"] == [
        ["count_is_expected", "intervals_are_whole", "reconciles_with_snapshots", "snapshot_is_whole"],
        ["change_is_explained", "cities_are_known", "reconciles_with_golden", "reconciles_with_refined"],
    ]
    assert {"dimensions/shop_snapshot", "dimensions/shop_validity", "dimensions/item_snapshot"} < set(shown["job"])


@pytest.mark.parametrize(("name", "reason"), [
    ("no.such.module:SHOP", "cannot be imported"),
    ("tests.scenarios.city_events:CITY_EVENTS", "is no Dimension"),
    ("pipeline_assets.tables.dimension:ITEM", "has the name of another Dimension, item"),
])  # fmt: skip
def test_a_name_that_leads_nowhere_is_refused_in_one_sentence(tmp_path: Path, name: str, reason: str) -> None:
    done = _run(tmp_path, name, str(Path(sys.executable).parent / "tidemark"), "status")
    assert done.returncode == 2
    assert f"TIDEMARK_EXTRA_DIMENSIONS: {name} {reason}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no.such.module:TABLE", "cannot be imported"),
        ("tests.scenarios.city_events:NONE", "cannot be imported"),
        ("tests.scenarios.city_events:CITIES_ARE_KNOWN", "is no AggregateTable"),
        ("pipeline_assets.tables.aggregates:EVENT_COUNTS", "has the name of another AggregateTable"),
    ],
)
def test_a_name_of_no_aggregate_is_refused(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_EXTRA_AGGREGATES", name)
    with pytest.raises(SettingsError) as refusal:
        registry._named("extra_aggregates", AggregateTable, registry.AGGREGATES)
    assert str(refusal.value).startswith(f"TIDEMARK_EXTRA_AGGREGATES: {name} {reason}")


def test_dimensions_are_alike_but_for_their_name() -> None:
    other = dimension("shop", "x")
    assert [column.name for column in other.snapshot.columns] == [column.name for column in ITEM.snapshot.columns]
    assert other.validity.upstream == ("dimensions/shop_snapshot",)
    for name in ("Shop", "shop-1", "", "s" * 50, "1shop"):
        with pytest.raises(ValueError, match="is not a name of small letters"):
            dimension(name, "x")
