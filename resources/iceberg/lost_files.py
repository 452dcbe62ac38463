"""Data files that a table's metadata names and its store does not hold: found by listings, without opening a file or a JVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from functools import cache, partial
from io import BytesIO
from itertools import chain, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.slices import Slice
from resources.iceberg.lake_objects import LakeObjects

if TYPE_CHECKING:
    from resources.iceberg.catalog_at_rest import TableAtRest

_ASKED_AT_ONCE = 16
"""Number of folders listed in parallel: restoring a year needs hundreds."""
_EPOCH, _PARTS = date(1970, 1, 1), 2


def gone_files(paths: Collection[str]) -> set[str]:
    """Return those of these data files that are gone: one listing for the folder of each day, whatever it holds.

    A file that a listing lacks, or that lies in no folder of a day, is asked for by name. Raises LakehouseError and
    LakehouseUnavailableError where the store does not answer: silence is no loss.
    """
    by_day: dict[str, set[str]] = {}
    for path in paths:
        by_day.setdefault(path.rsplit("/", 2)[0], set()).add(path)
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return set(chain.from_iterable(pool.map(_gone, repeat(cache(LakeObjects)), by_day, by_day.values())))


def lost_slices(files: Mapping[Slice, Collection[str]]) -> dict[Slice, str]:
    """Return slice -> the first of its data files that is gone."""
    gone = gone_files([*chain.from_iterable(files.values())])
    return {key: min(lost) for key, paths in files.items() if (lost := gone.intersection(paths))}


def lost_at_rest(table: TableAtRest, days: Collection[date]) -> dict[Slice, str]:
    """Return the same of the head's slices on these days, by its manifests."""
    files: dict[Slice, list[str]] = {}
    for key, path in _live_files(table.manifest_list, {(day - _EPOCH).days for day in days}):
        files.setdefault(key, []).append(path)
    return lost_slices(files)


def _gone(opened: Callable[[str], LakeObjects], folder: str, paths: Collection[str]) -> list[str]:
    root, _, day = folder.rpartition("/")
    objects = opened(root)
    # Another program may write anywhere; only the folder of a partition is known to be small.
    there = {f"{root}/{one.name}" for one in objects.list(day)} if "=" in day else set()
    return [path for path in paths if path not in there and objects.get(path.removeprefix(f"{root}/"), 1) is None]


def _live_files(manifest_list: str | None, days: Collection[int]) -> Iterator[tuple[Slice, str]]:
    from pyiceberg.manifest import ManifestContent, read_manifest_list  # noqa: PLC0415 - most commands need none

    opened = partial(_input, cache(LakeObjects))
    store = cast("Any", SimpleNamespace(new_input=opened))
    for manifest in read_manifest_list(opened(manifest_list)) if manifest_list and days else ():
        parts = manifest.partitions or []
        # Files in another layout, of another program, belong to no slice: the comparison with the ledger refuses them.
        if manifest.content is not ManifestContent.DATA or len(parts) != _PARTS:
            continue
        first, last = _number(parts[0].lower_bound), _number(parts[0].upper_bound)
        if any(first <= day <= last for day in days):
            for file in (entry.data_file for entry in manifest.fetch_manifest_entry(store)):
                if file.partition[0] in days:
                    yield Slice(_EPOCH + timedelta(days=file.partition[0]), file.partition[1]), file.file_path


def _number(bound: bytes | None) -> int:
    return int.from_bytes(bound or b"", "little", signed=True)


def _input(store: Callable[[str], LakeObjects], path: str) -> Any:
    """A metadata file as PyIceberg opens it."""
    folder, _, name = path.rpartition("/")
    body = store(folder).get(name)
    if body is None:
        raise LakehouseError(path, "is gone, and the table's metadata names it", "docs/operations.md: A file is gone")
    return SimpleNamespace(open=lambda: BytesIO(body))
