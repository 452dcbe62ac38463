"""Why a replay is not equal: the causes, the most important first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline_assets.domain.slices import Digest
from pipeline_assets.inspection.replay.origin import Obstacle, Origin
from pipeline_assets.inspection.replay.replay import InputSlice, other_rows

_GONE = (
    "Compare with today's inputs: --current; with landing: tidemark verify. Longer histories keep more: rollback_days,"
    " regular_history_days, backfill_history_days"
)
_FILES = "Restore the files from the bucket's versions or a copy, or load the day again: docs/operations.md"
_OTHER_CODE = "Replay it with the version of Tidemark, and the settings, that published it"
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
        yield Obstacle(text, _OTHER_CODE)
    elif not origin.is_same_code:
        text = "code: another version published it, and this one makes other rows of the same inputs"
        yield Obstacle(text, _OTHER_CODE)
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
