"""Delivered intervals: which delivery stands, what each month would be built from, and when one waits.

Contains: the rule, over listings and records alone.
Add here: a rule about delivered intervals that needs no reading.
Does not contain: reading a delivery (load/history.py), what refuses one (build/history_checks.py), snapshots (snapshots.py).
"""

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
from pipeline_assets.load.staleness.waits import Wait
from pipeline_assets.tables.table import Table

_AWAITED_DAYS = 60
"""So far back may the latest day lie whose deadline has passed."""
EXCLUDED = "excluded"
"""In place of a version where none stands."""
Records = Mapping[Slice, SliceRecord]


@dataclass(frozen=True)
class History:
    """The delivery of intervals that stands: the whole history as of its day."""

    day: date
    delivery: SnapshotDelivery
    version: str
    """What an input state keeps of it: the delivery, and from when on it is taken."""
    days: Mapping[date, Digest] | None = None
    """Day -> digest of the items as it tells of them; None where it was not read: it is on record, or refused."""
    failure: Evaluation | None = None
    """What refuses it."""
    is_refused: bool = False
    """Whether the same one was refused before, by the same rules."""

    @property
    def is_good(self) -> bool:
        """Whether its intervals are those to publish."""
        return self.failure is None and not self.is_refused


def nothing_since(last: date) -> History:
    """Where the delivery that is published is excluded and no other one is there: of no month anything is left."""
    return History(last, SnapshotDelivery("", "", 0, True), EXCLUDED, days={})


def version_of(delivery: SnapshotDelivery, settings: Settings) -> str:
    """Another text means other intervals, or a look at them."""
    return f"{delivery.version} from {settings.calendar_start}"


def standing_day(days: Mapping[date, SnapshotDelivery], settings: Settings, now: datetime) -> date | None:
    """The day of the last complete delivery: the newest that is marked, or whose deadline has passed."""
    able = (
        day
        for day, one in days.items()
        if settings.calendar_start <= day <= now.date() and (one.is_marked or now > deadline(day, settings))
    )
    return max(able, default=None)


def month_of(table: Table, day: date) -> Slice:
    """The slice that a day is filed under."""
    return Slice(table.kind.slice_day(day), ALL_PROJECTS)


def is_on_record(table: Table, day: date, version: str, records: Records) -> bool:
    """Whether each month is what this version says, so that it need not be read: by whatever was recorded of it.

    A month that is held, or whose inputs nobody knows, may not be.
    """
    own = records.get(month_of(table, day))
    is_last = own is not None and own.input_state is not None and own.input_state.delivered == version
    return is_last and all(record.verdict.is_good and record.input_state is not None for record in records.values())


def is_refused_before(
    table: Table, day: date, version: str, records: Records, judged_by: str, accepted: Acceptances
) -> bool:
    """Whether this version was refused by these rules, and nothing speaks for another look."""
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
    """Day, reason and state of what a load would read now, None where there is nothing new; and what is waited for.

    `days`: what landing lists; `records`: all months on record.
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
    """The slices that a load looks at: those on record, and those that the delivery tells of."""
    if history is None:
        return set(records)
    return {*records, month_of(table, history.day), *(month_of(table, day) for day in history.days or ())}


def days_on_record(table: Table, records: Records) -> dict[date, Digest]:
    """Day -> digest of its items, of all days that published months were built from."""
    return {
        name.day: digest
        for record in records.values()
        if record.input_state is not None
        for name, digest in record.input_state.upstream.items()
        if name.table == table.key
    }


def state_of_month(history: History | None, table: Table, key: Slice, record: SliceRecord | None) -> InputState:
    """The items of each of its days; and the version of the delivery that told of them last, or is told of the last month.

    Where nothing was read, or what was read is refused, it stays what is on record.
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
    """Why a month of delivered intervals is not built now; None where it is, or where there is nothing to be done."""
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
