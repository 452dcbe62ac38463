"""What is old is reckoned by this machine's clock from times of the store's, so the two must be one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LakehouseError
from resources.iceberg.lake_objects import LakeObjects, require_true_clock
from tests.support.s3 import BUCKET


def test_a_clock_that_is_hours_away_from_the_stores_is_refused(bucket: Any) -> None:
    objects = LakeObjects(f"s3://{BUCKET}/lake/_tidemark")
    for minutes in (-50, 0, 50):
        require_true_clock(objects, lambda minutes=minutes: datetime.now(UTC) + timedelta(minutes=minutes))  # type: ignore[misc]
    for minutes in (-70, 70, 60 * 24 * 365):
        with pytest.raises(LakehouseError, match=r"while this machine has .*Correct this machine's clock"):
            require_true_clock(objects, lambda minutes=minutes: datetime.now(UTC) + timedelta(minutes=minutes))  # type: ignore[misc]
    assert list(objects.list()) == []


def test_a_folder_has_the_clock_of_its_machine(tmp_path: Path) -> None:
    require_true_clock(LakeObjects(str(tmp_path)), lambda: datetime(2062, 2, 2, tzinfo=UTC))
    assert list(tmp_path.iterdir()) == []
