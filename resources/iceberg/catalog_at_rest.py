"""The catalog's database, tables' metadata files and their manifests, read without a JVM."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from io import BytesIO
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from pipeline_assets.domain.errors import LakehouseError, TidemarkError
from pipeline_assets.domain.places import is_below
from pipeline_assets.domain.records import CLOCKS_DIFFER
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.formats.gzip_lines import BadObjectError, decompress
from resources.iceberg.lake_objects import LakeObject, LakeObjects

if TYPE_CHECKING:
    from pipeline_assets.tables.table import Table


RUN_PROPERTY, PUBLISH_PROPERTY, PUBLISHED_WITH = "tidemark.run-id", "tidemark.publish-id", "tidemark.published-with"
"""Keys of a snapshot's summary: its run, its publish, and the tables that get a snapshot of it, all of them or none."""
_SUFFIX = ".metadata.json"
_BEGINNING = 4096
"""Holds uuid, sequence number and time."""
_MOST_BYTES = 256 * 1024**2
"""Of a decompressed file: five times 100,000 snapshots."""
_READERS = 16
_TOLERATED = timedelta(minutes=1)


@dataclass(frozen=True)
class MetadataFile:
    """One version of a table's metadata."""

    name: str
    """Relative to the table's location."""
    table_uuid: str | None
    """None for a truncated file."""
    commits: int
    """Sequence number of the last snapshot; 0 without one."""
    updated_at: datetime


def is_metadata(name: str) -> bool:
    """Whether a name is that of a metadata file."""
    return name.startswith("metadata/") and name.endswith(_SUFFIX)


def base_name(path: str) -> str:
    """Return a path's last part."""
    return path.rpartition("/")[2]


def is_hidden(name: str) -> bool:
    """Whether an object is not part of the table, such as a local checksum."""
    return base_name(name).startswith((".", "_"))


def read_metadata_files(objects: LakeObjects, listed: Iterable[LakeObject]) -> list[MetadataFile]:
    """Return the metadata files among the objects listed below a table's location; reads their first bytes."""
    wanted = [entry for entry in listed if is_metadata(entry.name) and not is_hidden(entry.name)]
    with ThreadPoolExecutor(_READERS) as pool:
        return [file for file in pool.map(partial(_metadata_file, objects), wanted) if file is not None]


def first_use(objects: LakeObjects) -> str | None:
    """Return the name of a file below a table's location that may be needed: not that of a creation that died."""
    metadata = []
    for entry in (one for one in objects.list() if not is_hidden(one.name)):
        if not is_metadata(entry.name):
            return entry.name
        metadata.append(entry)
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
    """Return the incomplete publishes: a head names another table, whose main never showed it. `states`: table -> metadata."""
    named = [
        (head, name)
        for head in map(snapshot_of, states.values())
        for name in head.get("summary", {}).get(PUBLISHED_WITH, "").split(",")
    ]
    return {publish_of(head) for head, name in named if name in states and _lacks(states[name], head)}


def _lacks(state: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
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
    """Return main's snapshot; raises KeyError and StopIteration where there is none."""
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
    """Whether a metadata file follows an earlier one, over any number of commits; `earlier` is a base name."""
    while (log := _log(objects, name)) and earlier not in log:
        name = f"metadata/{log[0]}"
    return bool(log)


def predecessor(objects: LakeObjects, name: str) -> str | None:
    """Return the base name of the metadata file before this one; None where it is unknown."""
    return next(iter(_log(objects, name)[-1:]), None)


def _log(objects: LakeObjects, name: str) -> list[str]:
    try:
        log = content(objects, name).get("metadata-log") or ()
        return [base_name(str(entry["metadata-file"])) for entry in log]
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        return []


def _metadata_file(objects: LakeObjects, entry: LakeObject) -> MetadataFile | None:
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


_COLUMNS = ("catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location")
TABLES = sa.table("iceberg_tables", *map(sa.column, _COLUMNS))
"""Columns of Iceberg's JdbcCatalog (schema versions V0 and V1) and of PyIceberg's SqlCatalog."""
_PROPERTIES = sa.table(
    "iceberg_namespace_properties", *map(sa.column, ("catalog_name", "namespace", "property_key", "property_value"))
)
_UNCERTAIN = (sa.exc.SQLAlchemyError, TidemarkError, OSError, ValueError, KeyError, TypeError)
"""After these errors the caller asks Iceberg, which gives the answer or a proper error."""


def are_of(catalog: str, tables: Collection[Table]) -> sa.ColumnElement[bool]:
    """Return the condition on the catalog's rows of these tables."""
    names = sorted(tuple(table.identifier.rsplit(".", 1)) for table in tables)
    return (TABLES.c.catalog_name == catalog) & sa.tuple_(TABLES.c.table_namespace, TABLES.c.table_name).in_(names)


@dataclass(frozen=True)
class TableAtRest:
    """A table as its current metadata file describes it."""

    head: int | None
    refs: frozenset[str]
    columns: frozenset[str]
    properties: dict[str, str]
    oldest_at: datetime | None = None
    is_head_ours: bool = True
    """Whether a run of ours, or a compaction, committed main's snapshot."""
    snapshot_ids: frozenset[int] = frozenset()
    location: str = ""
    place: str = ""
    deletes: int = 0
    """Delete files that apply to main's snapshot; only other programs write them."""
    manifest_list: str | None = None


class CatalogAtRest:
    """Reads one catalog; an uncertain answer is None."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine: sa.Engine | None = None
        self._known: dict[str, TableAtRest] = {}

    def table(self, table: Table) -> TableAtRest | None:
        """Return the table's current state; None where it is uncertain or the table unknown."""
        with suppress(*_UNCERTAIN):
            return next(map(self._metadata, self._locations([table])), None)
        return None

    def outside(self, ours: Collection[Table]) -> list[str] | None:
        """Return the locations of these tables outside of the warehouse; None where uncertain."""
        with suppress(*_UNCERTAIN):
            listed = self._locations(ours)
            # The catalog's places come first: a copy whose original is gone has no readable files.
            return self._not_below(listed) or self._not_below([self._metadata(one).place for one in listed])
        return None

    def lists(self, table: Table) -> bool | None:
        """Whether the catalog lists the table; None where its database cannot be read."""
        with suppress(*_UNCERTAIN):
            return bool(self._locations([table]))
        return None

    def namespace_properties(self, namespace: str) -> dict[str, str] | None:
        """Return the properties that the catalog keeps for a namespace; None where its database cannot be read."""
        wanted = sa.select(_PROPERTIES.c.property_key, _PROPERTIES.c.property_value).where(
            _PROPERTIES.c.catalog_name == self._settings.catalog_name, _PROPERTIES.c.namespace == namespace
        )
        with suppress(*_UNCERTAIN):
            return {str(row[0]): str(row[1]) for row in self._rows(wanted)}
        return None

    def close(self) -> None:
        """Close the connection to the catalog's database."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _not_below(self, places: Sequence[str]) -> list[str]:
        return [place for place in places if not is_below(place, self._settings.warehouse_url)]

    def _metadata(self, location: str) -> TableAtRest:
        if not location.endswith(_SUFFIX) or _is_packed(location):
            raise ValueError(location)
        folder = location.rpartition("/")[0]
        if folder not in self._known or self._known[folder].location != location:
            self._known[folder] = _table_at_rest(location)
        return self._known[folder]

    def _locations(self, tables: Collection[Table]) -> list[str]:
        wanted = sa.select(TABLES.c.metadata_location).where(are_of(self._settings.catalog_name, tables))
        return [str(row[0]) for row in self._rows(wanted)]

    def _rows(self, wanted: sa.Select[Any]) -> list[Any]:
        if self._engine is None:
            self._engine = _opened(self._settings.catalog_url)
        with self._engine.connect() as connection:
            return list(connection.execute(wanted))


def _opened(text: str) -> sa.Engine:
    url = make_url(text)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg2")
    patience = {"timeout": 30} if url.get_backend_name() == "sqlite" else {}
    if patience and not (url.database and Path(url.database).is_file()):
        # Connecting would create an empty database.
        raise FileNotFoundError(url.database)
    return sa.create_engine(url, hide_parameters=True, poolclass=sa.pool.NullPool, connect_args=patience)


def _table_at_rest(location: str) -> TableAtRest:
    folder, _, name = location.rpartition("/")
    fields = content(LakeObjects(folder), name)
    schema = next(schema for schema in fields["schemas"] if schema["schema-id"] == fields["current-schema-id"])
    head = fields.get("current-snapshot-id")
    snapshots = fields.get("snapshots", ())
    made = [int(snapshot["timestamp-ms"]) for snapshot in snapshots]
    current: Any = next((one for one in snapshots if one["snapshot-id"] == head), {"summary": {"operation": "replace"}})
    summary = current.get("summary", {})
    return TableAtRest(
        None if head in (None, -1) else int(head),
        frozenset(fields.get("refs", {})),
        frozenset(str(column["name"]) for column in schema["fields"]),
        dict(fields.get("properties", {})),
        datetime.fromtimestamp(min(made) / 1000, UTC) if made else None,
        RUN_PROPERTY in summary or summary.get("operation") == "replace",
        frozenset(int(snapshot["snapshot-id"]) for snapshot in snapshots),
        location,
        str(fields["location"]),
        int(summary.get("total-delete-files", 0)),
        current.get("manifest-list"),
    )


_ASKED_AT_ONCE = 16
_EPOCH, _PARTS = date(1970, 1, 1), 2


def gone_files(paths: Collection[str]) -> set[str]:
    """Return those of these data files that are gone; raises LakehouseError where the store does not answer."""
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
    """Return slice -> the first lost data file of the head's slices on these days, by its manifests."""
    files: dict[Slice, list[str]] = {}
    for key, path in _live_files(table.manifest_list, {(day - _EPOCH).days for day in days}):
        files.setdefault(key, []).append(path)
    return lost_slices(files)


def _gone(opened: Callable[[str], LakeObjects], folder: str, paths: Collection[str]) -> list[str]:
    root, _, day = folder.rpartition("/")
    objects = opened(root)
    # Another program may write anywhere; only a partition's folder is known to be small.
    there = {f"{root}/{one.name}" for one in objects.list(day)} if "=" in day else set()
    return [path for path in paths if path not in there and objects.get(path.removeprefix(f"{root}/"), 1) is None]


def _live_files(manifest_list: str | None, days: Collection[int]) -> Iterator[tuple[Slice, str]]:
    from pyiceberg.manifest import ManifestContent, read_manifest_list  # noqa: PLC0415 - most commands need none

    opened = partial(_input, cache(LakeObjects))
    store = cast("Any", SimpleNamespace(new_input=opened))
    for manifest in read_manifest_list(opened(manifest_list)) if manifest_list and days else ():
        parts = manifest.partitions or []
        # Files in another layout belong to no slice; the comparison with the ledger refuses them.
        if manifest.content is not ManifestContent.DATA or len(parts) != _PARTS:
            continue
        first, last = (
            int.from_bytes(bound or b"", "little", signed=True)
            for bound in (parts[0].lower_bound, parts[0].upper_bound)
        )
        if any(first <= day <= last for day in days):
            for file in (entry.data_file for entry in manifest.fetch_manifest_entry(store)):
                if file.partition[0] in days:
                    yield Slice(_EPOCH + timedelta(days=file.partition[0]), file.partition[1]), file.file_path


def _input(store: Callable[[str], LakeObjects], path: str) -> Any:
    folder, _, name = path.rpartition("/")
    body = store(folder).get(name)
    if body is None:
        raise LakehouseError(path, "is gone, and the table's metadata names it", "docs/operations.md: A file is gone")
    return SimpleNamespace(open=lambda: BytesIO(body))
