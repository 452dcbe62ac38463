"""Fixtures of the orchestration's tests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import dagster as dg
import pytest

from pipeline_assets.domain.settings import Settings
from tests.support.builders import PROJECT


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "landing").mkdir()
    return Settings(
        landing_url=str(tmp_path / "landing"), warehouse_url=str(tmp_path / "warehouse"),
        catalog_url=f"sqlite:///{tmp_path}/ledger.db", projects=(PROJECT,), calendar_start=date(2026, 2, 1),
    )  # fmt: skip
