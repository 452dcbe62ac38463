"""Deliveries that left one prefix and live on in the other with the same bytes (`tidemark split-landing`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from pipeline_assets.domain.deliveries import Delivery, Listing
from pipeline_assets.domain.records import DeliveryRecord, Exclusion
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT

if TYPE_CHECKING:
    from resources.landing.store import LandingStore
    from resources.ledger.store import Ledger

_Place = tuple[str, date, int, int]
"""Project, arrival day, hour and shard: what the names of both prefixes say."""


@dataclass(frozen=True)
class Relocated:
    """Objects in raw that landing lists under the other prefix now."""

    arrived: frozenset[str] = frozenset()
    """Raw holds the copy's rows: these leave."""
    awaited: frozenset[str] = frozenset()
    """The copy is not loaded yet: these stay until it is, or the day would be short of them meanwhile."""


def find_relocated(
    source: Source,
    listing: Listing,
    accepted: Mapping[str, DeliveryRecord],
    landing: LandingStore,
    ledger: Ledger,
    settings: Settings,
) -> Relocated:
    """Of the accepted deliveries of a source, those that its listing lacks and the other source's has.

    Landing is listed once more, after `listing`, and only where something is gone: an object that was copied before it was
    deleted is seen by one of the two. Raises what `LandingStore.list` does.
    """
    listed = {delivery.key for delivery in listing.deliveries}
    gone = [record for key, record in accepted.items() if key not in listed and record.sha256 is not None]
    if not gone:
        return Relocated()
    (other,) = set(Source) - {source}
    projects = sorted({record.batch.project_id for record in gone})
    days = [record.batch.arrival_date for record in gone]
    there = landing.list(other, projects, min(days), max(days)).deliveries
    if not there:
        return Relocated()
    return sort_relocated(
        gone,
        there,
        ledger.deliveries(other, projects, min(days), max(days)),
        ledger.interventions.exclusions(other, projects, min(days), max(days)),
        settings,
    )


def sort_relocated(
    gone: Sequence[DeliveryRecord],
    there: Sequence[Delivery],
    loaded: Mapping[str, DeliveryRecord],
    exclusions: Mapping[str, Sequence[Exclusion]],
    settings: Settings,
) -> Relocated:
    """The same from values: `there` is what the other prefix lists, `loaded` what raw holds of it."""
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    copies: dict[_Place, list[Delivery]] = defaultdict(list)
    for delivery in there:
        batch = delivery.batch
        copies[batch.project_id, batch.arrival_date, delivery.hour, delivery.shard].append(delivery)
    arrived, awaited = set(), set()
    for record in gone:
        batch = record.batch
        named = grammar.parse(batch.source, batch.project_id, record.object_key, "", 0)
        if not isinstance(named, Delivery):
            continue
        for copy in copies[batch.project_id, batch.arrival_date, named.hour, named.shard]:
            known = loaded.get(copy.key)
            if known is not None and known.etag == copy.etag:
                if known.sha256 == record.sha256:
                    arrived.add(record.object_key)
            elif copy.size_bytes == record.size_bytes and not any(
                exclusion.names(copy.etag, None) for exclusion in exclusions.get(copy.key, ())
            ):
                awaited.add(record.object_key)
    return Relocated(frozenset(arrived), frozenset(awaited - arrived))
