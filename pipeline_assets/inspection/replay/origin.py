"""What a publication was built from, according to the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.input_state import InputDay, InputState
from pipeline_assets.domain.recorded_settings import with_recorded
from pipeline_assets.domain.records import PublicationRecord, SliceRecord
from pipeline_assets.domain.row_hash import ROW_HASH_VERSION
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest
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
