"""The resources that every step of a load uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline_assets.domain.placement import NewBytes
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.build.folds import SharedFolds
from pipeline_assets.load.skew import SkewLog
from resources.spark.tasks import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from resources.iceberg.lakehouse import Lakehouse
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


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
