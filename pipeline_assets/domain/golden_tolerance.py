"""Golden tolerances: how far a published figure may be from its golden total, as settings give it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal

from pydantic import BaseModel, ConfigDict, Field


class GoldenBound(BaseModel):
    """The tolerance of one measure of one table; a missing part uses the default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    relative: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    absolute: float | None = Field(default=None, ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class GoldenTolerance:
    """A relative and an absolute tolerance; the larger one applies."""

    relative: Decimal = Decimal(0)
    """As a share of the golden total."""
    absolute: Decimal = Decimal(0)
    """In units of the measure."""

    @classmethod
    def given(cls, relative: float, absolute: float) -> GoldenTolerance:
        """From the decimals as written: 0.1 is exactly a tenth, not the nearest double."""
        return cls(Decimal(repr(relative)), Decimal(repr(absolute)))

    def of(self, value: Decimal) -> Decimal:
        """The greatest allowed difference from this golden total."""
        return max(self.absolute, Context(prec=100).multiply(self.relative, value.copy_abs()))


def require_named_tolerances(tolerances: Mapping[str, GoldenBound]) -> None:
    """Raise ValueError for a name that is not `table:measure`, or an empty tolerance."""
    for name, bound in tolerances.items():
        if not re.fullmatch(r"[a-z_]+/[a-z_]+:[a-z_]+", name):
            msg = f"{name!r} is not `table:measure`, such as aggregates/daily_revenue:revenue"
            raise ValueError(msg)
        if bound == GoldenBound():
            msg = f"{name!r} needs relative, absolute or both"
            raise ValueError(msg)
