"""What is on record of deliveries, batches, slices and publications, and what persons decided: plain values.

Contains: one dataclass per kind of record.
Add here: a kind of record, or a field of one.
Does not contain: columns (resources/ledger/schema.py), the way from and to a row
(resources/ledger/rows.py), queries and transactions (resources/ledger/store.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pipeline_assets.domain.causes import Cause
from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.input_state import InputState, Rejection
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Verdict

CLOCKS_DIFFER = timedelta(minutes=5)
"""So far apart may the clocks of two hosts be, and neither be called wrong."""


def _bound(record: BatchRecord | SliceRecord) -> None:
    for name, text in (("reason", record.reason), ("hint", record.hint)):
        if text is not None:
            object.__setattr__(record, name, recordable(text))


@dataclass(frozen=True)
class DeliveryRecord:
    """What is known of one version of one object: of the one whose rows raw holds, or of the one refused last."""

    batch: BatchKey
    object_key: str
    etag: str
    size_bytes: int
    sha256: str | None
    lines: int
    rows: int
    quarantined: int
    blank: int
    error: str | None
    is_accepted: bool
    """Whether its rows are in raw; a refused version is recorded beside the accepted one, if there is any."""
    code_version: str | None = None
    """Of the parser; lines it refused are read again by another one."""
    line_reasons: tuple[tuple[str, int], ...] = ()
    """Reason -> quarantined lines; none where an older version recorded them."""


UNREAD = "unread "
"""Before the etag of an object whose rows were found in raw without a ledger row: no listing has it, so it is read again."""
MISSING = "missing_objects"
"""Figure of an evaluation: recorded objects that landing no longer lists; where it passed, a person accepted that."""


EXCLUDED = "excluded_objects"
"""Figure of an evaluation: deliveries of the batch that a person ruled out."""
HOURS_UNFINISHED = "hours_unfinished"
"""Figure of an evaluation: hours whose recovery has not written its marker, so that their objects wait for it."""
HOURS_HELD = "hours_held"
"""Figure of `delivery_complete` where it warns of a day without any regular delivery: hours that any source holds."""


@dataclass(frozen=True)
class BatchRecord:
    """What was judged of one batch last."""

    key: BatchKey
    verdict: BatchVerdict
    reason: str | None = None
    hint: str | None = None
    input_state: str | None = None
    deliveries: int = 0
    hours_delivered: int = 0
    hours_marked: int = 0
    is_closed: bool = False
    hours: tuple[int, ...] | None = None
    """Hours of which it holds objects or markers; None = not on record."""
    evaluations: tuple[Evaluation, ...] = ()
    run_id: str | None = None
    """The run that wrote it last; not written from here."""

    def __post_init__(self) -> None:
        """Bound what is told of it where it is made: it is kept, and compared with what is on record."""
        _bound(self)

    @property
    def partial_hours(self) -> int | None:
        """Hours that any source held of a day without regular deliveries when it was judged; None where that is no matter."""
        held = (e.figures[HOURS_HELD] for e in self.evaluations if not e.is_passed and HOURS_HELD in e.figures)
        return next((int(hours) for hours in held), None)

    @property
    def is_decided(self) -> bool:
        """Whether a person let its deliveries go or ruled them out, so that nothing of it is awaited."""
        return any(e.is_passed and (e.figures.get(MISSING) or e.figures.get(EXCLUDED)) for e in self.evaluations)

    @property
    def is_missing(self) -> bool:
        """Whether it is refused because deliveries are missing, which a person may accept."""
        return any(not e.is_passed and e.figures.get(MISSING) for e in self.evaluations)

    @property
    def is_loss_accepted(self) -> bool:
        """Whether a person let its deliveries go."""
        return any(e.is_passed and e.figures.get(MISSING) for e in self.evaluations)


@dataclass(frozen=True)
class BatchDay:
    """The rows of one batch that lie on one event day."""

    digest: Digest = EMPTY
    lineage: str | None = None
    """Digest of which object holds which row at which line; None = unknown."""
    lateness: LatenessSketch | None = field(default=None, compare=False)
    """How late they arrived; it follows from them. None = not measured, or not asked of the ledger."""


@dataclass(frozen=True)
class SliceRecord:
    """What is recorded of one slice of one table: its verdict, its published content, and what was refused."""

    table: str
    key: Slice
    verdict: Verdict
    reason: str | None = None
    hint: str | None = None
    is_final: bool = False
    final_at: str | None = None
    """By which clock's time it was judged final; every deadline that this rests on had passed then. None = not on record."""
    baseline: Baseline | None = None
    """What changes of a final slice are measured against; None where it is not final, or not on record."""
    digest: Digest = EMPTY
    file_hash: str | None = None
    input_state: InputState | None = None
    """What the published content was built from; None = unknown, so the slice is stale."""
    code_version: str | None = None
    rejection: Rejection | None = None
    """The change that was not published last: the same inputs are not tried again."""
    figures: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    """Of the published content; repeated while it stands."""
    refused_evaluations: tuple[Evaluation, ...] = ()
    """Of the content that was refused last, while the refusal stands."""
    run_id: str | None = None
    """The run that wrote it last; not written from here."""
    read_hash: str | None = None
    """`file_hash` of the row this record was made from; not written: a row that names other files by now is left alone."""

    def was_final(self, now: datetime) -> bool:
        """Whether it counts as final: a finality judged by a clock that was ahead of now does not count.

        One that is ahead by no more than clocks of two hosts differ does: else the host that lags would take bounds off.
        """
        return self.is_final and (self.final_at is None or datetime.fromisoformat(self.final_at) <= now + CLOCKS_DIFFER)

    def __post_init__(self) -> None:
        """Bound what is told of it where it is made: it is kept, and compared with what is on record."""
        _bound(self)

    @property
    def knows_inputs(self) -> bool:
        """Whether it was recorded by the run that published the content, and not found in the table by another one."""
        return self.input_state is not None


@dataclass(frozen=True)
class PublicationRecord:
    """One change of one slice, never altered afterwards (law 8)."""

    table: str
    key: Slice
    snapshot_id: int
    parent_id: int
    digest_before: Digest
    digest_after: Digest
    cause: Cause
    run_id: str | None
    input_state: InputState | None = None
    code_version: str | None = None
    accepted_reason: str | None = None
    figures: Mapping[str, float] | None = None
    """Of the content published; None where a table was settled and nothing was measured."""
    seconds: float = 0.0
    published_at: str = ""
    number: int = 0
    """Its place among all publications; given by the ledger."""
    pins: Mapping[str, int] | None = None
    """Key of each upstream table -> the snapshot it was built from; None where it was built from no table, or not recorded."""
    settings: Mapping[str, Any] | None = None
    """Name -> value of the settings that the build read (domain/recorded_settings.py); None where they were not recorded."""


@dataclass(frozen=True)
class Exclusion:
    """A person's decision that one version of an object is not to be loaded."""

    batch: BatchKey
    object_key: str
    etag: str
    sha256: str | None
    """Of its bytes, which stay excluded under another etag; None in rows that were recorded before versions had to be read."""
    reason: str
    run_id: str | None = None
    excluded_at: str = ""
    lift_reason: str | None = None
    lifted_at: str | None = None
    """None while it stands."""

    def names(self, etag: str, sha256: str | None) -> bool:
        """Whether it is this version that is ruled out: the same bytes, or where bytes are not known, the same known version."""
        if self.sha256 is not None and sha256 is not None:
            return self.sha256 == sha256
        return bool(self.etag) and self.etag == etag.removeprefix(UNREAD)


@dataclass(frozen=True)
class Hold:
    """A person's decision that a slice stays as it is."""

    table: str
    key: Slice
    reason: str
    run_id: str | None = None
    held_at: str = ""
    release_reason: str | None = None
    released_at: str | None = None
    """None while it stands."""


@dataclass(frozen=True)
class Head:
    """The snapshot of a table that the ledger agreed with last."""

    snapshot_id: int
    is_trusted: bool = True
    """Whether what is recorded is what that snapshot holds; where it is doubted, the next load compares them."""
