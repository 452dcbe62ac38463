"""The resources that every step of a load uses, and the skew of its heavy steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipeline_assets.domain.placement import NewBytes
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import KeyShare, StepSkew, Unit, sizes_of
from pipeline_assets.load.build.folds import SharedFolds
from resources.spark.tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from resources.iceberg.lakehouse import Lakehouse
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


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


@dataclass(frozen=True)
class Runtime:
    """The resources of a step of the load."""

    lakehouse: Lakehouse
    ledger: Ledger
    landing: LandingStore
    settings: Settings
    log: Callable[[str], None] = lambda _: None
    """Writes a line of progress for the operator. Names in a line may come from data, so it is escaped and shortened."""
    folds: SharedFolds = field(default_factory=SharedFolds, compare=False)
    """What was folded of refined.events for all aggregates of this load at once."""
    skew: SkewLog = field(default_factory=SkewLog, compare=False)
    """The skew of this load's heavy steps."""
    new_bytes: NewBytes = field(default_factory=NewBytes, compare=False)
    """What this load has found to read."""

    def __post_init__(self) -> None:
        """Wrap the log so that every line is plain text, for a terminal and for Dagster's log."""
        log = self.log
        object.__setattr__(self, "log", lambda text: log(shown(text)))

    @property
    def tasks(self) -> Tasks:
        """Runs the steps of the load; starts Spark on first use, where a step needs it."""
        return Tasks(lambda: self.spark, self.settings, self.new_bytes)

    @property
    def spark(self) -> SparkSession:
        """The lakehouse's Spark session; it is started on first use."""
        return self.lakehouse.spark
