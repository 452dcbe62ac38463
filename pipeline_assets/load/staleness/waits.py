"""Why a slice is not built although it may be stale: it waits, or its day is refused for what is missing.

Contains: the value.
Add here: another thing to tell of it.
Does not contain: the rules (decide.py, snapshots.py, as_of.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_assets.domain.checks import Evaluation


@dataclass(frozen=True)
class Wait:
    """What is in the way."""

    reason: str
    is_early: bool = False
    """It waits for a delivery whose deadline lies ahead."""
    failure: Evaluation | None = None
    """Of the check that refuses it; None where it only waits."""
