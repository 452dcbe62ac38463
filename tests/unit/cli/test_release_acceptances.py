"""`release --accept-changes` accepts for every slice that the following load builds from a held one."""

from __future__ import annotations

from datetime import date

from pipeline_assets.cli.correct import acceptances_of
from pipeline_assets.domain.checks import AcceptanceKind, read_acceptances
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Slice
from pipeline_assets.operations.decisions import Held
from pipeline_assets.orchestration.assets import KINDS, SHARED
from pipeline_assets.tables.dimension import ITEM

DAY, PROJECTS = date(2026, 2, 4), ("10001", "10002")
AGGREGATE = "aggregates/active_item_events"


def _accepted(table: str, project: str, loaded: tuple[str, ...]) -> set[tuple[str, Slice]]:
    held = [Held(table, Slice(DAY, project), "was wrong", EMPTY, EMPTY, "is built again")]
    config = {AcceptanceKind.CHANGE: acceptances_of(held, PROJECTS, "it was right")}
    return set(read_acceptances(config, KINDS, loaded, SHARED))


def test_a_released_snapshot_accepts_its_month_and_the_day_of_every_project() -> None:
    assert _accepted(ITEM.snapshot.key, ALL_PROJECTS, PROJECTS) == {
        (ITEM.snapshot.key, Slice(DAY, ALL_PROJECTS)),
        (ITEM.validity.key, Slice(date(2026, 2, 1), ALL_PROJECTS)),
        *((AGGREGATE, Slice(DAY, project)) for project in PROJECTS),
    }


def test_a_released_day_of_events_accepts_changes_of_its_own_project_alone() -> None:
    accepted = _accepted("refined/events", "10001", ("10001",))
    assert (AGGREGATE, Slice(DAY, "10001")) in accepted
    assert {key for _, key in accepted} == {Slice(DAY, "10001")}
