"""What tests of the orchestration share."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory, closed after the test."""
    with dg.DagsterInstance.ephemeral() as found:
        yield found
