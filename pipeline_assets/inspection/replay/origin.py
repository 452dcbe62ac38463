"""What a publication was built from, according to the ledger, and why a replay of it is not equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.input_state import InputDay, InputState, with_recorded
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest
from pipeline_assets.inspection.replay.replay import InputSlice, other_rows
from pipeline_assets.tables.table import Table

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
    """The settings of that time, as far as they are recorded."""
    are_settings_known: bool
    is_same_code: bool
    """Whether the current code has the recorded version."""
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
    """What a publication was built from, or why that is unknown.

    `confirmed`: the slice's record if the publication is its last one, else None. `settings`: the current ones. Raises
    SettingsError for a recorded setting that cannot be read.
    """
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
_REPLAY_ELSEWHERE = "Replay it with the version of Tidemark, and the settings, that published it"
_DEFECT = "Report it with this output, and raise the table's version where its build was changed"


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
        if one.is_gone
    ]


def as_published_causes(
    origin: Origin, inputs: Sequence[InputSlice], recorded: Digest, replayed: Digest, published: PublishedToday | None
) -> list[Obstacle]:
    """Why a publication recomputed from its own inputs differs from the record; empty where it does not.

    `published`: None where the publication is not the slice's last one.
    """
    return [*_of_inputs(inputs), *_of_build(origin, inputs, recorded, replayed), *of_published(recorded, published)]


def _of_inputs(inputs: Sequence[InputSlice]) -> Iterator[Obstacle]:
    for one in inputs:
        if not one.is_gone and not one.is_as_recorded:
            yield Obstacle(f"input {one.day.table} {one.day.day} is not what it was: {one.change}", _FILES)


def _of_build(origin: Origin, inputs: Sequence[InputSlice], recorded: Digest, replayed: Digest) -> Iterator[Obstacle]:
    if replayed == recorded:
        return
    if not origin.are_settings_known:
        text = "settings: those of then are not on record, and its code version says that they or the code were others"
        yield Obstacle(text, _REPLAY_ELSEWHERE)
    elif not origin.is_same_code:
        text = "code: another version published it, and this one makes other rows of the same inputs"
        yield Obstacle(text, _REPLAY_ELSEWHERE)
    elif all(one.is_as_recorded for one in inputs):
        text = "code: inputs, settings and code version are those on record, so code or a library changed without it"
        yield Obstacle(text, _DEFECT)


def of_published(recorded: Digest, published: PublishedToday | None) -> Iterator[Obstacle]:
    """The problem of the published rows themselves, if there is one."""
    if published is None or published.rows == recorded:
        return
    if isinstance(published.rows, str):
        yield Obstacle(f"the published rows cannot be read: {published.rows}", _FILES)
    elif published.is_settled:
        text = f"the published files were changed in their place: they {other_rows(recorded, published.rows)}"
        yield Obstacle(text, _FILES)
    else:
        text = (
            "the table was changed since it was recorded, by a foreign hand or by a run that has not recorded it: its files"
            f" {other_rows(recorded, published.rows)}"
        )
        yield Obstacle(text, "Load the day: the load records what it finds, and builds it again")
