"""Input states: what a slice was built from, and how that compares with what its inputs are now.

Contains: the entries of a state and their comparison.
Add here: another input that makes a slice stale.
Does not contain: what is done about it (decide.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from enum import Enum, auto

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Slice, widen
from pipeline_assets.load.request import Books
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.table import Table
from resources.ledger.records import SliceRecord

CODE_KEY = "code"
"""Entry of a refused state that names the code and the bounds that refused it."""
WAITS_KEY = "waits for"
"""Entry of a refused state that names the days whose standing keeps a slice from being published."""
COMPETING_KEY = "rivals"
"""Entry of an input state: digest of the rows on other days that share a key with the slice's own rows."""


def judging(table: Table, settings: Settings) -> str:
    """What a refusal rests on beside its inputs: a slice refused by other code or other bounds is tried again."""
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
    """Only slices of other days differ: it is the same where their rows that share a key are."""
    DIFFERENT = auto()


class Inputs:
    """The present input states of one project's slices."""

    def __init__(self, books: Books, table: Table, project: str, days: list[date]) -> None:
        window = books.settings.dedupe_window_days if table.key == REFINED_EVENTS.key else 0
        self._shifts = [timedelta(days=shift) for shift in range(-window, window + 1)]
        needed = widen(days, window)
        self._project = project
        self._upstream = {name: books.ledger.slices(name, [project], needed) for name in table.upstream}

    def state(self, day: date) -> dict[str, str]:
        """Digest per upstream slice that holds rows."""
        found = {}
        for name, records in self._upstream.items():
            for shift in self._shifts:
                record = records.get(Slice(day + shift, self._project))
                if record is not None and record.digest != EMPTY:
                    found[f"{name}:{(day + shift).isoformat()}"] = str(record.digest)
        return found

    def has_own_rows(self, day: date) -> bool:
        """Whether an upstream slice of the same day holds rows; without any the result is empty."""
        key = Slice(day, self._project)
        return any(key in records and records[key].digest != EMPTY for records in self._upstream.values())

    def upstream(self, day: date) -> list[SliceRecord]:
        """The recorded upstream slices of the same day."""
        key = Slice(day, self._project)
        return [records[key] for records in self._upstream.values() if key in records]


def compare(recorded: Mapping[str, str] | None, present: Mapping[str, str], day: date) -> Match:
    """Of the slice of a day; entries of the same day are its own inputs."""
    if recorded is None:
        return Match.DIFFERENT
    names = {name for name in (*recorded, *present) if name not in (CODE_KEY, WAITS_KEY, COMPETING_KEY)}
    differing = {name for name in names if recorded.get(name) != present.get(name)}
    if not differing:
        return Match.SAME
    is_own = any(name.endswith(f":{day.isoformat()}") for name in differing)
    return Match.DIFFERENT if is_own or COMPETING_KEY not in recorded else Match.NEIGHBOURS_DIFFER


def cause_of(table: Table, before: Mapping[str, str], after: Mapping[str, str], *, has_new_code: bool) -> str:
    """Why a slice is built, for its publication's record."""
    differing = [
        name for name in before.keys() | after.keys() if name != COMPETING_KEY and before.get(name) != after.get(name)
    ]  # fmt: skip
    if not differing:
        return "code"
    names = sorted({name.split(":")[0] for name in differing})
    cause = "first build" if not before else f"changed {', '.join(names)}" if names else f"changed {table.key}"
    return f"{cause}, code" if has_new_code and before else cause
