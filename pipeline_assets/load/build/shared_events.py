"""Narrow events that a load reads from refined.events once, for all aggregates built from the same days."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms.narrow_events import narrow_events
from resources.iceberg.metadata import slices_condition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pipeline_assets.load.runtime import Runtime


class SharedEvents:
    """Holds at most one frame at a time, cached by Spark in memory, or on disk if memory is short."""

    def __init__(self) -> None:
        """Start without a frame."""
        self._frame: DataFrame | None = None
        self._pin: int | None = None
        self._slices: frozenset[Slice] = frozenset()

    def of(self, runtime: Runtime, pin: int, slices: Collection[Slice]) -> DataFrame:
        """The narrow events of these slices as of the snapshot `pin`; read on first use."""
        if self._frame is None or pin != self._pin or not self._slices.issuperset(slices):
            self.release()
            refined = runtime.lakehouse.read(REFINED_EVENTS, pin).where(slices_condition(REFINED_EVENTS, slices))
            self._frame, self._pin, self._slices = (
                narrow_events(refined, runtime.settings).persist(),
                pin,
                frozenset(slices),
            )
        if self._slices == frozenset(slices):
            return self._frame
        return self._frame.where(slices_condition(REFINED_EVENTS, slices))

    def release(self) -> None:
        """Free the cached frame."""
        if self._frame is not None:
            self._frame.unpersist()
        self._frame = None


def input_of(runtime: Runtime, table: AggregateTable, pin: int, slices: Collection[Slice]) -> DataFrame:
    """The input of a table's build and controls: shared narrow events, or refined.events itself."""
    if table.reads_narrow_events:
        return runtime.narrow_events.of(runtime, pin, slices)
    return runtime.lakehouse.read(REFINED_EVENTS, pin).where(slices_condition(REFINED_EVENTS, slices))
