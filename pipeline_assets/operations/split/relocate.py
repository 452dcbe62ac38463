"""Move recovered objects under the backfill grammar, hour by hour; landing alone shows where an interrupted move stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import (
    LandingConflictError,
    ObjectMovedError,
    TidemarkError,
    UnreadableObjectError,
    UsageError,
)
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import ObjectKeys
from pipeline_assets.operations.split.evidence import Recovered
from resources.landing.move import Mover, Upload


@dataclass(frozen=True)
class Relocation:
    """The result for one object."""

    recovered: Recovered
    refusal: TidemarkError | None = None
    """Why it was not moved; None where it was."""


def relocate(
    recovered: Sequence[Recovered],
    project_id: str,
    mover: Mover,
    grammar: ObjectKeys,
    excluded: Collection[str],
    is_claimed: Callable[[Hour], bool],
) -> Iterator[Relocation]:
    """Move objects of a project, hour by hour; yields the result for each.

    All objects of an hour are copied and compared. Then the hour's marker is written, so that a load that waits for markers
    finds whole hours. Then the sources are deleted. So a repetition only needs the remaining sources: a deleted source has
    a verified copy and a marker. If an object is refused, no source of its hour is deleted.

    `excluded`: keys of which an operator excluded a version. `is_claimed`: whether a recovery of an hour began and has not
    ended. Until its marker exists, such an hour stays, because the move's marker would call it complete.

    Raises LandingAccessError and LandingUnavailableError where landing as a whole refuses, and LedgerError where claims
    cannot be read; objects that were moved stay moved.
    """
    for (day, hour), of_hour in groupby(sorted(recovered), key=lambda one: (one.placed.arrival_date, one.placed.hour)):
        objects = list(of_hour)
        of_day, marker = Hour(day, hour), grammar.format_marker(BatchKey(Source.BACKFILL, project_id, day), hour)
        if _is_unfinished(of_day, marker, mover, is_claimed):
            yield from (Relocation(one, _claimed(one, project_id, of_day)) for one in objects)
            continue
        data = [one for one in objects if not one.placed.is_marker]
        markers = [one for one in objects if one.placed.is_marker]
        results = [_copied(one, mover, excluded) for one in data]
        if any(isinstance(copy, TidemarkError) for copy in results):
            # The sources stay, so that a repetition finds the hour and writes its marker.
            for one, copy in zip(data, results, strict=True):
                yield Relocation(one, copy if isinstance(copy, TidemarkError) else _waiting(one))
            yield from (Relocation(one, _waiting(one)) for one in markers)
            continue
        # Checked again, because a recovery may have begun during the copies, and before any marker is moved.
        if _is_unfinished(of_day, marker, mover, is_claimed):
            yield from (Relocation(one, _claimed(one, project_id, of_day)) for one in objects)
            continue
        results += [_copied(one, mover, excluded) for one in markers]
        mover.mark(marker)
        for one, copy in zip([*data, *markers], results, strict=True):
            yield Relocation(one, copy if isinstance(copy, TidemarkError) else _deleted(one, copy, mover))


def _is_unfinished(hour: Hour, marker: str, mover: Mover, is_claimed: Callable[[Hour], bool]) -> bool:
    """Whether a recovery may have written only a part of the hour; with a marker, it wrote all."""
    return is_claimed(hour) and mover.find(marker) is None


def _claimed(one: Recovered, project_id: str, hour: Hour) -> TidemarkError:
    reason = "stays where it is, because a recovery of its hour began and has not ended: a marker now would call the hour whole"
    hint = f"Run `tidemark recover --from {hour} --to {hour} --project {project_id}`, then this command again"
    return UsageError(one.placed.upload.key, reason, hint)


def _copied(one: Recovered, mover: Mover, excluded: Collection[str]) -> Upload | TidemarkError:
    source, target_key = one.placed.upload, one.placed.target_key
    if source.is_link:
        return UsageError(source.key, "is a link, and what it leads to would stay", "Move the file it leads to by hand")
    if source.key in excluded or target_key in excluded:
        reason = f"is excluded, or {target_key} is, and an exclusion names one key: the same bytes would count, or vanish, there"
        return UsageError(source.key, reason, "`tidemark include` it, move it, then exclude it by its new key")
    try:
        return mover.copy(source, target_key)
    except (LandingConflictError, ObjectMovedError, UnreadableObjectError) as error:
        return error


def _deleted(one: Recovered, copy: Upload, mover: Mover) -> TidemarkError | None:
    try:
        mover.delete(one.placed.upload, copy)
    except (ObjectMovedError, UnreadableObjectError) as error:
        return error
    return None


def _waiting(one: Recovered) -> TidemarkError:
    reason = "stays where it is, because another object of its hour could not be moved"
    return UsageError(one.placed.upload.key, reason, "Clear that one up, then run the command again")
