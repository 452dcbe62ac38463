"""Recover hours from the vendor: fetch, check, and write them below the backfill prefix, data first and the marker last."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import IO

from pipeline_assets.domain.days import Hour, HourRange, hour_ranges
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.errors import (
    ExportAccessError,
    ExportAnswerError,
    ExportContentError,
    ExportRefusedError,
    ExportTooLargeError,
    ExportUnavailableError,
    LandingConflictError,
    SettingsError,
    TidemarkError,
)
from pipeline_assets.domain.machine import a_spool, naming_the_download_disk
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.export_archive import (
    Archive,
    ArchiveBounds,
    Member,
    opened_member,
    read_archive,
)
from pipeline_assets.formats.gzip_lines import BadObjectError, measure
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.recover_plan import HourState, PlannedHour, RecoveryPlan, hours_text
from resources.export_api import Download, ExportApi, ExportCredentials, NoData
from resources.failpoints import Failpoint, failpoint
from resources.landing.store import LandingStore
from resources.ledger.rebuilds import Recoveries

HOURS_AT_ONCE = 24
"""Number of hours in one request to the vendor; if the process dies, these are fetched again."""
_OF_THE_PROJECT = (ExportAccessError, ExportAnswerError, ExportUnavailableError, SettingsError)
"""Errors that all other hours of the project would meet as well."""
_OF_THE_RANGE = (ExportTooLargeError, ExportContentError, ExportRefusedError)
"""Errors that a smaller range may avoid."""
_REFUSALS = 3
"""Refusals in a row that end a project of which nothing else was answered: of a range, of the other end, of the middle."""
_DEEPEST = 6
"""Refusals in a row that end a day of any other project: they lead from all of its hours to one."""
NO_DATA_MARKER = b"no data, said the vendor; the same keys brought other hours of this project\n"
"""The marker of an hour that the vendor has no data of; that of an hour with objects is empty."""
_CURE_OF_KEYS = (
    "Check that the keys are those of this project, and how long the vendor keeps its data; no hour of it got a marker"
)


class HourFate(StrEnum):
    """The fate of a requested hour."""

    RECOVERED = "recovered"
    """Its objects and its marker are below the backfill prefix."""
    NO_DATA = "no data"
    """The vendor has no data, as its marker says; only `--ask-again` asks for it again."""
    ALREADY = "already there"
    """An earlier recovery wrote it."""
    NOT_EXPORTED = "not exported yet"
    """The vendor's export is not due yet; nothing was written."""
    FAILED = "not recovered"
    """The hour may be incomplete, so it has no marker."""

    @property
    def is_good(self) -> bool:
        """Whether the hour is complete."""
        return self in (HourFate.RECOVERED, HourFate.NO_DATA, HourFate.ALREADY)


@dataclass(frozen=True)
class HourOutcome:
    """One hour of one project after a recovery."""

    project_id: str
    hour: Hour
    fate: HourFate
    objects: int = 0
    size_bytes: int = 0
    """Size of the objects as stored in landing."""
    error: TidemarkError | None = None


def whole_days(outcomes: Sequence[HourOutcome]) -> tuple[list[Slice], list[Slice]]:
    """The days to load, and the days to hold back because an hour was not recovered: a load would publish them incomplete."""
    days = {Slice(outcome.hour.day, outcome.project_id) for outcome in outcomes if outcome.fate.is_good}
    short = {Slice(outcome.hour.day, outcome.project_id) for outcome in outcomes if not outcome.fate.is_good}
    return sorted(days - short), sorted(short)


@dataclass(frozen=True)
class Progress:
    """Callbacks for the progress of a recovery."""

    received: Callable[[int], None] = lambda _: None
    """Called with the number of downloaded bytes."""
    settled: Callable[[HourOutcome], None] = lambda _: None
    """Called with the outcome of an hour."""


@dataclass
class _Keys:
    """What shows that a project's keys are its own, so that "no data" is believed."""

    control: Hour | None
    """An hour of which raw holds rows, to be asked for once, and only where nothing else shows it."""
    is_proven: bool = False
    unanswered: TidemarkError | None = None
    """Why the control hour shows nothing."""
    doubt: ExportContentError | None = None
    """Why no "no data" of these keys is believed in this run."""
    unproven: list[tuple[Hour, datetime]] = field(default_factory=list)
    """Hours without data, and when the vendor said so, which another answer of the run may prove."""


@dataclass(frozen=True)
class Recovery:
    """A recovery with its dependencies."""

    api: ExportApi
    landing: LandingStore
    settings: Settings
    claims: Recoveries
    """Claims in the ledger: loads skip an hour that is claimed and has no marker."""
    progress: Progress = Progress()

    def run(self, plan: RecoveryPlan) -> list[HourOutcome]:
        """Recover the hours that the plan fetches; one outcome per requested hour, in the order of the plan.

        An error of one hour, range or project affects only that one. Raises LandingAccessError, LandingUnavailableError,
        LedgerUnavailableError and DiskFullError, which affect all hours, and SettingsError where no project has keys. Hours
        recovered until then stay, and the same call continues from there.
        """
        outcomes: dict[tuple[str, Hour], HourOutcome] = {}
        for one in plan.asked:
            if not one.is_fetched:
                fate = HourFate.NO_DATA if one.state is HourState.NO_DATA else HourFate.ALREADY
                fate = HourFate.NOT_EXPORTED if one.is_waited_for else fate
                outcomes[one.project_id, one.hour] = HourOutcome(one.project_id, one.hour, fate)
        _require_keys([project for project in plan.projects if plan.fetched(project)])
        for project in plan.projects:
            keys = _Keys(plan.controls.get(project))
            for outcome in self._project(project, {one.hour: one for one in plan.fetched(project)}, keys):
                outcomes[project, outcome.hour] = outcome
                self.progress.settled(outcome)
        return [outcomes[one.project_id, one.hour] for one in plan.asked]

    def _project(self, project: str, planned: Mapping[Hour, PlannedHour], keys: _Keys) -> Iterator[HourOutcome]:
        pending, at = hour_ranges(planned, HOURS_AT_ONCE), 0
        refusals, is_served = 0, False
        while pending:
            at = min(at, len(pending) - 1)
            hours = pending.pop(at)
            try:
                # Landing's errors have types of their own; other OS errors come from the disk that downloads pass through.
                with naming_the_download_disk():
                    yield from self._range(project, hours, planned, keys)
                refusals, is_served = 0, True
            except (*_OF_THE_RANGE, *_OF_THE_PROJECT) as error:
                is_refused = isinstance(error, ExportRefusedError)
                refusals += is_refused
                is_futile = is_refused and refusals >= (_DEEPEST if is_served else _REFUSALS)
                is_of_project = isinstance(error, _OF_THE_PROJECT) or (is_futile and not is_served)
                if is_futile or is_of_project or len(hours) == 1:
                    lost = [one for one in pending if is_of_project or (is_futile and one.first.day == hours.first.day)]
                    pending = [one for one in pending if one not in lost]
                    if is_futile:
                        subject = f"export of {project}, {hours.first.day}" if is_served else f"export of {project}"
                        reason = f"{error.reason}; after {refusals} such answers in a row it was not asked again"
                        error = ExportRefusedError(subject, reason, error.hint)
                    for hour in sorted(hour for one in (hours, *lost) for hour in one):
                        yield HourOutcome(project, hour, HourFate.FAILED, error=error)
                else:
                    is_last = at == len(pending)
                    pending[at:at] = hours.halves()
                    # From the end on, later parts come first: hours that are too old are met last.
                    at = len(pending) - 1 if is_last else at
                if is_refused and not is_served:
                    # Hours that are refused for their time lie at one end: too old, or too new. Then two odd ones may be apart.
                    at = len(pending) - 1 if refusals == 1 else len(pending) // 2
        reason = "the vendor says that it has no data, and raw holds no hour that shows whose keys were used"
        nothing = ExportContentError(f"export of {project}", reason, f"Load an hour with data first. {_CURE_OF_KEYS}")
        doubt = keys.doubt or (None if keys.is_proven else keys.unanswered or nothing)
        for hour, answered_at in keys.unproven:
            yield self._hour(planned[hour], Archive({}, {}), io.BytesIO(), {}, answered_at, doubt)

    def _range(
        self, project: str, hours: HourRange, planned: Mapping[Hour, PlannedHour], keys: _Keys
    ) -> Iterator[HourOutcome]:
        with self.api.fetch(project, hours, self.progress.received) as answer:
            failpoint(Failpoint.AFTER_DOWNLOAD, str(hours.first))
            archive, file = self._archive(project, hours, answer)
            keys.is_proven |= bool(archive.members)
            there = self._there(project, hours)
            # A recovery that was killed between two objects of an hour may have left one.
            delivered = {Hour(found.batch.arrival_date, found.hour) for found in there.values()}
            brought = archive.members.keys() | archive.bad_hours.keys()
            lacking = [hour for hour in hours if hour not in brought and self._is_due(hour, answer.answered_at)]
            denied = [hour for hour in lacking if planned[hour].has_rows or hour in delivered]
            doubt = _contradiction(project, hours, denied) if denied else None
            silent: Collection[Hour] = ()
            if not archive.members:
                # An archive without a whole hour shows no more of the keys than a "no data".
                keys.doubt = doubt = keys.doubt or doubt or self._tried(project, keys)
                silent = () if keys.is_proven or doubt is not None else lacking
                keys.unproven += [(hour, answer.answered_at) for hour in silent]
            for hour in hours:
                if hour not in silent:
                    yield self._hour(planned[hour], archive, file, there, answer.answered_at, doubt)

    def _tried(self, project: str, keys: _Keys) -> ExportContentError | None:
        """Ask for the control hour where nothing else shows whose keys they are; why they do not bring it."""
        if keys.is_proven or keys.control is None:
            return None
        hours, keys.control = HourRange(keys.control, keys.control), None
        try:
            with self.api.fetch(project, hours, self.progress.received) as answer:
                archive, _ = self._archive(project, hours, answer)
        except ExportContentError as error:
            return error
        except _OF_THE_RANGE as error:
            keys.unanswered = error
            return None
        keys.is_proven = bool(archive.members)
        bad = archive.bad_hours.get(hours.first)
        return None if keys.is_proven else bad or _contradiction(project, hours, [hours.first])

    def _archive(self, project: str, hours: HourRange, answer: Download | NoData) -> tuple[Archive, IO[bytes]]:
        """What an answer holds, and the file that it lies in; "no data" is an archive of nothing."""
        if isinstance(answer, NoData):
            return Archive({}, {}), io.BytesIO()
        return read_archive(answer.file, self._grammar, project, hours, self._bounds), answer.file

    def _is_due(self, hour: Hour, answered_at: datetime) -> bool:
        """Whether the vendor must have exported the hour, by its own clock: this machine's may be ahead."""
        return hour.end + timedelta(hours=self.settings.export_delay_hours) <= answered_at

    def _hour(
        self,
        planned: PlannedHour,
        archive: Archive,
        file: IO[bytes],
        there: Mapping[str, Delivery],
        answered_at: datetime,
        doubt: TidemarkError | None,
    ) -> HourOutcome:
        project, hour = planned.project_id, planned.hour
        if not self._is_due(hour, answered_at):
            return HourOutcome(project, hour, HourFate.NOT_EXPORTED)
        if doubted := archive.bad_hours.get(hour) or doubt:
            return HourOutcome(project, hour, HourFate.FAILED, error=doubted)
        members = archive.members.get(hour, ())
        try:
            self._put(planned, members, file, there)
        except (ExportContentError, LandingConflictError) as error:
            return HourOutcome(project, hour, HourFate.FAILED, error=error)
        fate = HourFate.RECOVERED if members else HourFate.NO_DATA
        return HourOutcome(project, hour, fate, len(members), sum(member.size_bytes for member in members))

    def _put(
        self, planned: PlannedHour, members: tuple[Member, ...], file: IO[bytes], there: Mapping[str, Delivery]
    ) -> None:
        """Write claim, objects, marker; raises LandingConflictError, where possible before it claims or writes anything."""
        project, hour = planned.project_id, planned.hour
        batch = BatchKey(Source.BACKFILL, project, hour.day)
        keys = {self._grammar.format_delivery(batch, hour.hour, member.shard): member for member in members}
        for key, member in keys.items():
            if key in there:
                self._require_same(there[key], member)
        new = {key: member.size_bytes for key, member in keys.items() if key not in there}
        if new:
            self.claims.begin(project, hour, new if planned.is_gap else {})
        for key, member in keys.items():
            if key not in there and not self._created(key, member, file):
                written_meanwhile = self._there(project, HourRange(hour, hour)).get(key)
                if written_meanwhile is None:
                    raise _conflict(key)
                self._require_same(written_meanwhile, member)
            failpoint(Failpoint.AFTER_OBJECT, key)
        marker = self._grammar.format_marker(batch, hour.hour)
        failpoint(Failpoint.BEFORE_MARKER, marker)
        # A marker that another recovery wrote is equally valid.
        self.landing.create(marker, io.BytesIO(b"" if members else NO_DATA_MARKER))
        self.claims.end(project, hour)

    def _created(self, key: str, member: Member, file: IO[bytes]) -> bool:
        with closing(a_spool()) as body, opened_member(file, member) as stored:
            shutil.copyfileobj(stored, body)
            body.seek(0)
            return self.landing.create(key, body)

    def _there(self, project: str, hours: HourRange) -> dict[str, Delivery]:
        listing = self.landing.list(Source.BACKFILL, [project], hours.first.day, hours.last.day)
        # A copier may have spelled the same name otherwise; the vendor's spelling goes first.
        spelled = {self._grammar.format_delivery(one.batch, one.hour, one.shard): one for one in listing.deliveries}
        return {**spelled, **{delivery.key: delivery for delivery in listing.deliveries}}

    def _require_same(self, delivery: Delivery, member: Member) -> None:
        """Raise LandingConflictError unless the stored object has the same bytes when decompressed."""
        with self.landing.open(delivery.key, delivery.etag) as stored:
            try:
                is_same = measure(stored, self.settings.max_object_bytes)[1] == member.content_sha256
            except BadObjectError:
                is_same = False
        if not is_same:
            raise _conflict(delivery.key)

    @property
    def _grammar(self) -> ObjectKeys:
        return EXPORT_FORMAT.keys(self.settings.marker_pattern)

    @property
    def _bounds(self) -> ArchiveBounds:
        known = self.settings
        return ArchiveBounds(known.max_object_bytes, known.export_max_bytes, known.export_max_ratio)


def _require_keys(projects: Sequence[str]) -> None:
    """Raise SettingsError if no requested project has keys: then the call is wrong, and not a single project."""
    errors = []
    for project in projects:
        try:
            ExportCredentials.of(project)
        except SettingsError as error:
            errors.append(error)
    if errors and len(errors) == len(projects):
        raise errors[0]


def _conflict(key: str) -> LandingConflictError:
    reason = "holds other bytes than the vendor exports now; nothing was overwritten, and the hour got no marker"
    return LandingConflictError(
        key, reason, "Look at both; move this object out of landing, then recover the hour again"
    )


def _contradiction(project: str, hours: HourRange, denied: Sequence[Hour]) -> ExportContentError:
    named = few([str(hour) for hour in denied])
    reason = f"the vendor says that it has no data of {named}, but something was delivered of it; nothing is believed"
    return ExportContentError(f"export of {project}, {hours}", reason, _CURE_OF_KEYS)


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
