"""How far a published figure may be from its golden total, as settings give it.

Contains: the tolerance, what makes its name wrong.
Add here: another way to be near enough.
Does not contain: the comparison (golden.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal

from pydantic import BaseModel, ConfigDict, Field


class GoldenBound(BaseModel):
    """The tolerance of one measure of one table; what is not given is as for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    relative: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    absolute: float | None = Field(default=None, ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class GoldenTolerance:
    """The larger of the two counts."""

    relative: Decimal = Decimal(0)
    """Share of the golden total."""
    absolute: Decimal = Decimal(0)
    """In units of the measure."""

    @classmethod
    def given(cls, relative: float, absolute: float) -> GoldenTolerance:
        """As a person wrote them: 0.1 is a tenth, and not the binary number next to it."""
        return cls(Decimal(repr(relative)), Decimal(repr(absolute)))

    def of(self, value: Decimal) -> Decimal:
        """How far from this golden total a figure may be."""
        return max(self.absolute, Context(prec=100).multiply(self.relative, value.copy_abs()))


def require_named_tolerances(tolerances: Mapping[str, GoldenBound]) -> None:
    """Raise ValueError for a name that is not `table:measure`, or a tolerance that says nothing."""
    for name, bound in tolerances.items():
        if not re.fullmatch(r"[a-z_]+/[a-z_]+:[a-z_]+", name):
            msg = f"{name!r} is not `table:measure`, such as aggregates/daily_revenue:revenue"
            raise ValueError(msg)
        if bound == GoldenBound():
            msg = f"{name!r} needs relative, absolute or both"
            raise ValueError(msg)
