"""What every step of a load works with.

Contains: lakehouse, ledger, landing, settings and log of one process.
Add here: another resource that steps share.
Does not contain: opening them (cli/runtime.py, orchestration/runtime.py), what a load is asked to do
(request.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.load.build.shared_events import SharedEvents
from pipeline_assets.load.skew import SkewLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from resources.iceberg.lakehouse import Lakehouse
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger


@dataclass(frozen=True)
class Runtime:
    """Everything a step of the load path works with."""

    lakehouse: Lakehouse
    ledger: Ledger
    landing: LandingStore
    settings: Settings
    log: Callable[[str], None] = lambda _: None
    """Writes a line of progress, with counts, for the operator; names in it are data, and no line of it is endless."""
    narrow_events: SharedEvents = field(default_factory=SharedEvents, compare=False)
    """Of this load's aggregates."""
    skew: SkewLog = field(default_factory=SkewLog, compare=False)
    """Of this load's heavy steps."""

    def __post_init__(self) -> None:
        """Make every line plain text, whether it goes to a terminal or to Dagster's log."""
        log = self.log
        object.__setattr__(self, "log", lambda text: log(shown(text)))

    @property
    def spark(self) -> SparkSession:
        """The lakehouse's session; starts one where nothing needed it yet."""
        return self.lakehouse.spark
