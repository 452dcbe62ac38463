"""Rule out deliveries, and lift that again: recorded here, acted on by the load of their arrival day.

Contains: which versions an operator means by a key, and when that must be refused.
Add here: another condition of an exclusion.
Does not contain: what a load does about it (deliveries/batch.py), the record
(resources/ledger/interventions.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from pipeline_assets.domain.deliveries import Delivery
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.plain_text import recordable
from pipeline_assets.domain.reasons import a_reason
from pipeline_assets.domain.records import DeliveryRecord, Exclusion
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source, neighbourhood
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

_READ_BYTES = 1024**2


def delivery_named(key: str, settings: Settings) -> Delivery:
    """The delivery that a key names, whether or not it is there; raises UsageError for any other name."""
    keys = EXPORT_FORMAT.keys(settings.marker_pattern)
    folder = key.partition("/")[0]
    for project in settings.projects:
        for source in Source:
            if folder == source.prefix(project):
                named = keys.parse(source, project, key, "", 0)
                if isinstance(named, Delivery):
                    return named
    raise UsageError(
        key, "is not the key of a delivery of a configured project", "Copy it from landing or from `explain`"
    )


def exclude(
    runtime: Runtime, reasons: Mapping[str, str], request: LoadRequest, *, even_if_gone: bool
) -> list[Exclusion]:
    """Record that every known version of these objects is excluded; returns what was not excluded before.

    `reasons`: object key -> why. An exclusion names bytes, so what landing holds and no load has read is read first. Raises
    UsageError, with nothing recorded, for a key that is no delivery, that the run does not load, that nobody knows, whose bytes
    cannot be read, or that landing lost, unless `even_if_gone`: it could not be restored.
    """
    exclusions = [
        exclusion
        for key, reason in sorted(reasons.items())
        for exclusion in _versions(runtime, key, reason, request, even_if_gone)
    ]
    fresh = runtime.ledger.interventions.exclude(exclusions, request.run_id)
    for exclusion in fresh:
        runtime.log(f"excluded {exclusion.object_key} ({exclusion.etag}): {exclusion.reason}")
    return fresh


def _versions(runtime: Runtime, key: str, reason: str, request: LoadRequest, even_if_gone: bool) -> list[Exclusion]:
    named = _named_in(request, key, reason, runtime.settings)
    source, project, day = named.batch.source, named.batch.project_id, named.batch.arrival_date
    recorded: Sequence[DeliveryRecord] = [
        record
        for is_accepted in (True, False)
        if (record := runtime.ledger.deliveries(source, [project], day, day, is_accepted=is_accepted).get(key))
        is not None
    ]
    listing = runtime.landing.list(source, [project], day, day)
    listed = next((delivery for delivery in listing.deliveries if delivery.key == key), None)
    if listed is None and not recorded:
        raise UsageError(key, "is neither in landing nor on record", "Copy the key from landing or from `explain`")
    if listed is None and not even_if_gone:
        raise UsageError(
            key,
            "landing no longer holds it, so its rows could not be restored",
            "Put it back into landing first, or exclude it for good (--even-if-gone, exclude_even_if_gone in run config)",
        )
    versions = {record.etag: record.sha256 for record in recorded if record.sha256 is not None}
    if listed is not None and listed.etag not in versions:
        versions[listed.etag] = hash_of(runtime.landing, listed)
    if not versions:
        raise UsageError(
            key,
            "is no longer in landing, and the ledger does not know the bytes of its rows, so no version can be excluded",
            "Put it back into landing, load the day, then exclude it",
        )
    return [Exclusion(named.batch, key, etag, sha256, recordable(reason)) for etag, sha256 in versions.items()]


def hash_of(landing: LandingStore, listed: Delivery) -> str:
    """sha256 of the bytes that landing holds; raises UsageError where they cannot be read."""
    try:
        with landing.open(listed.key, listed.etag) as content:
            digest = hashlib.sha256()
            while part := content.read(_READ_BYTES):
                digest.update(part)
            return digest.hexdigest()
    except TidemarkError as error:
        raise UsageError(
            listed.key,
            f"cannot be read, so its bytes cannot be excluded: it {error.reason}",
            "Exclude it again once it can be read; nothing was recorded",
        ) from error


def lift(runtime: Runtime, reasons: Mapping[str, str], request: LoadRequest) -> None:
    """Record that these objects are ruled out no more; `reasons`: object key -> why.

    Raises UsageError, with nothing recorded, for a key that was never excluded or that the run does not load.
    """
    known = (
        {exclusion.object_key for exclusion in runtime.ledger.interventions.all_exclusions(request.projects)}
        if reasons
        else set()
    )
    in_force = {}
    for key, reason in sorted(reasons.items()):
        batch = _named_in(request, key, reason, runtime.settings).batch
        day = batch.arrival_date
        if key not in known:
            raise UsageError(key, "was never excluded", "`tidemark exclusions` lists what is")
        # Nothing is excluded where an earlier try of this run included it again.
        in_force[key] = runtime.ledger.interventions.exclusions(batch.source, [batch.project_id], day, day).get(key, ())
    for key, exclusions in in_force.items():
        if not exclusions:
            continue
        runtime.ledger.interventions.lift(exclusions, recordable(reasons[key]), request.run_id)
        runtime.log(f"included {key} again: {reasons[key]}")


def _named_in(request: LoadRequest, key: str, reason: str, settings: Settings) -> Delivery:
    a_reason(key, reason)
    named = delivery_named(key, settings)
    batch = named.batch
    if batch.arrival_date not in request.days:
        raise UsageError(key, f"arrived on {batch.arrival_date}, which this run does not load", "Choose that partition")
    if RAW_TABLES[batch.source].key not in request.tables:
        raise UsageError(
            key,
            f"is one of the {batch.source.value} exports, which this run does not load",
            "Choose the job that loads them",
        )
    return named


def touched_slices(ledger: Ledger, settings: Settings, keys: Collection[str]) -> set[Slice]:
    """Days that loads without, or again with, these objects may change: those their batches hold, and their neighbours."""
    touched: set[Slice] = set()
    for key in keys:
        batch = delivery_named(key, settings).batch
        day = batch.arrival_date
        held = ledger.batch_days(batch.source, [batch.project_id], day, day).get(batch, {})
        touched |= neighbourhood((Slice(d, batch.project_id) for d in (*held, day)), settings.dedupe_window_days)
    return touched
