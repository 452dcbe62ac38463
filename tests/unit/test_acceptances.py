"""What a person lets through is named by table, day and project, and a loss is told before it is let go."""

from __future__ import annotations

import pytest

from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.deliveries.batch import judge_absent
from pipeline_assets.orchestration.assets import valid_acceptances
from tests.unit.test_batches import BATCH, DAY, PROJECT, SOON, a_delivery, a_record, markers_of, plan_of

RAW = "raw/regular_events"


def test_a_project_may_be_left_out_where_one_is_loaded_alone() -> None:
    whole = {f"{RAW}:{DAY}/{PROJECT}": "lost"}
    assert valid_acceptances({f"{RAW}:{DAY}": "lost"}, [PROJECT]) == whole
    assert valid_acceptances(whole, [PROJECT, "10002"]) == whole


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
        valid_acceptances({name: "lost"}, projects)


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
    plan.verdict = judge_absent(plan, is_other_source_there=False, first_arrival=DAY, settings=Settings(), now=SOON)
    record = plan.record(*plan.verdict, Settings())
    assert record.is_loss_accepted is is_let_go
    assert ("is let go whole" in plan.told_loss(Settings())) is is_let_go
    assert record.key == BATCH
