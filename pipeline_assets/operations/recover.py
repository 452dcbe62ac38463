"""Recover hours from the vendor: fetch, check, and write them below the backfill prefix, data first and the marker last.

Contains: the steps of a recovery, and the fate of each hour.
Add here: another condition for an hour to count as recovered.
Does not contain: the choice of hours (recover_plan.py), requests to the vendor (resources/export_api/), the rules for
archives (formats/export_archive.py), loading recovered hours (cli/recover.py, orchestration/recover_job.py).
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
"""Number of hours in one request to the vendor; if the process dies, these are fetched again."""
_OF_THE_PROJECT = (ExportAccessError, ExportAnswerError, ExportUnavailableError, SettingsError)
"""Errors that all other hours of the project would meet as well."""
_OF_THE_RANGE = (ExportTooLargeError, ExportContentError)
"""Errors that a smaller range may avoid."""


class HourFate(StrEnum):
    """The fate of a requested hour."""

    RECOVERED = "recovered"
    """Its objects and its marker are below the backfill prefix."""
    NO_DATA = "no data"
    """The vendor has no data; the hour's marker says that nothing is missing."""
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
                # Landing's errors have types of their own; other OS errors come from the disk that downloads pass through.
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
            # The vendor's clock decides: this machine's must be ahead.
            return HourOutcome(project, hour, HourFate.NOT_EXPORTED)
        members = archive.members.get(hour, ())
        try:
            if hour in archive.bad_hours:
                raise archive.bad_hours[hour]
            # A recovery that was killed between two objects of the hour may have left one.
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
        """Write claim, objects, marker; raises LandingConflictError, where possible before it claims or writes anything."""
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
        # A marker that another recovery wrote is equally valid.
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
        """Raise LandingConflictError unless the stored object has the same bytes when decompressed."""
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


def _contradiction(planned: PlannedHour) -> ExportContentError:
    subject = f"export of {planned.project_id}, {planned.hour}"
    reason = "the vendor says that it has no data, but something was delivered of this hour"
    hint = (
        "Check that the keys are those of this project, and how long the vendor keeps its data; the hour got no marker"
    )
    return ExportContentError(subject, reason, hint)
