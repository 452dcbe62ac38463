"""Recover hours from the vendor: fetch, check, and put them below the backfill prefix, data first and the marker last.

Contains: the course of a recovery, what becomes of each hour.
Add here: another thing that must hold before an hour counts as recovered.
Does not contain: which hours (recover_plan.py), asking the vendor (resources/export_api/), what an archive may hold
(formats/export_archive.py), loading what was recovered (cli/recover.py, orchestration/recover_job.py).
"""

from __future__ import annotations

import io
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import IO

from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.errors import (
    ExportAccessError,
    ExportAnswerError,
    ExportContentError,
    ExportTooLargeError,
    ExportUnavailableError,
    LandingConflictError,
    SettingsError,
    TidemarkError,
)
from pipeline_assets.domain.hours import Hour, HourRange, hour_ranges
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.domain.spool import a_spool, naming_the_download_disk
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
from pipeline_assets.operations.recover_plan import PlannedHour, RecoveryPlan
from resources.export_api.client import ExportApi, NoData
from resources.export_api.credentials import ExportCredentials
from resources.failpoints import Failpoint, failpoint
from resources.landing.store import LandingStore
from resources.ledger.recoveries import Recoveries

HOURS_AT_ONCE = 24
"""Hours that the vendor is asked for in one piece, and that are fetched again where the process dies meanwhile."""
_OF_THE_PROJECT = (ExportAccessError, ExportAnswerError, ExportUnavailableError, SettingsError)
"""What every other hour of the project would meet as well."""
_OF_THE_RANGE = (ExportTooLargeError, ExportContentError)
"""What a part of the range may be spared."""


class HourFate(StrEnum):
    """What became of an hour that was asked for."""

    RECOVERED = "recovered"
    """Its objects lie below the backfill prefix, and its marker."""
    NO_DATA = "no data"
    """The vendor has none; its marker says that nothing is missing."""
    ALREADY = "already there"
    """A recovery before this one put it there."""
    NOT_EXPORTED = "not exported yet"
    """The vendor takes its time; nothing was written."""
    FAILED = "not recovered"
    """Nothing says that the hour is whole: it has no marker."""

    @property
    def is_good(self) -> bool:
        """Whether nothing of the hour is awaited any more."""
        return self in (HourFate.RECOVERED, HourFate.NO_DATA, HourFate.ALREADY)


@dataclass(frozen=True)
class HourOutcome:
    """One hour of one project after a recovery."""

    project_id: str
    hour: Hour
    fate: HourFate
    objects: int = 0
    size_bytes: int = 0
    """Of the objects, as they lie in landing."""
    error: TidemarkError | None = None


def whole_days(outcomes: Sequence[HourOutcome]) -> tuple[list[Slice], list[Slice]]:
    """The days to load, and those that wait: a day of which an hour was not recovered would be published short of it."""
    days = {Slice(outcome.hour.day, outcome.project_id) for outcome in outcomes if outcome.fate.is_good}
    short = {Slice(outcome.hour.day, outcome.project_id) for outcome in outcomes if not outcome.fate.is_good}
    return sorted(days - short), sorted(short)


@dataclass(frozen=True)
class Progress:
    """Who is told how far a recovery is."""

    received: Callable[[int], None] = lambda _: None
    """Of bytes of a download."""
    settled: Callable[[HourOutcome], None] = lambda _: None
    """Of an hour."""


@dataclass(frozen=True)
class Recovery:
    """A recovery with all that it works with."""

    api: ExportApi
    landing: LandingStore
    settings: Settings
    claims: Recoveries
    """Of the ledger: loads leave an hour alone that is claimed and has no marker."""
    progress: Progress = Progress()

    def run(self, plan: RecoveryPlan) -> list[HourOutcome]:
        """Recover what the plan fetches; one outcome for each hour that was asked for, in the order of the plan.

        What concerns an hour, a range or a project fails that alone. Raises LandingAccessError, LandingUnavailableError,
        LedgerUnavailableError and DiskFullError, which concern all, and SettingsError where no project has keys; what was
        recovered until then stays, and the same call goes on from there.
        """
        outcomes: dict[tuple[str, Hour], HourOutcome] = {}
        for one in plan.asked:
            if not one.is_fetched:
                fate = HourFate.NOT_EXPORTED if one.is_waited_for else HourFate.ALREADY
                outcomes[one.project_id, one.hour] = HourOutcome(one.project_id, one.hour, fate)
        _require_keys([project for project in plan.projects if plan.fetched(project)])
        for project in plan.projects:
            for outcome in self._project(project, {one.hour: one for one in plan.fetched(project)}):
                outcomes[project, outcome.hour] = outcome
                self.progress.settled(outcome)
        return [outcomes[one.project_id, one.hour] for one in plan.asked]

    def _project(self, project: str, planned: Mapping[Hour, PlannedHour]) -> Iterator[HourOutcome]:
        pending = deque(hour_ranges(planned, HOURS_AT_ONCE))
        while pending:
            hours = pending.popleft()
            try:
                # What landing does is named there; all else that the system refuses is of the disk in between.
                with naming_the_download_disk():
                    yield from self._range(project, hours, planned)
            except _OF_THE_RANGE as error:
                if len(hours) > 1:
                    pending.extendleft(reversed(hours.halves()))
                else:
                    yield HourOutcome(project, hours.first, HourFate.FAILED, error=error)
            except _OF_THE_PROJECT as error:
                for hour in (hour for one in (hours, *pending) for hour in one):
                    yield HourOutcome(project, hour, HourFate.FAILED, error=error)
                return

    def _range(self, project: str, hours: HourRange, planned: Mapping[Hour, PlannedHour]) -> Iterator[HourOutcome]:
        with self.api.fetch(project, hours, self.progress.received) as answer:
            failpoint(Failpoint.AFTER_DOWNLOAD, str(hours.first))
            file: IO[bytes] = io.BytesIO()
            archive = Archive({}, {})
            if not isinstance(answer, NoData):
                file = answer.file
                archive = read_archive(file, self._grammar, project, hours, self._bounds)
            there = self._there(project, hours)
            for hour in hours:
                yield self._hour(planned[hour], archive, file, there, answer.answered_at)

    def _hour(
        self,
        planned: PlannedHour,
        archive: Archive,
        file: IO[bytes],
        there: Mapping[str, Delivery],
        answered_at: datetime,
    ) -> HourOutcome:
        project, hour = planned.project_id, planned.hour
        if hour.end + timedelta(hours=self.settings.export_delay_hours) > answered_at:
            # By the vendor's clock: this machine's is ahead.
            return HourOutcome(project, hour, HourFate.NOT_EXPORTED)
        members = archive.members.get(hour, ())
        try:
            if hour in archive.bad_hours:
                raise archive.bad_hours[hour]
            # A recovery that was killed between two objects of the hour has left one.
            is_delivered = any(Hour(found.batch.arrival_date, found.hour) == hour for found in there.values())
            if not members and (planned.has_rows or is_delivered):
                raise _contradiction(planned)
            self._put(project, hour, members, file, there)
        except (ExportContentError, LandingConflictError) as error:
            return HourOutcome(project, hour, HourFate.FAILED, error=error)
        fate = HourFate.RECOVERED if members else HourFate.NO_DATA
        return HourOutcome(project, hour, fate, len(members), sum(member.size_bytes for member in members))

    def _put(
        self, project: str, hour: Hour, members: tuple[Member, ...], file: IO[bytes], there: Mapping[str, Delivery]
    ) -> None:
        """Claim, objects, marker; raises LandingConflictError before anything of the hour is claimed or written, where it can."""
        batch = BatchKey(Source.BACKFILL, project, hour.day)
        keys = {self._grammar.format_delivery(batch, hour.hour, member.shard): member for member in members}
        for key, member in keys.items():
            if key in there:
                self._require_same(there[key], member)
        if keys.keys() - there.keys():
            self.claims.begin(project, hour)
        for key, member in keys.items():
            if key not in there and not self._created(key, member, file):
                written_meanwhile = self._there(project, HourRange(hour, hour)).get(key)
                if written_meanwhile is None:
                    raise _conflict(key)
                self._require_same(written_meanwhile, member)
            failpoint(Failpoint.AFTER_OBJECT, key)
        marker = self._grammar.format_marker(batch, hour.hour)
        failpoint(Failpoint.BEFORE_MARKER, marker)
        # Another recovery's marker says the same.
        self.landing.create(marker, io.BytesIO())
        self.claims.end(project, hour)

    def _created(self, key: str, member: Member, file: IO[bytes]) -> bool:
        with closing(a_spool()) as body, opened_member(file, member) as stored:
            shutil.copyfileobj(stored, body)
            body.seek(0)
            return self.landing.create(key, body)

    def _there(self, project: str, hours: HourRange) -> dict[str, Delivery]:
        listing = self.landing.list(Source.BACKFILL, [project], hours.first.day, hours.last.day)
        return {delivery.key: delivery for delivery in listing.deliveries}

    def _require_same(self, delivery: Delivery, member: Member) -> None:
        """What lies there must say the same, byte for byte, however it is compressed; raises LandingConflictError."""
        with self.landing.open(delivery.key, delivery.etag) as stored:
            try:
                is_same = measure(stored, self.settings.max_object_bytes).sha256 == member.content_sha256
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
    """Some project must have keys, where any is asked for: else the call was wrong, and not a project."""
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


def _contradiction(planned: PlannedHour) -> ExportContentError:
    subject = f"export of {planned.project_id}, {planned.hour}"
    reason = "the vendor says that it has no data, but something was delivered of this hour"
    hint = (
        "Check that the keys are those of this project, and how long the vendor keeps its data; the hour got no marker"
    )
    return ExportContentError(subject, reason, hint)
