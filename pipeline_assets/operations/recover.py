"""Recover hours from the vendor: fetch, check, and write them below the backfill prefix, data first and the marker last."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import IO

from pipeline_assets.domain import errors
from pipeline_assets.domain.days import Hour, HourRange, hour_ranges
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.machine import a_spool, naming_the_disk
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.formats.export_archive import Archive, Member, opened_member, read_archive
from pipeline_assets.formats.gzip_lines import BadObjectError, measure
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.recover_plan import EXPORT_DELAY, HourState, PlannedHour, RecoveryPlan, lacking_keys
from resources.export_api import Download, ExportApi
from resources.failpoints import Failpoint, failpoint
from resources.landing.store import LandingStore
from resources.ledger.rebuilds import Recoveries

HOURS_AT_ONCE = 24
_OF_THE_PROJECT = (
    errors.ExportAccessError,
    errors.ExportAnswerError,
    errors.ExportUnavailableError,
    errors.SettingsError,
)
"""All other hours of the project would meet these as well."""
_OF_THE_RANGE = (errors.ExportContentError, errors.ExportRefusedError)
"""A smaller range may avoid these."""
_DEEPEST = 6
"""Refusals in a row that lead from all hours of a day to one; one more ends the day."""
_PLACES = (lambda _: -1, lambda _: 0, lambda count: count // 2)
"""Where to ask while the vendor refuses whole days: newest, oldest, between. Then the project ends."""
NO_DATA_MARKER = b"no data, said the vendor; the same keys brought other hours of this project\n"
"""The marker of an hour without data; an hour with objects has an empty marker."""
_CURE_OF_KEYS = (
    "Check that the keys are those of this project, and how long the vendor keeps its data; no hour of it got a marker"
)


class HourFate(StrEnum):
    """The fate of a requested hour."""

    RECOVERED = "recovered"
    NO_DATA = "no data"
    ALREADY = "already there"
    NOT_EXPORTED = "not exported yet"
    FAILED = "not recovered"

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
    """As stored in landing."""
    error: errors.TidemarkError | None = None


def whole_days(outcomes: Sequence[HourOutcome]) -> tuple[list[Slice], list[Slice]]:
    """The days to load, and the days to hold back because a load would publish them incomplete."""
    days = {Slice(outcome.hour.day, outcome.project_id) for outcome in outcomes if outcome.fate.is_good}
    short = {Slice(outcome.hour.day, outcome.project_id) for outcome in outcomes if not outcome.fate.is_good}
    return sorted(days - short), sorted(short)


@dataclass(frozen=True)
class Progress:
    """Callbacks: downloaded bytes, and each hour's outcome."""

    received: Callable[[int], None] = lambda _: None
    settled: Callable[[HourOutcome], None] = lambda _: None


@dataclass
class _Project:
    """A project's hours to fetch, and whether its keys are its own, so that "no data" is believed."""

    id: str
    planned: Mapping[Hour, PlannedHour]
    control: Hour | None
    """An hour with rows in raw, asked for once, and only where nothing else proves the keys."""
    is_proven: bool = False
    doubt: errors.TidemarkError | None = None
    silent: list[tuple[Hour, datetime]] = field(default_factory=list)
    """Hours without data and when the vendor said so; believed once an answer of the run proves the keys."""

    def failed(self, lost: Iterable[HourRange], error: errors.TidemarkError | None) -> Iterator[HourOutcome]:
        for hour in sorted(hour for hours in lost for hour in hours):
            yield HourOutcome(self.id, hour, HourFate.FAILED, error=error)


@dataclass(frozen=True)
class Recovery:
    """A recovery with its dependencies."""

    api: ExportApi
    landing: LandingStore
    settings: Settings
    claims: Recoveries
    """Loads skip an hour that is claimed and has no marker."""
    progress: Progress = Progress()

    def run(self, plan: RecoveryPlan) -> list[HourOutcome]:
        """Recover the hours that the plan fetches; one outcome per requested hour, in the order of the plan.

        An error of one hour, range or project affects only that one. Raises LandingAccessError, LandingUnavailableError,
        LedgerUnavailableError, DiskFullError, and SettingsError where no project has keys. The same call continues from there.
        """
        outcomes: dict[tuple[str, Hour], HourOutcome] = {}
        projects: dict[str, dict[Hour, PlannedHour]] = {}
        for one in plan.asked:
            if one.is_fetched:
                projects.setdefault(one.project_id, {})[one.hour] = one
                continue
            fate = HourFate.NO_DATA if one.state is HourState.NO_DATA else HourFate.ALREADY
            fate = HourFate.NOT_EXPORTED if one.is_waited_for else fate
            outcomes[one.project_id, one.hour] = HourOutcome(one.project_id, one.hour, fate)
        lacking = [lacking_keys(project) for project in projects]
        if lacking and lacking[0] is not None and all(lacking):
            raise lacking[0]
        for project, planned in projects.items():
            for outcome in self._project(_Project(project, planned, plan.controls.get(project))):
                outcomes[project, outcome.hour] = outcome
                self.progress.settled(outcome)
        return [outcomes[one.project_id, one.hour] for one in plan.asked]

    def _project(self, of: _Project) -> Iterator[HourOutcome]:
        pending, futile = hour_ranges(of.planned, HOURS_AT_ONCE), 0
        error: errors.TidemarkError | None = None
        while pending and error is None:
            # Hours that are refused for their time lie at one end: too old, or too new.
            hours = pending.pop(_PLACES[futile](len(pending)))
            try:
                refusal = yield from self._part(of, hours)
            except _OF_THE_PROJECT as failure:
                error = failure
            else:
                futile = 0 if refusal is None else futile + 1
                error = refusal if futile == len(_PLACES) else None
        yield from of.failed(pending, error)
        if of.silent and of.doubt is None and not of.is_proven:
            of.doubt = error or self._unproven(of)
        for hour, answered_at in of.silent:
            yield self._hour(of.planned[hour], Archive({}, {}), io.BytesIO(), {}, answered_at, of.doubt)

    def _part(self, of: _Project, hours: HourRange) -> Generator[HourOutcome, None, errors.ExportRefusedError | None]:
        """Halve a day's hours where it helps, newest first; returns a refusal if none was served, raises project errors."""
        pending, refusals, is_served = [hours], 0, False
        while pending:
            part = pending.pop(-1 if refusals < _DEEPEST else 0)
            try:
                # Landing's errors have types of their own, so other OS errors come from the disk of downloads.
                with naming_the_disk(of_downloads=True):
                    yield from self._range(of, part)
                refusals, is_served = 0, True
            except _OF_THE_PROJECT as error:
                yield from of.failed([part, *pending], error)
                raise
            except _OF_THE_RANGE as error:
                refusals += isinstance(error, errors.ExportRefusedError)
                if refusals > _DEEPEST:
                    reason = f"{error.reason}; after {refusals} such answers in a row it was not asked again"
                    refusal = errors.ExportRefusedError(f"export of {of.id}", reason, error.hint)
                    yield from of.failed([part, *pending], refusal)
                    return None if is_served else refusal
                if len(part) > 1:
                    pending += part.halves()
                else:
                    yield from of.failed([part], error)
        return None

    def _range(self, of: _Project, hours: HourRange) -> Iterator[HourOutcome]:
        with self.api.fetch(of.id, hours, self.progress.received) as answer:
            failpoint(Failpoint.AFTER_DOWNLOAD, str(hours.first))
            archive, file = self._archive(of.id, hours, answer)
            of.is_proven |= bool(archive.members)
            there = self._there(of.id, hours)
            # A killed recovery may have left one of an hour's objects.
            delivered = {Hour(found.batch.arrival_date, found.hour) for found in there.values()}
            brought = archive.members.keys() | archive.bad_hours.keys()
            silent = [hour for hour in hours if hour not in brought and self._is_due(hour, answer.answered_at)]
            denied = [hour for hour in silent if of.planned[hour].has_rows or hour in delivered]
            doubt = _contradiction(of.id, hours, denied) if denied else None
            waiting: Collection[Hour] = ()
            if not archive.members:
                # An archive without a whole hour proves the keys no more than "no data".
                of.doubt, waiting = of.doubt or doubt, silent
                of.silent += [(hour, answer.answered_at) for hour in silent]
            for hour in hours:
                if hour not in waiting:
                    yield self._hour(of.planned[hour], archive, file, there, answer.answered_at, doubt)

    def _unproven(self, of: _Project) -> errors.TidemarkError | None:
        if of.control is None:
            reason = "the vendor says that it has no data, and raw holds no hour that shows whose keys were used"
            return errors.ExportContentError(
                f"export of {of.id}", reason, f"Load an hour with data first. {_CURE_OF_KEYS}"
            )
        hours = HourRange(of.control, of.control)
        try:
            with self.api.fetch(of.id, hours, self.progress.received) as answer:
                archive, _ = self._archive(of.id, hours, answer)
        except (*_OF_THE_RANGE, *_OF_THE_PROJECT) as error:
            return error
        return (
            None if archive.members else archive.bad_hours.get(of.control) or _contradiction(of.id, hours, [of.control])
        )

    def _archive(self, project: str, hours: HourRange, answer: Download) -> tuple[Archive, IO[bytes]]:
        if answer.file is None:
            return Archive({}, {}), io.BytesIO()
        return read_archive(answer.file, self._grammar, project, hours, self.settings.max_object_bytes), answer.file

    def _is_due(self, hour: Hour, answered_at: datetime) -> bool:
        """By the vendor's clock, because this machine's may be ahead."""
        return hour.end + EXPORT_DELAY <= answered_at

    def _hour(
        self,
        planned: PlannedHour,
        archive: Archive,
        file: IO[bytes],
        there: Mapping[str, Delivery],
        answered_at: datetime,
        doubt: errors.TidemarkError | None,
    ) -> HourOutcome:
        project, hour = planned.project_id, planned.hour
        if not self._is_due(hour, answered_at):
            return HourOutcome(project, hour, HourFate.NOT_EXPORTED)
        if doubted := archive.bad_hours.get(hour) or doubt:
            return HourOutcome(project, hour, HourFate.FAILED, error=doubted)
        members = archive.members.get(hour, ())
        try:
            self._put(planned, members, file, there)
        except (errors.ExportContentError, errors.LandingConflictError) as error:
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
        missing = {key: member for key, member in keys.items() if key not in there}
        if missing:
            new = {key: member.size_bytes for key, member in missing.items()}
            self.claims.begin(project, hour, new if planned.is_gap else {})
        for key, member in missing.items():
            with closing(a_spool()) as body, opened_member(file, member) as stored:
                shutil.copyfileobj(stored, body)
                body.seek(0)
                is_created = self.landing.create(key, body)
            if not is_created:
                written_meanwhile = self._there(project, HourRange(hour, hour)).get(key)
                if written_meanwhile is None:
                    raise _conflict(key)
                self._require_same(written_meanwhile, member)
            failpoint(Failpoint.AFTER_OBJECT, key)
        marker = self._grammar.format_marker(batch, hour.hour)
        failpoint(Failpoint.BEFORE_MARKER, marker)
        self.landing.create(marker, io.BytesIO(b"" if members else NO_DATA_MARKER))
        self.claims.end(project, hour)

    def _there(self, project: str, hours: HourRange) -> dict[str, Delivery]:
        listing = self.landing.list(Source.BACKFILL, [project], hours.first.day, hours.last.day)
        # A copier may have spelled the same name otherwise.
        spelled = {self._grammar.format_delivery(one.batch, one.hour, one.shard): one for one in listing.deliveries}
        return {**spelled, **{delivery.key: delivery for delivery in listing.deliveries}}

    def _require_same(self, delivery: Delivery, member: Member) -> None:
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


def _conflict(key: str) -> errors.LandingConflictError:
    reason = "holds other bytes than the vendor exports now; nothing was overwritten, and the hour got no marker"
    return errors.LandingConflictError(
        key, reason, "Look at both; move this object out of landing, then recover the hour again"
    )


def _contradiction(project: str, hours: HourRange, denied: Sequence[Hour]) -> errors.ExportContentError:
    named = few([str(hour) for hour in denied])
    reason = f"the vendor says that it has no data of {named}, but something was delivered of it; nothing is believed"
    return errors.ExportContentError(f"export of {project}, {hours}", reason, _CURE_OF_KEYS)


def size_text(size: float) -> str:
    """A size in bytes as text: `12.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def in_lines(plan: RecoveryPlan, say: Callable[[str], None]) -> Progress:
    """Report each day when its last hour is settled, and each failure at once."""
    asked = Counter((one.project_id, one.hour.day) for one in plan.asked if one.is_fetched)
    settled, good = Counter[tuple[str, date]](), Counter[tuple[str, date]]()
    received, last_error = Counter[str](), ""

    def settle(outcome: HourOutcome) -> None:
        nonlocal last_error
        place, error = (outcome.project_id, outcome.hour.day), str(outcome.error or "")
        settled[place] += 1
        good[place] += outcome.fate.is_good
        if error and error != last_error:
            say(f"{outcome.project_id} {outcome.hour} {outcome.fate}: {error}")
        last_error = error
        if settled[place] == asked[place]:
            in_all = f"{settled.total():,} of {asked.total():,} hours settled, {size_text(received.total())} received"
            say(f"{place[0]} {place[1]}: {good[place]} of {asked[place]} hours are there ({in_all})")

    return Progress(lambda size: received.update(bytes=size), settle)
