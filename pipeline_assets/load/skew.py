"""The skew of a load's heavy steps: forecast before each step, measured after it, recorded with the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipeline_assets.domain.skew import KeyShare, StepSkew, Unit, sizes_of

if TYPE_CHECKING:
    from pipeline_assets.load.runtime import Runtime


@dataclass
class SkewLog:
    """The heavy steps of one load; only the last attempt of each step is kept."""

    announce: Callable[[StepSkew], None] = lambda _: None
    """Called with each step before it begins."""
    _steps: dict[tuple[str, str], StepSkew] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget all steps, because another load begins."""
        self._steps.clear()

    def forecast(self, step: StepSkew, runtime: Runtime) -> None:
        """Log a step that is about to begin, with a warning if one task has far more work than the others."""
        settings = runtime.settings
        worth = settings.split_object_bytes if step.unit is Unit.BYTES else settings.hot_key_rows
        judged = step.judged(settings.skew_warning_ratio, worth)
        self._steps[step.table, step.step] = judged
        if judged.is_uneven:
            runtime.log(f"{judged.table}: {judged.text}")
        if judged.warning is not None:
            runtime.log(f"{judged.table}: warning: {judged.warning}: docs/operations.md, One task takes most of a load")
        self.announce(judged)

    def measured(
        self, table: str, step: str, tasks: Sequence[tuple[int, int]], runtime: Runtime, *found: KeyShare
    ) -> None:
        """Record the rows and bytes of each task beside the forecast, and key shares (`found`) that only tasks can measure."""
        sizes, in_bytes = (sizes_of(float(task[at]) for task in tasks) for at in (0, 1))
        known = self._steps[table, step]
        keys = (*known.keys, *found)
        self._steps[table, step] = replace(known, measured=sizes, measured_bytes=in_bytes, keys=keys)
        also = "".join(f"; {share.text}" for share in found)
        is_uneven = known.is_uneven or sizes.exceeds(runtime.settings.skew_warning_ratio, runtime.settings.hot_key_rows)
        if not is_uneven:
            return
        runtime.log(
            f"{table}: {step} done: {sizes.total:,.0f} rows in {sizes.tasks} tasks, "
            f"largest to median {sizes.ratio:.1f}, forecast {known.forecast.ratio:.1f}{also}"
        )

    @property
    def steps(self) -> list[StepSkew]:
        """The steps, in the order in which they began."""
        return list(self._steps.values())
