"""Test cases as a table: each name beside its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def cases(names: str | tuple[str, ...], table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by case name -> values."""
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))
