"""Rules for delivered intervals: the current delivery, the inputs of each month, and why a month waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.checks import UNREAD_OBJECTS, Evaluation
from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.dimensions import SnapshotDelivery
from pipeline_assets.domain.input_state import InputDay, InputState
from pipeline_assets.domain.records import SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.tables.table import Table


@dataclass(frozen=True)
class Wait:
    """Why a slice cannot be built now."""

    reason: str
    is_early: bool = False
    """It waits for a delivery whose deadline lies ahead."""
    failure: Evaluation | None = None
    """The evaluation that refuses the slice; None if it only waits."""


_AWAITED_DAYS = 60
"""How many days back to search for the latest day whose deadline has passed."""
EXCLUDED = "excluded"
"""Stands in for a version if the published delivery is excluded and no other exists."""
Records = Mapping[Slice, SliceRecord]


@dataclass(frozen=True)
class History:
    """The current delivery of intervals: the whole history as of its day."""

    day: date
    delivery: SnapshotDelivery
    version: str
    """The text in an input state: the version of the delivery, and the first day used."""
    days: Mapping[date, Digest] | None = None
    """Day -> digest of the items on that day; None if it was not read, because it is on record or refused."""
    failure: Evaluation | None = None
    """The check that refuses it."""
    is_refused: bool = False
    """Whether the same version was refused before by the same rules."""

    @property
    def is_good(self) -> bool:
        """Whether its intervals may be published."""
        return self.failure is None and not self.is_refused


def nothing_since(last: date) -> History:
    """The history if the published delivery is excluded and there is no other one: all months become empty."""
    return History(last, SnapshotDelivery("", "", 0, True), EXCLUDED, days={})


def version_of(delivery: SnapshotDelivery, settings: Settings) -> str:
    """The version in an input state; if it differs, the intervals may differ and are read."""
    return f"{delivery.version} from {settings.calendar_start}"


def standing_day(days: Mapping[date, SnapshotDelivery], settings: Settings, now: datetime) -> date | None:
    """The day of the newest delivery that has a marker or is past its deadline; None without any."""
    able = (
        day
        for day, one in days.items()
        if settings.calendar_start <= day <= now.date() and (one.is_marked or now > deadline(day, settings))
    )
    return max(able, default=None)


def month_of(table: Table, day: date) -> Slice:
    """The slice under which a day is filed."""
    return Slice(table.kind.slice_day(day), ALL_PROJECTS)


def is_on_record(table: Table, day: date, version: str, records: Records) -> bool:
    """Whether the records show that every month has the content of this version, so that it need not be read.

    False if a month is held or refused, or if its inputs are unknown.
    """
    own = records.get(month_of(table, day))
    is_last = own is not None and own.input_state is not None and own.input_state.delivered == version
    return is_last and all(record.verdict.is_good and record.input_state is not None for record in records.values())


def is_refused_before(
    table: Table, day: date, version: str, records: Records, judged_by: str, accepted: Acceptances
) -> bool:
    """Whether the same rules refused this version before, and there is no reason to judge it again."""
    key = month_of(table, day)
    own = records.get(key)
    if own is None or own.verdict is not Verdict.REFUSED or own.rejection is None:
        return False
    is_unread = any(evaluation.figures.get(UNREAD_OBJECTS) for evaluation in own.refused_evaluations)
    is_same = (own.rejection.inputs.delivered, own.rejection.judged_by) == (version, judged_by)
    return is_same and not is_unread and accepted.change(table.key, key) is None


def news_of(
    table: Table,
    days: Mapping[date, SnapshotDelivery],
    records: Records,
    judged_by: str,
    settings: Settings,
    now: datetime,
) -> tuple[tuple[date, str, str] | None, list[str]]:
    """Day, reason and state of the delivery that a load would read now (None without news), and a sentence for each wait.

    `days`: deliveries that landing lists; `records`: all months on record.
    """
    day = standing_day(days, settings, now)
    within = [one for one in days if settings.calendar_start <= one <= now.date()]
    waits = [f"{days[one].key} has no marker yet" for one in sorted(within) if day is None or one > day]
    overdue = [
        one
        for one in (now.date() - timedelta(days=back) for back in range(_AWAITED_DAYS))
        if now > deadline(one, settings)
    ]
    if day is not None and overdue and overdue[0] > day:
        waits.append(f"no intervals as of {overdue[0]} were delivered by its deadline; those as of {day} stand")
    if day is None:
        return None, waits
    version = version_of(days[day], settings)
    if is_on_record(table, day, version, records):
        return None, waits
    if is_refused_before(table, day, version, records, judged_by, Acceptances()):
        return None, [f"{days[day].key} is refused: {records[month_of(table, day)].reason}", *waits]
    state = f"{version} {sorted((str(key), record.verdict.value) for key, record in records.items())}"
    return (day, f"{days[day].key} is new", state), waits


def months_of(table: Table, history: History | None, records: Collection[Slice]) -> set[Slice]:
    """The slices that a load considers: those on record and those that the delivery covers."""
    if history is None:
        return set(records)
    return {*records, month_of(table, history.day), *(month_of(table, day) for day in history.days or ())}


def days_on_record(table: Table, records: Records) -> dict[date, Digest]:
    """Day -> digest of its items, for all days from which published months were built."""
    return {
        name.day: digest
        for record in records.values()
        if record.input_state is not None
        for name, digest in record.input_state.upstream.items()
        if name.table == table.key
    }


def state_of_month(history: History | None, table: Table, key: Slice, record: SliceRecord | None) -> InputState:
    """The input state of a month: the digest of each of its days, and the version of the delivery that last changed them.

    The last month always has the present version. If nothing was read, or the delivery is refused, the recorded state stays.
    """
    known = record.input_state if record is not None else None
    if history is None:
        return known or InputState()
    is_last = key == month_of(table, history.day)
    if history.days is None or not history.is_good:
        state = known or InputState()
        return InputState(state.upstream, delivered=history.version) if is_last else state
    days = {InputDay(table.key, day): one for day, one in history.days.items() if month_of(table, day) == key}
    if not is_last and (known.upstream == days if known is not None else not days):
        return known or InputState()
    return InputState(days, delivered=history.version)


def wait_of_month(
    history: History | None, table: Table, key: Slice, record: SliceRecord | None, settings: Settings, now: datetime
) -> Wait | None:
    """Why a month of delivered intervals is not built now; None if it is, or if there is nothing to do."""
    if history is None:
        if record is None or record.digest == EMPTY:
            return Wait("landing holds no complete delivery of intervals")
        if record.input_state is None:
            return Wait("landing holds no delivery of intervals, and what is published is not what a load published")
        return None
    if history.failure is not None and key == month_of(table, history.day):
        return Wait(history.failure.reason or "", failure=history.failure)
    is_ahead = record is None and key > month_of(table, history.day)
    if is_ahead:
        reason = f"intervals are delivered as of {history.day} and not of {key.event_date:%Y-%m} yet"
        return Wait(reason, is_early=now <= deadline(key.event_date, settings))
    if not history.is_good and record is not None and record.input_state is None:
        return Wait(f"{history.delivery.key} is refused, and what is published is not what a load published")
    return None
