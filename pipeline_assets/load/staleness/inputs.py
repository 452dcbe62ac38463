"""Input states: the present inputs of a slice, compared with those of its last build."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import Enum, auto

from pipeline_assets.domain.causes import Cause, CauseKind
from pipeline_assets.domain.input_state import InputDay, InputState
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice
from pipeline_assets.load.deliveries.snapshots import is_ruled_out
from pipeline_assets.load.staleness.as_of import ItemsOfDays
from pipeline_assets.load.staleness.facts import Facts
from pipeline_assets.load.staleness.history import EXCLUDED, state_of_month
from pipeline_assets.tables.registry import table_by_key
from pipeline_assets.tables.table import Table


def judging(table: Table, settings: Settings) -> str:
    """The code, checks and bounds of a refusal, as text; if it differs, a refused slice is tried again."""
    own = {
        name: (bound.shrink, bound.growth)
        for name, bound in sorted(settings.change_bounds.items())
        if name.startswith(f"{table.key}:")
    }
    bounds = {
        name: own if name == "change_bounds" else getattr(settings, name)
        for rule in table.checks
        for name in rule.settings_read
    }
    rules = [(rule.name, rule.is_blocking) for rule in table.checks]
    return f"{table.code_version(settings)} {rules} {bounds}"


class Match(Enum):
    """How the present input state compares with a recorded one."""

    SAME = auto()
    NEIGHBOURS_DIFFER = auto()
    """Only slices of other days differ; the result is the same if their rows with shared keys are the same."""
    DIFFERENT = auto()


class Inputs:
    """The present inputs of a table's slices."""

    def __init__(self, facts: Facts, table: Table, items: ItemsOfDays | None = None) -> None:
        """`facts` must include records of the table and its upstream tables for all days in reach; `items`: for joined tables."""
        self._table, self._settings, self._items = table, facts.settings, items
        self._own, self._delivered = facts.records.get(table.key, {}), facts.delivered
        self._history, self._exclusions = facts.history, facts.exclusions
        self._upstream = {name: facts.records[name] for name in table.upstream}

    def state(self, key: Slice) -> InputState:
        """The present input state: a digest per upstream slice with rows, or the version in landing for a delivered table."""
        if self._table.reads_history(self._settings):
            return state_of_month(self._history, self._table, key, self._own.get(key))
        if self._table.reads_landing(self._settings):
            return self._as_delivered(key)
        upstream = {}
        for name, records in self._upstream.items():
            for of in self._table.kind.input_slices(name, key, self._settings):
                record = records.get(of)
                if record is not None and record.digest != EMPTY:
                    upstream[InputDay(name, of.event_date)] = record.digest
        if self._items is not None and upstream:
            upstream.update(self._items.inputs(key.event_date))
        return InputState(upstream)

    def _as_delivered(self, key: Slice) -> InputState:
        """If landing no longer holds a delivery, the recorded input stays; if the delivery is excluded, it does not."""
        listed, record = self._delivered.get(key), self._own.get(key)
        if listed is not None:
            return InputState(delivered=listed.version)
        if is_ruled_out(self._exclusions, record):
            return InputState()
        return (record.input_state if record is not None else None) or InputState()

    def has_own_rows(self, key: Slice) -> bool:
        """Whether an upstream slice of the same day holds rows; if not, the result is empty.

        All inputs of a slice of all projects count as its own. A joined table has no rows before the first items are known.
        """
        if self._table.kind.is_shared:
            return not self.state(key).is_nothing
        if self._items is not None and not self._items.begin_by(key.event_date):
            return False
        return any(key in records and records[key].digest != EMPTY for records in self._upstream.values())

    def months_of(self, state: InputState) -> dict[tuple[str, Slice], Digest]:
        """(table, slice) of each month of a delivered history with days in an input state -> the recorded digest."""
        months = {}
        for name in state.upstream:
            if name.table in self._upstream and _is_part(name, self._settings):
                month = Slice(table_by_key(name.table).kind.slice_day(name.day), ALL_PROJECTS)
                record = self._upstream[name.table].get(month)
                months[name.table, month] = record.digest if record is not None else EMPTY
        return months

    def upstream(self, key: Slice) -> list[SliceRecord]:
        """The recorded upstream slices of the same day."""
        return [records[key] for records in self._upstream.values() if key in records]


def rests_on(
    table: Table, settings: Settings, key: Slice, state: InputState, months: Mapping[tuple[str, Slice], Digest]
) -> dict[tuple[str, Slice], Digest]:
    """(upstream table, slice) -> the digest from which a slice was built; EMPTY if the upstream slice had no rows.

    `months`: from `months_of`, because a day of a delivered history is not a slice, but its month is.
    """
    expected = {
        (name, of): state.upstream.get(InputDay(name, of.event_date), EMPTY)
        for name in table.upstream
        for of in table.kind.input_slices(name, key, settings)
    }
    named = {
        (name.table, Slice(name.day, _project(name.table, key.project_id))): digest
        for name, digest in state.upstream.items()
        if not _is_part(name, settings)
    }
    return expected | named | dict(months)


def _is_part(name: InputDay, settings: Settings) -> bool:
    """Whether an input is a day of a delivered history, which is only a part of a slice."""
    return table_by_key(name.table).reads_history(settings)


def _project(table: str, project_id: str) -> str:
    return ALL_PROJECTS if table_by_key(table).kind.is_shared else project_id


def compare(recorded: InputState | None, present: InputState, day: date) -> Match:
    """Compare the input states of the slice of `day`; upstream slices of the same day are its own inputs."""
    if recorded is None:
        return Match.DIFFERENT
    if recorded.delivered != present.delivered:
        return Match.DIFFERENT
    differing = _differing(recorded, present)
    if not differing:
        return Match.SAME
    is_own = any(name.day == day for name in differing)
    return Match.DIFFERENT if is_own or recorded.cross_day is None else Match.NEIGHBOURS_DIFFER


def cause_of(before: InputState | None, after: InputState, *, has_new_code: bool) -> Cause:
    """Why a slice is built, for its publication record; `before`: the inputs of its last build, None if unknown."""
    differing = _differing(before or InputState(), after)
    is_withdrawn = after.is_nothing or (after.delivered == EXCLUDED and not after.upstream)
    if is_withdrawn and before is not None and before.delivered is not None:
        return Cause.of(CauseKind.EXCLUSION, has_new_code=has_new_code)
    if after.delivered is not None and (before is None or before.delivered != after.delivered):
        return Cause.of(CauseKind.DELIVERY, has_new_code=has_new_code)
    if not differing:
        return Cause.of(CauseKind.CODE)
    if before is None or before.is_nothing:
        return Cause.of(CauseKind.FIRST_BUILD)
    return Cause.inputs({name.table for name in differing}, has_new_code=has_new_code)


def _differing(one: InputState, other: InputState) -> set[InputDay]:
    names = one.upstream.keys() | other.upstream.keys()
    return {name for name in names if one.upstream.get(name) != other.upstream.get(name)}
