"""Ledger records as plain values: inputs, deliveries, batches, slices, publications, operators' decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from pipeline_assets.domain.changes import Baseline, Cause
from pipeline_assets.domain.checks import BoundTexts, Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.masking import URL_SETTINGS
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Verdict


class InputDay(NamedTuple):
    """One day of an upstream table, of the slice's project."""

    table: str
    day: date


@dataclass(frozen=True)
class InputState:
    """The inputs that a slice was built from, or would be built from now."""

    upstream: Mapping[InputDay, Digest] = field(default_factory=dict)
    """Upstream day -> digest, for days that hold rows."""
    cross_day: str | None = None
    """Digest of rows on other days that share a key with this slice, see `identity.with_tie`; None = not compared."""
    delivered: str | None = None
    """Version of the landing object of a slice that is read from landing."""

    @property
    def is_nothing(self) -> bool:
        """Whether there is no input."""
        return not self.upstream and self.cross_day is None and self.delivered is None

    def __str__(self) -> str:
        """Render the inputs; equal inputs give equal texts."""
        days = [f"{name.table} {name.day.isoformat()} {digest}" for name, digest in sorted(self.upstream.items())]
        days += [f"rows on other days {self.cross_day}"] if self.cross_day is not None else []
        return ", ".join([*days, self.delivered] if self.delivered is not None else days)


@dataclass(frozen=True)
class Rejection:
    """A change that was not published; a load tries it again once one of these values differs."""

    inputs: InputState
    judged_by: str | None = None
    """Code version and bounds that judged it; None in old rows, which are tried again."""
    waits_for: tuple[date, ...] = ()
    """Days of the same project that cannot be published and share events; empty where its own checks failed."""


_NEVER = frozenset({*URL_SETTINGS, "spark_config", "notify_urls"})
"""Never recorded: they may hold a password or a webhook's secret URL."""


def on_record(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    """Name -> value in JSON types, without settings that may hold secrets."""
    values = {name: getattr(settings, name) for name in sorted(names) if name not in _NEVER}
    recorded: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return recorded


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> (value then, value now) of the settings that differ; None where a side lacks the setting."""
    return {
        name: (then.get(name), now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    }


def with_recorded(settings: Settings, recorded: Mapping[str, Any]) -> Settings:
    """The settings with the recorded values, without recorded settings that no longer exist; raises SettingsError."""
    values = {}
    for name, value in recorded.items():
        if name not in type(settings).model_fields:
            continue
        kind: Any = type(settings).model_fields[name].annotation
        try:
            values[name] = TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            reason = f"has the recorded value {value!r}, which this Tidemark cannot read"
            raise SettingsError(name, reason, "Replay it with the version of Tidemark that published it") from error
    return settings.model_copy(update=values)


CLOCKS_DIFFER = timedelta(minutes=5)


THIS_LOAD = "~"
"""Stands for the moment that the load under way will record; sorts after all on record."""


@dataclass(frozen=True)
class DeliveryRecord:
    """One version of one object: the one whose rows raw holds, or the one that was refused last."""

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
    """Whether raw holds its rows; a refused version is recorded beside the accepted one."""
    code_version: str | None = None
    """The parser's version; another version reads quarantined lines again."""
    line_reasons: tuple[tuple[str, int], ...] = ()
    """Reason -> quarantined lines; UNREADABLE + column -> values that are null in kept rows."""
    recorded_at: str = field(default=THIS_LOAD, compare=False)
    """When the ledger first recorded these bytes under this key: ISO text; another etag keeps it."""
    run_id: str | None = field(default=None, compare=False)

    @property
    def is_damaged(self) -> bool:
        """Whether another program removed rows of it from raw."""
        return self.etag.startswith(DAMAGED)


UNREAD = "unread "
"""Prefix of the etag of an object that is in raw but not in the ledger; the next load reads it again."""
DAMAGED = f"{UNREAD}damaged "
"""Prefix for an object of which another program removed rows from raw."""
MISSING = "missing_objects"
"""Figure: recorded objects that landing does not list; if the evaluation passed, an operator accepted the loss."""

VANISHED = "vanished_rows"
"""Figure: rows that left raw because landing lost them, since an operator last accepted a loss."""
EXCLUDED = "excluded_objects"
HOURS_UNFINISHED = "hours_unfinished"
"""Figure: hours whose recovery has no marker yet, so that their objects are not loaded."""
HOURS_UNPLACED = "hours_unplaced"
"""Figure of `delivery_complete`: hours with objects whose names cannot be placed."""
HOURS_HELD = "hours_held"
"""Figure of `delivery_complete` with absent hours: hours with objects or markers of any source."""


@dataclass(frozen=True)
class BatchRecord(BoundTexts):
    """The latest verdict on one batch."""

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
    evaluations: tuple[Evaluation, ...] = ()
    run_id: str | None = None

    def _figures(self, name: str, *, is_passed: bool) -> list[float]:
        return [e.figures[name] for e in self.evaluations if e.is_passed is is_passed and e.figures.get(name)]

    @property
    def partial_hours(self) -> int | None:
        """Hours that any source held when the batch was recorded as missing others; None for other batches."""
        held = (e.figures[HOURS_HELD] for e in self.evaluations if not e.is_passed and HOURS_HELD in e.figures)
        return next((int(hours) for hours in held), None)

    @property
    def has_unplaced(self) -> bool:
        """Whether hours hold objects whose names cannot be placed, so that no load reads them."""
        return bool(self._figures(HOURS_UNPLACED, is_passed=False))

    @property
    def is_missing(self) -> bool:
        """Whether the batch is refused because deliveries are missing; an operator may accept that."""
        return bool(self._figures(MISSING, is_passed=False))

    @property
    def is_loss_accepted(self) -> bool:
        """Whether an operator accepted the loss of deliveries."""
        return bool(self._figures(MISSING, is_passed=True))

    @property
    def is_decided(self) -> bool:
        """Whether an operator accepted lost deliveries or excluded deliveries, so that no load waits for them."""
        return self.is_loss_accepted or bool(self._figures(EXCLUDED, is_passed=True))

    @property
    def is_let_go(self) -> bool:
        """Whether an operator decided that missing deliveries never come, as by excluding all that came."""
        return self.is_loss_accepted or (self.is_decided and not self.deliveries)

    @property
    def vanished_rows(self) -> float:
        """Rows that vanished since an operator last accepted a loss."""
        return sum(one.figures.get(VANISHED, 0) for one in self.evaluations)


@dataclass(frozen=True)
class BatchDay:
    """The rows of one batch on one event day."""

    digest: Digest = EMPTY
    lineage: str | None = None
    """Digest over each row's object and line; None = unknown."""
    lateness: LatenessSketch | None = field(default=None, compare=False)
    """Derived from the rows, so not compared; None = not measured, or not read from the ledger."""


@dataclass(frozen=True)
class SliceRecord(BoundTexts):
    """One slice of one table: its verdict, its published content, and its refusal."""

    table: str
    key: Slice
    verdict: Verdict
    reason: str | None = None
    hint: str | None = None
    is_final: bool = False
    final_at: str | None = None
    """When the slice was judged final, after all deadlines that this rests on: ISO text."""
    baseline: Baseline | None = None
    """Reference for changes of a slice whose deadline has passed; a provisional one may have it too."""
    digest: Digest = EMPTY
    file_hash: str | None = None
    input_state: InputState | None = None
    """Inputs of the published content; None = unknown, so the slice is stale."""
    code_version: str | None = None
    rejection: Rejection | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    refused_evaluations: tuple[Evaluation, ...] = ()
    """Checks of the content that was refused last; empty once the refusal is over."""
    run_id: str | None = None
    read_hash: str | None = None
    """`file_hash` of the ledger row that this was read from; a row that changed since is not overwritten."""

    def was_final(self, now: datetime) -> bool:
        """Whether its changes are bounded: it is final or only lacks hours, by a clock ahead by at most `CLOCKS_DIFFER`."""
        is_judged = self.is_final or self.baseline is not None
        return is_judged and (self.final_at is None or datetime.fromisoformat(self.final_at) <= now + CLOCKS_DIFFER)

    @property
    def loss(self) -> Evaluation | None:
        """The evaluation that a data file of it is gone, from the last load."""
        return next((one for one in self.refused_evaluations if one.check == Check.FILES_ARE_THERE), None)

    @property
    def knows_inputs(self) -> bool:
        """Whether the publishing run recorded the slice, rather than a later run that found it in the table."""
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
    """Figures of the published content; None where a ledger sync recorded the change."""
    seconds: float = 0.0
    published_at: str = ""
    number: int = 0
    pins: Mapping[str, int] | None = None
    """Upstream table -> snapshot that the build read; None = not recorded."""
    settings: Mapping[str, Any] | None = None
    """Settings that the build read; None = not recorded."""


@dataclass(frozen=True)
class Exclusion:
    """An operator's decision not to load one version of an object."""

    batch: BatchKey
    object_key: str
    etag: str
    sha256: str | None
    """Hash of its bytes, which stay excluded under another etag; None in old rows."""
    reason: str
    run_id: str | None = None
    excluded_at: str = ""
    lift_reason: str | None = None
    lifted_at: str | None = None

    def names(self, etag: str, sha256: str | None) -> bool:
        """Whether it excludes this version: the same bytes or, where a hash is unknown, the same etag."""
        if self.sha256 is not None and sha256 is not None:
            return self.sha256 == sha256
        return bool(self.etag) and self.etag == etag.removeprefix(DAMAGED).removeprefix(UNREAD)


@dataclass(frozen=True)
class Hold:
    """An operator's decision that loads leave a slice as it is."""

    table: str
    key: Slice
    reason: str
    run_id: str | None = None
    held_at: str = ""
    release_reason: str | None = None
    released_at: str | None = None


@dataclass(frozen=True)
class Head:
    """The latest snapshot of a table that the ledger was compared with."""

    snapshot_id: int
    is_trusted: bool = True
    """Whether the ledger records that snapshot's content; otherwise the next load compares the two."""
