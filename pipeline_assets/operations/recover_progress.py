"""The progress of a recovery in lines: one per finished day, one per failed hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from pipeline_assets.operations.recover import HourFate, HourOutcome, Progress
from pipeline_assets.operations.recover_plan import RecoveryPlan, hours_text

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_STEP = 1000


def size_text(size: float) -> str:
    """A size in bytes as text: `12.3 MB`."""
    unit = 0
    while size >= _STEP and unit < len(_UNITS) - 1:
        size, unit = size / _STEP, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} {_UNITS[0]}"


def in_lines(plan: RecoveryPlan, say: Callable[[str], None]) -> Progress:
    """Report each day when its last hour is settled, and each failure at once."""
    lines = _Lines(plan, say)
    return Progress(lines.received, lines.settled)


class _Lines:
    def __init__(self, plan: RecoveryPlan, say: Callable[[str], None]) -> None:
        self._say = say
        self._left = Counter((one.project_id, one.hour.day) for one in plan.asked if one.is_fetched)
        self._total, self._done, self._bytes = self._left.total(), 0, 0
        self._day: list[HourOutcome] = []
        self._error = ""

    def received(self, size: int) -> None:
        self._bytes += size

    def settled(self, outcome: HourOutcome) -> None:
        place = (outcome.project_id, outcome.hour.day)
        self._done += 1
        self._day.append(outcome)
        self._left[place] -= 1
        error = str(outcome.error or "")
        if error and error != self._error:
            # An error of a whole project is reported only for its first hour.
            self._say(f"{outcome.project_id} {outcome.hour} {outcome.fate}: {error}")
        self._error = error
        if not self._left[place]:
            done = grouped([one for one in self._day if (one.project_id, one.hour.day) == place])
            parts = "; ".join(day_text(found) for found in done if found.fate is not HourFate.FAILED)
            told = f"{outcome.project_id} {outcome.hour.day}: {parts or 'nothing recovered'}"
            self._say(f"{told} ({self._done:,} of {self._total:,} hours, {size_text(self._bytes)} received)")


@dataclass(frozen=True)
class DayOutcome:
    """Hours of one project and day with the same outcome."""

    project_id: str
    day: date
    fate: HourFate
    hours: tuple[int, ...]
    objects: int
    size_bytes: int
    error: str | None


def grouped(outcomes: list[HourOutcome]) -> list[DayOutcome]:
    """Hours grouped by equal outcome, in the order they came."""
    groups: dict[tuple[str, date, HourFate, str | None], list[HourOutcome]] = {}
    for one in outcomes:
        error = None if one.error is None else str(one.error)
        groups.setdefault((one.project_id, one.hour.day, one.fate, error), []).append(one)
    return [
        DayOutcome(
            project,
            day,
            fate,
            tuple(one.hour.hour for one in found),
            sum(one.objects for one in found),
            sum(one.size_bytes for one in found),
            error,
        )
        for (project, day, fate, error), found in groups.items()
    ]


def day_text(found: DayOutcome) -> str:
    """The group as text: `hours 3, 7 recovered, 2 objects of 1.2 MB`."""
    objects = f", {found.objects:,} objects of {size_text(found.size_bytes)}" if found.objects else ""
    return f"hours {hours_text(found.hours)} {found.fate}{objects}"
