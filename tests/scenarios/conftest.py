"""Fixtures of several scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.builders import PROJECT
from tests.support.export_api import Vendor, a_vendor_with_keys


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    """A vendor whose keys are in the environment, its address is not."""
    with a_vendor_with_keys(monkeypatch, PROJECT) as found:
        yield found
