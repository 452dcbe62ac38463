"""Growth of a table's Iceberg metadata with daily snapshots, and the effect of expiring them and merging manifests."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

_DAY = Schema(NestedField(1, "event_date", StringType()), NestedField(2, "project_id", StringType()))
_SPEC = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "event_date"),
    PartitionField(2, 1001, IdentityTransform(), "project_id"),
)


def grow(folder: Path, snapshots: int, projects: int) -> dict[str, Any]:
    """Commit a snapshot per day with a one-row file per project; returns metadata size, and seconds to load and commit."""
    folder.mkdir(parents=True)
    catalog = SqlCatalog("scale", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("scale")
    merging = {"commit.manifest-merge.enabled": "false", "write.metadata.delete-after-commit.enabled": "true"}
    table = catalog.create_table("scale.events", _DAY, partition_spec=_SPEC, properties=merging)
    names = [str(10_001 + number) for number in range(projects)]
    commit = 0.0
    for number in range(snapshots):
        started = time.perf_counter()
        rows = {"event_date": [f"{number:05d}"] * projects, "project_id": names}
        table.append(pa.table(rows))
        commit = time.perf_counter() - started
    last = f"{snapshots - 1:05d}"
    grown = _measured(catalog, last) | {"commit_s": round(commit, 2)}
    table = catalog.load_table("scale.events")
    newest = table.current_snapshot()
    assert newest is not None
    ids = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest.snapshot_id]
    started = time.perf_counter()
    table.maintenance.expire_snapshots().by_ids(ids).commit()
    expired = _measured(catalog, last) | {"expire_s": round(time.perf_counter() - started, 2)}
    return {"snapshots": snapshots, "files": snapshots * projects, "grown": grown, "expired": expired}


def _measured(catalog: SqlCatalog, day: str) -> dict[str, Any]:
    started = time.perf_counter()
    table: Table = catalog.load_table("scale.events")
    loaded = time.perf_counter() - started
    size = Path(table.metadata_location.removeprefix("file://")).stat().st_size
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    listed = Path(snapshot.manifest_list.removeprefix("file://")).stat().st_size
    started = time.perf_counter()
    found = len(list(table.scan(f"event_date = '{day}'").plan_files()))
    planned = time.perf_counter() - started
    return {
        "metadata_kb": size // 1_000,
        "manifest_list_kb": listed // 1_000,
        "manifests": len(manifests),
        "load_s": round(loaded, 3),
        "plan_a_day_s": round(planned, 3),
        "files_of_a_day": found,
    }


def main() -> int:
    """Run with the arguments `FOLDER SNAPSHOTS PROJECTS`; prints JSON."""
    folder, snapshots, projects = sys.argv[1:]
    sys.stdout.write(json.dumps(grow(Path(folder), int(snapshots), int(projects))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
