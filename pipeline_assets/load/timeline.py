"""Measures the steps of a load's tables by the failpoints that the load passes.

Contains: the steps, and the failpoint that ends each.
Add here: the name of another step, with its failpoint (resources/failpoints.py).
Does not contain: logging and tracing the steps (observed.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline_assets.domain.steps import Step
from resources.failpoints import Failpoint

STEP_ENDED_BY = {
    Failpoint.AFTER_PIN: "decide",
    Failpoint.AFTER_FILES: "write",
    Failpoint.AFTER_STAGE: "stage",
    Failpoint.AFTER_AUDIT: "audit",
    Failpoint.BEFORE_COMMIT: "judge",
    Failpoint.AFTER_COMMIT: "commit",
    Failpoint.BEFORE_LEDGER: "conclude",
    Failpoint.BETWEEN_TABLES: "record",
    Failpoint.AFTER_APPLY: "apply",
    Failpoint.AFTER_PUBLISH: "publish",
}
"""Failpoint -> the step that ends there; all other failpoints lie within a step."""
_OF_PUBLISH = {STEP_ENDED_BY[point] for point in (Failpoint.AFTER_APPLY, Failpoint.AFTER_PUBLISH)}


@dataclass
class Timeline:
    """The steps since the last call of `take`."""

    clock: Callable[[], int] = time.time_ns
    began: int = field(init=False)
    """When the current table began, in nanoseconds since 1970."""
    _last: int = field(init=False)
    _steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.resume()

    def resume(self) -> None:
        """Continue the load now; the time since its last step counts for no step."""
        self.began = self._last = self.clock()

    def passed(self, point: Failpoint, qualifier: str) -> None:
        """End a step if this failpoint ends one; `qualifier` is the table."""
        name = STEP_ENDED_BY.get(point)
        if name is not None:
            # No step is negative, even if the clock was set back.
            now = max(self._last, self.clock())
            self._steps.append(Step(qualifier, name, self._last, now))
            self._last = now

    def take(self, table: str | None = None) -> tuple[Step, ...]:
        """Remove and return the steps, or only the staging steps of one table; the publish belongs to the load as a whole."""
        taken = tuple(
            step for step in self._steps if table is None or (step.table == table and step.name not in _OF_PUBLISH)
        )
        self._steps = [step for step in self._steps if step not in taken]
        return taken
