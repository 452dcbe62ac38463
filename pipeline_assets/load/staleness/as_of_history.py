"""Chooses the items for a day of events if the intervals of a dimension are delivered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.input_state import InputDay
from pipeline_assets.domain.slices import EMPTY, Digest, Verdict
from pipeline_assets.load.staleness.as_of import ItemsOfDays
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.waits import Wait
from pipeline_assets.tables.table import Dimension


def items_of_days(facts: Facts, dimension: Dimension, now: datetime) -> ItemsOfDays:
    """The rule for a dimension: delivered intervals or snapshots; `facts` must include the records of its tables."""
    is_delivered = dimension.intervals_are_delivered(facts.settings)
    return (ItemsOfDelivery if is_delivered else ItemsOfDays)(facts, dimension, now)


class ItemsOfDelivery(ItemsOfDays):
    """The items as of days, by delivered intervals; a published snapshot of the day must agree with them."""

    def begin_by(self, day: date) -> bool:
        """Whether intervals cover this day or an earlier one; a month that is held or refused counts too."""
        month = self._validity.kind.slice_day(day)
        first = self._facts.first_snapshots.get(self._validity.key)
        if first is not None and first < month:
            return True
        record = self._record(self._validity.key, month)
        if record is None:
            return False
        days = [name.day for name in (record.input_state.upstream if record.input_state is not None else ())]
        return min(days) <= day if days else record.verdict in (Verdict.HELD, Verdict.REFUSED)

    def inputs(self, day: date) -> Mapping[InputDay, Digest]:
        """The day of the delivered history used for `day`, and the snapshot of that day if one is published."""
        chosen = self._chosen(day)
        items = self._items(chosen) if chosen is not None else None
        if chosen is None or items is None:
            return {}
        inputs = {InputDay(self._validity.key, chosen): items}
        snapshot = self._record(self._snapshot, chosen)
        if snapshot is not None and snapshot.digest != EMPTY and self._is_good(snapshot):
            inputs[InputDay(self._snapshot, chosen)] = snapshot.digest
        return inputs

    def wait_of(self, day: date) -> Wait | None:
        """Why events of a day cannot be joined now; None if they can. After a refused delivery, older intervals stay usable."""
        chosen = self._chosen(day)
        month = self._validity.kind.slice_day(chosen or day)
        record = self._record(self._validity.key, month)
        is_held = record is not None and record.verdict is Verdict.HELD and not self._is_good(record)
        if chosen is not None and not is_held:
            return None
        if record is not None and (is_held or record.verdict is Verdict.REFUSED):
            return Wait(f"{self._validity.key} {month:%Y-%m} is {record.verdict.value}")
        if not self.begin_by(day):
            return None
        if self._now <= deadline(day, self._facts.settings):
            return Wait(f"{self._validity.key} does not tell of {day} yet", is_early=True)
        return self._by_policy(f"{self._validity.key} does not tell of {day}", "intervals")

    def _choose(self, day: date) -> date | None:
        return day if self._holds(day) else self._previous(day)

    def _holds(self, day: date) -> bool:
        return self._items(day) is not None

    def _items(self, day: date) -> Digest | None:
        record = self._record(self._validity.key, self._validity.kind.slice_day(day))
        state = record.input_state if record is not None else None
        return state.upstream.get(InputDay(self._validity.key, day)) if state is not None else None
