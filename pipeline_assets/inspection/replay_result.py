"""The values and the wording of a replay: a publication's inputs, the computed rows, and why the two differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.records import InputDay, InputState, PublicationRecord, SliceRecord, with_recorded
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, ROW_HASH_VERSION, Digest
from pipeline_assets.inspection.diff import Sample
from pipeline_assets.tables.table import Table
from pipeline_assets.transforms.digests import CHANGED


class ReplayBasis(StrEnum):
    """The inputs and settings that a publication is recomputed from."""

    AS_PUBLISHED = "as published"
    CURRENT = "current"


class ReplayResult(StrEnum):
    """The result of a replay."""

    EQUAL = "equal"
    """Inputs and digest match the record; or current inputs give the recorded digest."""
    DIFFERS = "differs"
    IMPOSSIBLE = "cannot be replayed"
    """An input is not on record or no longer kept; or no load would build the slice now."""


@dataclass(frozen=True)
class InputSlice:
    """An upstream day that the publication was built from."""

    day: InputDay
    recorded: Digest
    pin: int | None = None
    read_from: int | None = None
    """A snapshot that still holds those rows; None where the day was empty, or no kept snapshot has them."""
    measured: Digest | None = None
    """Computed from the columns of its files; None where they are gone or unreadable."""
    reason: str = ""
    is_lost: bool = False
    """Whether a kept snapshot names its files but they cannot be read."""

    @property
    def is_as_recorded(self) -> bool:
        """Whether its original rows are still there."""
        return self.measured == self.recorded

    def __str__(self) -> str:
        """Where the rows are, and whether they are the original ones."""
        rows = f"{self.recorded.rows:,} rows"
        if self.measured is None:
            told = f"{rows}, {self.reason}"
        elif not self.is_as_recorded:
            told = f"the files of snapshot {self.read_from} {other_rows(self.recorded, self.measured)}"
        elif self.recorded == EMPTY:
            told = "no rows"
        elif self.read_from == self.pin:
            told = f"{rows}, from snapshot {self.pin}"
        else:
            own = "its own snapshot is not on record" if self.pin is None else f"not read from snapshot {self.pin}"
            told = f"{rows}, the same in snapshot {self.read_from} ({own})"
        return f"{self.day.table} {self.day.day}: {told}"


def other_rows(recorded: Digest, measured: Digest) -> str:
    """How content differs from the record, in words."""
    if measured.rows < recorded.rows:
        return f"lost rows: {measured.rows:,} of {recorded.rows:,} are left"
    if measured.rows > recorded.rows:
        return f"hold {measured.rows:,} rows, but {recorded.rows:,} are on record"
    return f"hold {measured.rows:,} rows as on record, but not the same ones"


@dataclass(frozen=True)
class Keys:
    """Numbers of keys of a slice in one state, the other, or both."""

    kept: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0

    def __str__(self) -> str:
        """`keys added 3, changed 1`."""
        parts = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return ", ".join(f"{name} {count:,}" for name, count in parts.items() if count) or "no key differs"


@dataclass(frozen=True)
class Share:
    """The share of one input in the difference."""

    cause: str
    keys: Keys
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measure -> difference; unchanged measures are left out."""

    def __str__(self) -> str:
        """The cause with its keys and measures."""
        if not (self.keys.added or self.keys.removed or self.keys.changed):
            return f"{self.cause}: {self.keys}"
        return f"{self.cause}: keys {self.keys}" + "".join(f"; {name} {by:+,.12g}" for name, by in self.figures.items())


@dataclass(frozen=True)
class Replay:
    """One publication of one slice, recomputed."""

    publication: PublicationRecord
    basis: ReplayBasis
    result: ReplayResult
    is_standing: bool
    code: tuple[str | None, str]
    replayed: Digest | None = None
    inputs: tuple[InputSlice, ...] = ()
    differing: tuple[str, ...] = ()
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Name -> (value then, value now), where they differ."""
    causes: tuple[str, ...] = ()
    """Why the replay is not equal or impossible, the most important first."""
    hint: str = ""
    notes: tuple[str, ...] = ()
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Measure -> (published, computed)."""
    keys: Keys | None = None
    """None where one side is missing."""
    shares: tuple[Share, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether the replay gave the recorded content."""
        return self.result is ReplayResult.EQUAL


def lines_of(replay: Replay) -> Iterator[str]:
    """The replay as lines of text."""
    record = replay.publication
    by = f" by run {record.run_id[:8]}" if record.run_id else ""
    standing = "" if replay.is_standing else ", not the last one of the day"
    yield f"{record.table} {record.key}: {replay.result.value} ({replay.basis.value})"
    yield f"  publication {record.number} of {record.published_at[:19]}{by} ({record.cause.text or 'no cause'}){standing}"
    yield f"  on record  {record.digest_after}"
    yield f"  computed   {replay.replayed if replay.replayed is not None else 'nothing'}"
    yield f"  code       {replay.code[0]}{'' if replay.code[0] == replay.code[1] else f', this one {replay.code[1]}'}"
    listed = {"input": replay.inputs, "differs": replay.differing}
    listed["setting"] = tuple(
        f"{name}: {_shown(then)} then, {_shown(now)} today" for name, (then, now) in replay.settings.items()
    )
    for name, texts in (listed | {"cause": replay.causes, "note": replay.notes}).items():
        yield from (f"  {name:<10} {text}" for text in texts)
    if replay.hint:
        yield f"  fix: {replay.hint}"
    if replay.figures and not replay.is_equal:
        yield ""
        yield f"  {'':<24}{'published':>16}{'computed':>16}"
        for name, (before, after) in replay.figures.items():
            yield f"  {name:<24}{before:>16,.12g}{after:>16,.12g}"
    if replay.keys is not None and not replay.is_equal:
        yield f"  keys {replay.keys}; {replay.keys.kept:,} are equal"
    if replay.shares:
        yield from ("", "  what makes the difference", *(f"    {share}" for share in replay.shares))
    for sample in replay.samples:
        yield ""
        yield f"  {sample.change}: {sample.name}"
        for column, (then, now) in sample.values.items() if sample.change == CHANGED else ():
            yield f"    {column}: {then} -> {now}"


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


_LOAD = "Load the day: what that publishes is on record with all that it is built from"
_NOT_ON_RECORD = {
    CauseKind.FOREIGN: "no run of ours published it, so what it was made from is not on record",
    CauseKind.UNRECORDED_RUN: "the run that published it died before it recorded what it was built from",
    CauseKind.ROLLBACK: "it was rolled back to a state whose inputs are not on record",
}
_CONFIRMED = (
    "what it was built from is not on record; it is computed from the inputs in which a later load found the same rows"
)
_NO_SETTINGS = "its settings were not recorded, and today's are others: it is computed with today's"
_OTHER_CODE = "it was published by other code: it is computed with the code of today and the settings on record"


@dataclass(frozen=True)
class Origin:
    """The recorded inputs, settings and code of a publication."""

    state: InputState
    pins: Mapping[str, int]
    """Upstream table -> the snapshot that the build read; only where recorded."""
    settings: Settings
    """As far as they are recorded, else the current ones."""
    are_settings_known: bool
    is_same_code: bool
    notes: tuple[str, ...] = ()

    def digest(self, day: InputDay) -> Digest:
        """The digest of an upstream day at the time."""
        return self.state.upstream.get(day, EMPTY)


@dataclass(frozen=True)
class Obstacle:
    """Why a publication cannot be recomputed."""

    reason: str
    hint: str


def origin_of(
    table: Table, publication: PublicationRecord, confirmed: SliceRecord | None, settings: Settings
) -> Origin | Obstacle:
    """The recorded inputs, or why they are unknown; `confirmed`: the last publication's slice. Raises SettingsError."""
    state, code, notes = publication.input_state, publication.code_version, []
    if state is None and confirmed is not None and confirmed.digest == publication.digest_after:
        state, code = confirmed.input_state, confirmed.code_version
        notes.append(_CONFIRMED)
    if state is None:
        return Obstacle(_NOT_ON_RECORD.get(publication.cause.kind, "its inputs are not on record"), _LOAD)
    if table.kind.is_shared and state.delivered is not None:
        return Obstacle("it was read from landing, which no table keeps", "Compare it with landing: tidemark verify")
    if table.dimension is not None and any(day.table == table.dimension.validity.key for day in state.upstream):
        reason = "it was joined with delivered intervals, of which no table keeps a day by itself"
        return Obstacle(reason, "Compare it with what landing says now: tidemark verify")
    measured = (publication.digest_after, *state.upstream.values())
    if any(digest.version != ROW_HASH_VERSION for digest in measured):
        return Obstacle("its digests were measured by another version of the row hash", _LOAD)
    other = sorted({day.table for day in state.upstream} - set(table.upstream))
    if other:
        reason = f"it was built from {other[0]}, which {table.key} is no longer built from"
        return Obstacle(reason, "Replay it with the version of Tidemark that published it")
    own = with_recorded(settings, publication.settings or {})
    is_same_code = code == table.code_version(own)
    are_known = publication.settings is not None or is_same_code
    if not are_known:
        notes.append(_NO_SETTINGS)
    elif not is_same_code:
        notes.append(_OTHER_CODE)
    return Origin(state, publication.pins or {}, own, are_known, is_same_code, tuple(notes))


_GONE = (
    "Compare with today's inputs: --current; with landing: tidemark verify. A longer history keeps more: rollback_days"
)
_FILES = "Restore the files from the bucket's versions or a copy, or load the day again: docs/operations.md"


@dataclass(frozen=True)
class PublishedToday:
    """The table's current content of a slice whose last publication is replayed."""

    rows: Digest | str
    """The digest of its rows, or why they cannot be read."""
    is_settled: bool
    """Whether the ledger agrees with the table's current snapshot."""


def gone(inputs: Sequence[InputSlice]) -> list[Obstacle]:
    """The inputs that can no longer be read, as obstacles."""
    return [
        Obstacle(f"{one.day.table} {one.day.day}: {one.reason}", _FILES if one.is_lost else _GONE)
        for one in inputs
        if one.measured is None
    ]


def as_published_causes(
    origin: Origin, inputs: Sequence[InputSlice], recorded: Digest, replayed: Digest, published: PublishedToday | None
) -> list[Obstacle]:
    """Why a replay from the original inputs differs, nearest to the source first; `published`: None if it is not the last one."""
    causes = [
        Obstacle(f"input {one.day.table} {one.day.day} is not what it was: {str(one).partition(': ')[2]}", _FILES)
        for one in inputs
        if one.measured not in (None, one.recorded)
    ]
    if replayed != recorded and not (origin.are_settings_known and origin.is_same_code):
        text = "code: another version published it, and this one makes other rows of the same inputs"
        if not origin.are_settings_known:
            text = (
                "settings: those of then are not on record, and its code version says that they or the code were others"
            )
        hint = "Replay it with the version of Tidemark, and the settings, that published it"
        causes.append(Obstacle(text, hint))
    elif replayed != recorded and not causes:
        text = "code: inputs, settings and code version are those on record, so code or a library changed without it"
        hint = "Report it with this output, and raise the table's version where its build was changed"
        causes.append(Obstacle(text, hint))
    return [*causes, *of_published(recorded, published)]


def of_published(recorded: Digest, published: PublishedToday | None) -> Iterator[Obstacle]:
    """The problem of the published rows themselves, if there is one."""
    if published is None or published.rows == recorded:
        return
    if isinstance(published.rows, str):
        yield Obstacle(f"the published rows cannot be read: {published.rows}", _FILES)
        return
    other = other_rows(recorded, published.rows)
    if published.is_settled:
        yield Obstacle(f"the published files were changed in their place: they {other}", _FILES)
        return
    who = "by a foreign hand or by a run that has not recorded it"
    text = f"the table was changed since it was recorded, {who}: its files {other}"
    yield Obstacle(text, "Load the day: the load records what it finds, and builds it again")
