"""What `load` lets through has to name its project where there are several; a snapshot of a dimension has none."""

from __future__ import annotations

import pytest

from pipeline_assets.cli.run import require_one_meant
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.requests import LoadSource

REASONS, PROJECTS = {"accept_changes": "the shops were closed"}, ("10001", "10002")


@pytest.mark.parametrize("source", [LoadSource.REGULAR, LoadSource.BACKFILL])
def test_events_of_several_projects_need_a_name(source: LoadSource) -> None:
    with pytest.raises(UsageError, match=r"would apply to all projects \(10001, 10002\)"):
        require_one_meant(source, REASONS, (), PROJECTS)
    require_one_meant(source, REASONS, PROJECTS[:1], PROJECTS)
    require_one_meant(source, REASONS, (), PROJECTS[:1])


def test_a_snapshot_needs_none() -> None:
    require_one_meant(LoadSource.DIMENSIONS, REASONS, (), PROJECTS)
