"""Change bounds for single measures of single tables, as settings give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class ChangeBound(BaseModel):
    """How far one measure of a table's final slices may change, as a share; a missing side uses the default bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shrink: float | None = Field(default=None, ge=0)
    growth: float | None = Field(default=None, ge=0)


KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED = "keys_added", "keys_removed", "keys_changed"
"""Measures of a slice's key changes, as shares of the keys it had before."""


def require_named_bounds(bounds: Mapping[str, ChangeBound]) -> None:
    """Raise ValueError for a name that is not `table:measure`, or a bound that sets no usable limit."""
    for name, bound in bounds.items():
        if not re.fullmatch(r"[a-z_]+/[a-z_]+:[a-z_]+", name):
            msg = f"{name!r} is not `table:measure`, such as refined/events:rows"
            raise ValueError(msg)
        is_of_keys = name.partition(":")[2] in (KEYS_ADDED, KEYS_REMOVED, KEYS_CHANGED)
        if bound == ChangeBound() or (is_of_keys and bound.shrink is not None):
            msg = f"{name!r} needs {'growth' if is_of_keys else 'shrink, growth or both'}, as a share"
            raise ValueError(msg)
