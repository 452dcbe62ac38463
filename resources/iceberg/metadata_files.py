"""Read a table's metadata files from the warehouse: their table, their age, and whether the table ever held a snapshot."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from pipeline_assets.domain.records import CLOCKS_DIFFER
from pipeline_assets.formats.gzip_lines import BadObjectError, decompress
from resources.iceberg.lake_objects import LakeObject, LakeObjects
from resources.iceberg.slice_change import PUBLISH_PROPERTY, PUBLISHED_WITH

_SUFFIX = ".metadata.json"
_BEGINNING = 4096
"""Iceberg writes uuid, sequence number and time within these first bytes; schemas and snapshots follow."""
_MOST_BYTES = 256 * 1024**2
"""Limit of a decompressed file; 100,000 snapshots take a fifth of it."""
_READERS = 16
_TOLERATED = timedelta(minutes=1)
"""How much older than its parent Iceberg lets a commit be."""


@dataclass(frozen=True)
class MetadataFile:
    """One version of a table's metadata."""

    name: str
    """Relative to the table's location."""
    table_uuid: str | None
    """None for a truncated file, whose writer died."""
    commits: int
    """Sequence number of the last snapshot; 0 for a table that never had one."""
    updated_at: datetime
    """Timezone-aware, by the clock of the process that wrote it."""


def is_metadata(name: str) -> bool:
    """Whether a name is that of a metadata file."""
    return name.startswith("metadata/") and name.endswith(_SUFFIX)


def base_name(path: str) -> str:
    """Return a path's last part."""
    return path.rpartition("/")[2]


def is_hidden(name: str) -> bool:
    """Whether an object is not part of the table: a checksum of a local file system, for example."""
    return base_name(name).startswith((".", "_"))


def read_metadata_files(objects: LakeObjects, listed: Iterable[LakeObject]) -> list[MetadataFile]:
    """Return the metadata files among the objects listed below a table's location; reads only their first bytes."""
    wanted = [entry for entry in listed if is_metadata(entry.name) and not is_hidden(entry.name)]
    with ThreadPoolExecutor(_READERS) as pool:
        return [file for file in pool.map(partial(_read, objects), wanted) if file is not None]


def first_use(objects: LakeObjects) -> str | None:
    """Return the name of a file below a table's location that somebody may need; None where there is none.

    A process that died while creating the table leaves a metadata file without snapshots; nobody needs that one.
    """
    metadata = []
    for entry in objects.list():
        if is_metadata(entry.name) and not is_hidden(entry.name):
            metadata.append(entry)
        elif not is_hidden(entry.name):
            return entry.name
    return next((file.name for file in read_metadata_files(objects, metadata) if file.commits), None)


def histories(files: Collection[MetadataFile]) -> dict[str, list[MetadataFile]]:
    """Return table uuid -> its metadata files that have a snapshot, newest first."""
    by_table: dict[str, list[MetadataFile]] = {}
    for file in sorted(files, key=lambda file: (file.updated_at, file.name), reverse=True):
        if file.table_uuid is not None and file.commits:
            by_table.setdefault(file.table_uuid, []).append(file)
    return by_table


def not_ahead(files: Sequence[MetadataFile], now: datetime) -> list[MetadataFile]:
    """Return the files that Iceberg would commit on top of now; all of them where there is none."""
    return [file for file in files if file.updated_at <= now + _TOLERATED] or list(files)


def half_published(states: Mapping[str, Mapping[str, Any]]) -> set[str | None]:
    """Return the publishes that never were: a table's head names another table, whose main never showed a snapshot of it.

    `states`: table -> its metadata. Branches are no sign. Nobody knows what a table showed before its oldest snapshot.
    """
    named = [
        (head, name)
        for head in map(snapshot_of, states.values())
        for name in head.get("summary", {}).get(PUBLISHED_WITH, "").split(",")
    ]
    return {publish_of(head) for head, name in named if name in states and _lacks(states[name], head)}


def _lacks(state: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Whether a table's main never showed the publish of another one's head."""
    known = {one["snapshot-id"]: one for one in state["snapshots"]}
    shown = [known[one["snapshot-id"]] for one in state.get("snapshot-log", ()) if one["snapshot-id"] in known]
    if not shown or any(publish_of(one) == publish_of(head) for one in shown):
        return False
    since = int(shown[0]["timestamp-ms"]) if "parent-snapshot-id" in shown[0] else 0
    return since < int(head["timestamp-ms"]) - CLOCKS_DIFFER / timedelta(milliseconds=1)


def publish_of(snapshot: Mapping[str, Any]) -> str | None:
    """Return the publish that made a snapshot."""
    return cast("str | None", snapshot.get("summary", {}).get(PUBLISH_PROPERTY))


def snapshot_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head of main; raises KeyError and StopIteration where there is none."""
    current = metadata["current-snapshot-id"]
    return next(dict(snapshot) for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] == current)


def content(objects: LakeObjects, name: str) -> dict[str, Any]:
    """Return a whole metadata file, parsed; raises ValueError where it is truncated or gone."""
    body = objects.get(name)
    if body is None:
        raise ValueError(f"{name} is gone")
    try:
        if _is_packed(name):
            with decompress(io.BytesIO(body), _MOST_BYTES) as text:
                body = text.read()
        metadata = json.loads(body)
    except (BadObjectError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read ({error})") from None
    if not isinstance(metadata, dict):
        raise ValueError(f"{name} is no metadata file")
    return metadata


def follows(objects: LakeObjects, name: str, earlier: str) -> bool:
    """Whether a metadata file was written on top of an earlier one, over any number of commits; `earlier` is a base name."""
    while log := _log(objects, name):
        if earlier in log:
            return True
        name = f"metadata/{log[0]}"
    return False


def predecessor(objects: LakeObjects, name: str) -> str | None:
    """Return the base name of the metadata file before this one, None where the file does not tell."""
    return next(iter(_log(objects, name)[-1:]), None)


def _log(objects: LakeObjects, name: str) -> list[str]:
    """The base names of the metadata files that a file lists before itself, oldest first; empty where it does not tell."""
    try:
        log = content(objects, name).get("metadata-log") or ()
        return [base_name(str(entry["metadata-file"])) for entry in log]
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        return []


def _read(objects: LakeObjects, entry: LakeObject) -> MetadataFile | None:
    body = objects.get(entry.name, None if _is_packed(entry.name) else _BEGINNING)
    if body is None:
        return None
    text = "" if _is_packed(entry.name) else body.decode("utf-8", "replace")
    uuid = re.search(r'"table-uuid"\s*:\s*"([^"]{1,64})"', text)
    commits = re.search(r'"last-sequence-number"\s*:\s*(\d{1,19})', text)
    updated = re.search(r'"last-updated-ms"\s*:\s*(\d{1,14})', text)
    if uuid and commits and updated:
        return MetadataFile(entry.name, uuid[1], int(commits[1]), _moment(updated[1]))
    try:
        whole = content(objects, entry.name)
        # Format version 1 counts no commits.
        count = int(whole.get("last-sequence-number", 0)) or len(whole.get("snapshots") or ())
        return MetadataFile(entry.name, str(whole["table-uuid"]), count, _moment(whole["last-updated-ms"]))
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        return MetadataFile(entry.name, None, 0, entry.modified_at)


def _moment(milliseconds: str | int) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)


def _is_packed(name: str) -> bool:
    return name.endswith(f".gz{_SUFFIX}")
