"""The reason why a slice is not built although it may be stale: it waits, or it is refused because an input is missing."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_assets.domain.checks import Evaluation


@dataclass(frozen=True)
class Wait:
    """Why a slice cannot be built now."""

    reason: str
    is_early: bool = False
    """It waits for a delivery whose deadline lies ahead."""
    failure: Evaluation | None = None
    """The evaluation that refuses the slice; None if it only waits."""
