"""What a person lets through is named by table, day and project, and a loss is told before it is let go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline_assets.domain.checks import AcceptanceKind, Acceptances, read_acceptances
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice
from pipeline_assets.load.deliveries.arrivals import judge_absent
from pipeline_assets.orchestration.assets import KINDS
from tests.unit.load.test_batches import BATCH, DAY, PROJECT, SOON, a_delivery, a_record, markers_of, plan_of

RAW = "raw/regular_events"


def _read(name: str, projects: list[str], kind: AcceptanceKind = AcceptanceKind.MISSING) -> Acceptances:
    return read_acceptances({kind: {name: "lost"}}, KINDS, projects)


@pytest.mark.parametrize("kind", AcceptanceKind)
def test_a_project_may_be_left_out_where_one_is_loaded_alone(kind: AcceptanceKind) -> None:
    """A loss that is named among changes, as it was once, is a loss."""
    whole = {(RAW, Slice(DAY, PROJECT)): "lost"}
    assert _read(f"{RAW}:{DAY}", [PROJECT], kind) == whole
    assert _read(f"{RAW}:{DAY}/{PROJECT}", [PROJECT, "10002"], kind) == whole


def test_a_change_and_a_loss_are_told_apart() -> None:
    key = Slice(DAY, PROJECT)
    given = read_acceptances(
        {
            AcceptanceKind.CHANGE: {f"refined/events:{DAY}": "corrected"},
            AcceptanceKind.MISSING: {f"{RAW}:{DAY}": "expired"},
        },
        KINDS,
        [PROJECT],
    )
    assert given == {("refined/events", key): "corrected", (RAW, key): "expired"}
    with pytest.raises(SettingsError, match="has no deliveries that could be missing"):
        _read(f"refined/events:{DAY}", [PROJECT])


def test_a_day_of_a_dimension_is_accepted_for_all_projects_together() -> None:
    table = "dimensions/item_snapshot"
    kinds = {table: AcceptanceKind.CHANGE}
    for name in (f"{table}:{DAY}", f"{table}:{DAY}/{ALL_PROJECTS}"):
        given = read_acceptances({AcceptanceKind.CHANGE: {name: "closed"}}, kinds, [PROJECT, "10002"], {table})
        assert given == {(table, Slice(DAY, ALL_PROJECTS)): "closed"}
    with pytest.raises(SettingsError, match="names a project that this run does not load"):
        read_acceptances({AcceptanceKind.CHANGE: {f"{table}:{DAY}/{PROJECT}": "why"}}, kinds, [PROJECT], {table})


@pytest.mark.parametrize(
    ("name", "projects", "said"),
    [
        (f"{RAW}:{DAY}", [PROJECT, "10002"], "names no project, and this run loads 10001, 10002"),
        (f"{RAW}:{DAY}/7", [PROJECT], "names a project that this run does not load"),
        (f"{RAW}:soon/{PROJECT}", [PROJECT], "is not `table:day/project` with a reason"),
        (f"raw/other:{DAY}", [PROJECT], "is not `table:day/project` with a reason"),
    ],
)
def test_what_names_too_much_or_nothing_is_refused(name: str, projects: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        _read(name, projects)


def test_a_reason_says_what_it_lets_go_and_where_it_is_not_needed() -> None:
    lost = plan_of([a_delivery(9)], [a_record(9), a_record(10), a_record(11)], reasons={DAY: "expired"})
    assert lost.told_loss(Settings()) == (
        f"lets go 2 objects with 10 rows of hours 10, 11, first {a_record(10).object_key}: expired"
    )
    whole = plan_of([a_delivery(9)], [a_record(9)], reasons={DAY: "expired"})
    assert "lacks nothing" in whole.told_loss(Settings())


@pytest.mark.parametrize(("hours", "is_let_go"), [([], True), (range(23), True), (range(24), False)])
def test_a_day_is_let_go_whole_only_where_it_lacks_anything(hours: list[int], is_let_go: bool) -> None:
    plan = plan_of(markers=markers_of(hours), reasons={DAY: "the app was down"})
    verdict = judge_absent(plan, is_other_source_there=False, first_arrival=DAY, settings=Settings(), now=SOON)
    record = plan.record(*verdict, Settings())
    assert record.is_loss_accepted is is_let_go
    assert ("is let go whole" in replace(plan, verdict=verdict).told_loss(Settings())) is is_let_go
    assert record.key == BATCH
