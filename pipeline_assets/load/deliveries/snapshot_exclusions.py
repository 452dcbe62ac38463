"""Objects of dimensions that an operator excluded: they are no part of what landing is taken to hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.records import Exclusion, SliceRecord
from pipeline_assets.domain.slices import ALL_PROJECTS, Source

if TYPE_CHECKING:
    from resources.landing.place import Listed
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger

_READ_BYTES = 1024**2
Exclusions = Mapping[str, tuple[Exclusion, ...]]
"""Object key -> the exclusions of its versions that stand."""


def exclusions_of_dimensions(ledger: Ledger) -> dict[str, tuple[Exclusion, ...]]:
    """Of all objects of dimensions."""
    return ledger.interventions.exclusions(Source.REGULAR, [ALL_PROJECTS], date.min, date.max)


def versions_of(exclusions: Mapping[str, Sequence[Exclusion]]) -> frozenset[tuple[str, str]]:
    """(object, etag) of what they name."""
    return frozenset((key, one.etag) for key, own in exclusions.items() for one in own)


def by_version(exclusions: Exclusions) -> Callable[[Listed], str | None]:
    """Why a listed object is excluded, by its etag alone; None where it is not. Nothing is read."""

    def reason(entry: Listed) -> str | None:
        named = (one.reason for one in exclusions.get(entry.key, ()) if one.names(entry.etag, None))
        return next(named, None)

    return reason


def by_bytes(
    exclusions: dict[str, tuple[Exclusion, ...]], landing: LandingStore, ledger: Ledger, run_id: str
) -> Callable[[Listed], str | None]:
    """The same, also of excluded bytes that came again under another etag, which is recorded of that version as well.

    It joins `exclusions` then.
    """
    known = by_version(exclusions)

    def reason(entry: Listed) -> str | None:
        told, own = known(entry), exclusions.get(entry.key, ())
        if told is not None or not any(one.sha256 is not None for one in own):
            return told
        try:
            sha256 = sha256_of(landing, entry.key, entry.etag)
        except TidemarkError:
            # Whoever loads it meets the same and says so.
            return None
        same = [one for one in own if one.sha256 == sha256]
        if not same:
            return None
        exclusions[entry.key] = (*own, replace(same[-1], etag=entry.etag))
        ledger.interventions.exclude(exclusions[entry.key][-1:], run_id)
        return same[-1].reason

    return reason


def sha256_of(landing: LandingStore, key: str, etag: str) -> str:
    """Of the bytes that landing holds; raises what opening raises."""
    with landing.open(key, etag) as content:
        digest = hashlib.sha256()
        while part := content.read(_READ_BYTES):
            digest.update(part)
        return digest.hexdigest()


def is_ruled_out(exclusions: Exclusions | None, record: SliceRecord | None) -> bool:
    """Whether what is published of a slice was read from an excluded version."""
    delivered = record.input_state.delivered if record is not None and record.input_state is not None else None
    if delivered is None or exclusions is None:
        return False
    key, etag, *_ = [*delivered.split(" "), "", ""]
    return any(one.names(etag, None) for one in exclusions.get(key, ()))
