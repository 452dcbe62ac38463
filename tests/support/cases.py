"""Cases of a test as a table: each case's name stands beside its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def cases(names: str | tuple[str, ...], table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by name of a case -> its values."""
    return pytest.mark.parametrize(names, list(table.values()), ids=list(table))
