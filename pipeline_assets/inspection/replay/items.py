"""Which dimension snapshot a day of events is joined with today, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pipeline_assets.domain.input_state import InputDay
from pipeline_assets.domain.recorded_settings import differing
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.inspection.replay.origin import Obstacle, Origin
from pipeline_assets.load.staleness.as_of import items_of_days
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.tables.kinds import is_dimension
from pipeline_assets.tables.table import Table

_DELIVER = "Have the snapshot of the day delivered; or replay it from its own items: --as-published"
_SET_BACK = "Replay it with the settings of then in the environment; or from its own items: --as-published"


@dataclass(frozen=True)
class Items:
    """The items that a load would join with a day's events."""

    days: tuple[InputDay, ...] = ()
    """The snapshot's day; empty where no snapshot applies, or the table joins none."""
    reason: str = ""
    """Why a load would not build the day now; empty where it would."""

    @property
    def are_missing(self) -> bool:
        """Whether there are events but no items to join."""
        return bool(self.reason) and not self.days


def items_of(facts: Facts, table: Table, key: Slice, now: datetime) -> Items:
    """The choice for a slice of a table joined with a dimension, from the ledger."""
    assert table.dimension is not None
    items = items_of_days(facts, table.dimension, now)
    days = tuple(items.inputs(key.event_date))
    events = (facts.records[name].get(key) for name in table.upstream if not is_dimension(name))
    if not any(record is not None and record.digest != EMPTY for record in events):
        # Without events there is nothing to join.
        return Items(days)
    wait = items.wait_of(key.event_date)
    if wait is None and not days:
        lacks = f"{table.dimension.snapshot.key} holds no snapshot of"
        if table.dimension.intervals_are_delivered(facts.settings):
            lacks = f"{table.dimension.validity.key} does not tell of"
        return Items(reason=f"{lacks} {key.event_date} or of a day before it")
    return Items(days, wait.reason if wait is not None else "")


def without_items(
    table: Table, origin: Origin | Obstacle, today: Settings, reason: str, choose: Callable[[Settings], Items]
) -> list[Obstacle]:
    """Why a day cannot be built from current inputs; settings first, if changed settings are the reason.

    `reason`: why the current settings choose no items; `choose`: the choice that other settings would make now.
    """
    told = Obstacle(reason, _DELIVER)
    if isinstance(origin, Obstacle) or not choose(origin.settings).days:
        return [told]
    sides = ({name: getattr(side, name) for name in table.kind.chosen_by} for side in (origin.settings, today))
    changed = differing(*sides)
    return [*(Obstacle(f"setting {name}: {then} -> {now}", _SET_BACK) for name, (then, now) in changed.items()), told]
