"""Rules for dimensions: the items of a day, waits, and the inputs of each month."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from pipeline_assets.domain.checks import UNREAD_OBJECTS, Acceptances, Check, Evaluation
from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.records import InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import MissingSnapshot, Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, EMPTY, Digest, Slice, Verdict
from pipeline_assets.load.deliveries.snapshots import is_ruled_out
from pipeline_assets.tables.table import Dimension, Table

if TYPE_CHECKING:
    from pipeline_assets.load.staleness.facts import Facts


@dataclass(frozen=True)
class Wait:
    """Why a slice cannot be built now."""

    reason: str
    is_early: bool = False
    failure: Evaluation | None = None


_AWAITED_DAYS = 60
EXCLUDED = "excluded"
"""The version in an input state if the published delivery is excluded and no other exists."""
Records = Mapping[Slice, SliceRecord]


@dataclass(frozen=True)
class History:
    """The current delivery of intervals: the whole history as of its day."""

    day: date
    delivery: SnapshotDelivery
    version: str
    days: Mapping[date, Digest] | None = None
    """Day -> digest of its items; None if not read, because it is on record or refused."""
    failure: Evaluation | None = None
    is_refused: bool = False

    @property
    def is_good(self) -> bool:
        """Whether its intervals may be published."""
        return self.failure is None and not self.is_refused


def nothing_since(last: date) -> History:
    """The history if the published delivery is excluded and there is no other one: all months become empty."""
    return History(last, SnapshotDelivery("", "", 0, True), EXCLUDED, days={})


def version_of(delivery: SnapshotDelivery, settings: Settings) -> str:
    """The version in an input state; another one may have other intervals, so it is read."""
    return f"{delivery.version} from {settings.calendar_start}"


def standing_day(days: Mapping[date, SnapshotDelivery], settings: Settings, now: datetime) -> date | None:
    """The day of the newest delivery that has a marker or is past its deadline; None without any."""
    within = [day for day in days if settings.calendar_start <= day <= now.date()]
    return max((day for day in within if days[day].is_marked or now > deadline(day, settings)), default=None)


def month_of(table: Table, day: date) -> Slice:
    """The slice under which a day is filed."""
    return Slice(table.kind.slice_day(day), ALL_PROJECTS)


def is_on_record(table: Table, day: date, version: str, records: Records) -> bool:
    """Whether all months on record have the content of this version; False if one is held, refused or of unknown inputs."""
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
    return is_same and not is_unread and accepted.get((table.key, key)) is None


def news_of(
    table: Table,
    days: Mapping[date, SnapshotDelivery],
    records: Records,
    judged_by: str,
    settings: Settings,
    now: datetime,
) -> tuple[tuple[date, str, str] | None, list[str]]:
    """Day, reason and state of the delivery to read now (None without news), and a sentence for each wait."""
    day = standing_day(days, settings, now)
    within = [one for one in days if settings.calendar_start <= one <= now.date()]
    waits = [f"{days[one].key} has no marker yet" for one in sorted(within) if day is None or one > day]
    if day is None:
        return None, waits
    back = (now.date() - timedelta(days=number) for number in range(_AWAITED_DAYS))
    overdue = next((one for one in back if now > deadline(one, settings)), day)
    if overdue > day:
        waits.append(f"no intervals as of {overdue} were delivered by its deadline; those as of {day} stand")
    version = version_of(days[day], settings)
    if is_on_record(table, day, version, records):
        return None, waits
    if is_refused_before(table, day, version, records, judged_by, {}):
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
    """Each day's digest, and the delivery that last changed one; as recorded if nothing was read or the delivery is refused."""
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
    """Why a month of delivered intervals waits; None if it is built or up to date."""
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


class ItemsOfDays:
    """The items of one dimension as of days of events, by the snapshots on record."""

    def __init__(self, facts: Facts, dimension: Dimension, now: datetime) -> None:
        self._facts, self._now = facts, now
        self._snapshot, self._validity = dimension.snapshot.key, dimension.validity

    def begin_by(self, day: date) -> bool:
        """Whether a snapshot of this or an earlier day is on record, held and refused ones included."""
        first, own = self._facts.first_snapshots.get(self._snapshot), self._record(self._snapshot, day)
        is_judged = own is not None and own.verdict in (Verdict.HELD, Verdict.REFUSED)
        return is_judged or (first is not None and first <= day)

    def inputs(self, day: date) -> Mapping[InputDay, Digest]:
        """The snapshot used for a day -> its digest; empty if there is none."""
        chosen = self._chosen(day)
        record = self._record(self._snapshot, chosen) if chosen is not None else None
        return {} if record is None or chosen is None else {InputDay(self._snapshot, chosen): record.digest}

    def wait_of(self, day: date) -> Wait | None:
        """Why events of a day cannot be joined now; None if they can."""
        chosen = self._chosen(day)
        record = self._record(self._snapshot, chosen or day)
        if chosen is None:
            if not self.begin_by(day):
                return None
            if record is not None and not record.verdict.is_good and record.verdict is not Verdict.WAITING:
                return Wait(f"{self._snapshot} {day} is {record.verdict.value}")
            early, late = f"{self._snapshot} {day} is not delivered yet", f"{self._snapshot} has no snapshot of {day}"
            return self._missing(day, early, late, "the snapshot of the day")
        if record is not None and not self._is_good(record):
            return Wait(f"{self._snapshot} {chosen} is {record.verdict.value}")
        month = self._validity.kind.slice_day(chosen)
        intervals = self._record(self._validity.key, month)
        if intervals is not None and not self._is_good(intervals):
            return Wait(f"{self._validity.key} {month:%Y-%m} is {intervals.verdict.value}")
        known = intervals.input_state if intervals is not None else None
        if record is None or known is None or known.upstream.get(InputDay(self._snapshot, chosen)) != record.digest:
            return Wait(f"{self._validity.key} {month:%Y-%m} is not built from the snapshot of {chosen} yet")
        return None

    def _missing(self, day: date, early: str, reason: str, what: str) -> Wait:
        settings = self._facts.settings
        if self._now <= deadline(day, settings):
            return Wait(early, is_early=True)
        if settings.missing_snapshot is MissingSnapshot.PREVIOUS:
            reason += f", and none of the {settings.previous_snapshot_days} days before it"
        reason += f" (missing_snapshot = {settings.missing_snapshot.value})"
        if settings.missing_snapshot is not MissingSnapshot.REFUSE:
            return Wait(reason)
        hint = f"Have {what} delivered; or set missing_snapshot to previous, and load the day again"
        return Wait(reason, failure=Evaluation(Check.ITEMS_ARE_KNOWN, False, reason, hint))

    def _chosen(self, day: date) -> date | None:
        own = self._record(self._snapshot, day)
        if own is not None and own.digest != EMPTY:
            return day
        is_missing = own is None or own.verdict.is_good or own.verdict is Verdict.WAITING
        return self._previous(day) if is_missing else None

    def _previous(self, day: date) -> date | None:
        settings = self._facts.settings
        if settings.missing_snapshot is not MissingSnapshot.PREVIOUS or self._now <= deadline(day, settings):
            return None
        before = (day - timedelta(days=number) for number in range(1, settings.previous_snapshot_days + 1))
        return next((other for other in before if self._holds(other)), None)

    def _holds(self, day: date) -> bool:
        record = self._record(self._snapshot, day)
        return record is not None and record.digest != EMPTY

    def _record(self, table: str, day: date) -> SliceRecord | None:
        return self._facts.records.get(table, {}).get(Slice(day, ALL_PROJECTS))

    def _is_good(self, record: SliceRecord) -> bool:
        is_released = record.verdict is Verdict.HELD and (record.table, record.key) in self._facts.released
        return record.verdict.is_good or is_released


def items_of_days(facts: Facts, dimension: Dimension, now: datetime) -> ItemsOfDays:
    """The rule for a dimension: delivered intervals or snapshots; `facts` must include the records of its tables."""
    is_delivered = dimension.intervals_are_delivered(facts.settings)
    return (ItemsOfDelivery if is_delivered else ItemsOfDays)(facts, dimension, now)


class ItemsOfDelivery(ItemsOfDays):
    """The items as of days, by delivered intervals; a published snapshot of the day must agree with them."""

    def begin_by(self, day: date) -> bool:
        """Whether delivered intervals cover this or an earlier day; a held or refused month counts too."""
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
        """Why events of a day wait; None if they can be joined. After a refused delivery, older intervals stay usable."""
        chosen = self._chosen(day)
        month = self._validity.kind.slice_day(chosen or day)
        record = self._record(self._validity.key, month)
        is_held = record is not None and record.verdict is Verdict.HELD and not self._is_good(record)
        if chosen is not None and not is_held:
            return None
        if record is not None and (is_held or record.verdict is Verdict.REFUSED):
            return Wait(f"{self._validity.key} {month:%Y-%m} is {record.verdict.value}")
        untold = f"{self._validity.key} does not tell of {day}"
        return self._missing(day, f"{untold} yet", untold, "intervals") if self.begin_by(day) else None

    def _chosen(self, day: date) -> date | None:
        return day if self._holds(day) else self._previous(day)

    def _holds(self, day: date) -> bool:
        return self._items(day) is not None

    def _items(self, day: date) -> Digest | None:
        record = self._record(self._validity.key, self._validity.kind.slice_day(day))
        state = record.input_state if record is not None else None
        return state.upstream.get(InputDay(self._validity.key, day)) if state is not None else None


def wait_of_snapshot(facts: Facts, table: Table, key: Slice, record: SliceRecord | None, now: datetime) -> Wait | None:
    """Why the snapshot of a day waits; None if it is loaded or up to date."""
    day, listed = key.event_date, facts.delivered.get(key)
    may_come = now <= deadline(day, facts.settings)
    state = record.input_state if record is not None else None
    if listed is not None and listed.others:
        reason = f"{listed.key} and {listed.others[0].rpartition(' ')[0]} are both the snapshot of {day}"
        hint = "Remove one of them from landing"
        return Wait(reason, failure=Evaluation(Check.SNAPSHOT_IS_WHOLE, False, reason, hint))
    if listed is not None:
        is_loaded = state is not None and state.delivered == listed.version
        is_due = listed.is_marked or is_loaded or not may_come
        return None if is_due else Wait(f"{listed.key} has no marker yet", is_early=True)
    if record is not None and record.digest != EMPTY:
        if state is not None or is_ruled_out(facts.exclusions, record):
            return None
        return Wait("landing holds no snapshot of the day, and what is published is not what a load published")
    first = facts.first_snapshots.get(table.key)
    if first is None:
        return Wait("landing holds no snapshot of the dimension at all")
    if day >= first and may_come:
        return Wait(f"the snapshot of {day} is not delivered yet", is_early=True)
    if day < first or facts.settings.missing_snapshot is MissingSnapshot.PREVIOUS:
        return None
    policy = f"(missing_snapshot = {facts.settings.missing_snapshot.value})"
    if key in facts.excluded:
        return Wait(f"the snapshot of {day} is excluded: {facts.excluded[key]} {policy}")
    return Wait(f"no snapshot of {day} was delivered by its deadline {policy}")
