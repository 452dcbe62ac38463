"""Orphan files below a table: which may be removed, which stay, and when none is touched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pipeline_assets.domain.errors import LakehouseError, TidemarkError
from pipeline_assets.domain.retention import YOUNGEST, is_bulk, is_living_fork, outlived_metadata
from pipeline_assets.tables.table import Table
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata_files import is_metadata, predecessor
from resources.iceberg.upkeep import Below, Upkeep, is_written


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """The files that may be removed."""

    orphans: tuple[str, ...] = ()
    """Paths of files that no snapshot and no history needs."""
    metadata: tuple[str, ...] = ()
    """Paths of metadata files that are older than the table's history."""
    others: tuple[str, ...] = ()
    """Paths of files that no snapshot knows, and that neither Tidemark nor Iceberg names so: they stay."""
    note: str = ""
    """A note for the operator."""
    failure: TidemarkError | None = None
    """Why neither orphans nor anything else of the table may be removed."""


def leftovers(
    upkeep: Upkeep, table: Table, name: str, now: datetime, span: timedelta, youngest: timedelta, max_share: float
) -> Leftovers:
    """The files that may be removed below a table's location; removes nothing.

    `span`: how long the table's history is kept; `youngest`: the age below which nothing is removed, no longer than `span`.
    """
    below = upkeep.below(table)
    foreign = [file for file in below.unknown if file.commits and file.table_uuid != below.table_uuid]
    if foreign:
        where = f"{below.location}/{foreign[0].name}"
        reason = f"its folder also holds the files of another table of this name ({where}); no orphan was removed"
        hint = (
            "Find the catalog of that table; move its files away, or attach them to an empty catalog: tidemark attach"
        )
        return Leftovers(failure=LakehouseError(name, reason, hint))
    note = ""
    # File times come from the store's clock.
    clock = min(now, datetime.now(UTC))
    before = clock - youngest
    if _is_forked(below, clock):
        reason = (
            f"another catalog commits to it: {below.location} holds commits of the last day that this one does not know"
        )
        hint = "Stop what uses the other catalog. If this one was restored from a backup, run maintenance again after a day"
        return Leftovers(failure=LakehouseError(name, f"{reason}, and nothing was touched", hint))
    if any(file.commits and file.updated_at >= clock - span for file in below.unknown):
        # A failed commit leaves the same files as a commit that a restored catalog forgot: both are kept as long as snapshots.
        before = clock - span
        note = f"its folder holds metadata that the catalog does not know, so orphans are kept for {span.days} days"
    place = _path(below.location)
    named = ((path, _path(path).removeprefix(f"{place}/")) for path in upkeep.orphans(table, before))
    # Metadata files stay as long as the table's history.
    unknown = {path: name for path, name in named if not is_metadata(name)}
    files = {_last(file.name): file for file in below.files if is_metadata(file.name)}
    written = [(name, file.modified_at) for name, file in files.items()]
    outlived = [files[name].name for name in outlived_metadata(written, below.log, clock, span)]
    unknown |= {f"{below.location}/{name}": name for name in outlived}
    owned = {path: name for path, name in unknown.items() if is_written(name, below.table_uuid)}
    others = tuple(path for path in unknown if path not in owned)
    metadata = tuple(path for path, name in owned.items() if is_metadata(name))
    orphans = tuple(path for path, name in owned.items() if not is_metadata(name))
    data = len(below.files) - sum(is_metadata(file.name) for file in below.files)
    if is_bulk(len(orphans), data, max_share):
        reason = f"no snapshot knows {len(orphans)} of the {data} files below {below.location}; none was removed"
        hint = (
            "List them (tidemark maintenance --dry-run); if none is needed, raise TIDEMARK_MAX_ORPHAN_SHARE for one run"
        )
        return Leftovers(orphans=orphans, others=others, failure=LakehouseError(name, reason, hint))
    return Leftovers(orphans=orphans, metadata=metadata, others=others, note=note)


def _is_forked(below: Below, now: datetime) -> bool:
    """Whether unknown commits follow each other: a commit that failed or was killed has no successor."""
    young = [file for file in below.unknown if file.commits and abs(file.updated_at - now) <= YOUNGEST]
    objects, unknown = LakeObjects(below.location), {_last(file.name) for file in below.unknown}
    return is_living_fork(len(young)) and any(predecessor(objects, file.name) in unknown for file in young)


def _path(url: str) -> str:
    """A location or a file's path in the one spelling that all of a table share: Iceberg's procedures write `file:` before it."""
    return re.sub(r"^file:/*", "/", url)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
