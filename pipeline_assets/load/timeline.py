"""When a load did what: its tables and the steps of each, by the points that it passes.

Contains: steps, and which point ends which.
Add here: the name of another step, with its point (resources/failpoints.py).
Does not contain: telling anybody (observed.py).
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
"""Point -> the step that is done there; all other points lie within a step."""
_OF_PUBLISH = {STEP_ENDED_BY[point] for point in (Failpoint.AFTER_APPLY, Failpoint.AFTER_PUBLISH)}


@dataclass
class Timeline:
    """The steps since the last time that somebody took them."""

    clock: Callable[[], int] = time.time_ns
    began: int = field(init=False)
    """When the present table began."""
    _last: int = field(init=False)
    _steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin now."""
        self.resume()

    def resume(self) -> None:
        """The load goes on now; what passed since its last step is no part of it."""
        self.began = self._last = self.clock()

    def passed(self, point: Failpoint, qualifier: str) -> None:
        """The load passes a point."""
        name = STEP_ENDED_BY.get(point)
        if name is not None:
            # A clock that was set back makes no step negative.
            now = max(self._last, self.clock())
            self._steps.append(Step(qualifier, name, self._last, now))
            self._last = now

    def take(self, table: str | None = None) -> tuple[Step, ...]:
        """What was done since the last time; of a table, what was done to stage it: the publish belongs to the load."""
        taken = tuple(
            step for step in self._steps if table is None or (step.table == table and step.name not in _OF_PUBLISH)
        )
        self._steps = [step for step in self._steps if step not in taken]
        return taken
