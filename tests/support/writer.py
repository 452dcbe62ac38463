"""A process that loads on command, with random pauses between the load path's steps."""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Verdict
from pipeline_assets.load.ledger_sync import sync_ledger
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.scan import scan_stale_days
from pipeline_assets.operations.decisions import preview, release
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from pipeline_assets.tables.registry import table_by_key
from resources import failpoints
from resources.failpoints import Failpoint
from resources.iceberg.errors import FAILURES, is_conflict
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog
from tests.support.attached import attach, is_attached
from tests.support.hands import serve
from tests.support.points import OF_TABLE_BY_TABLE
from tests.support.reference import broken_chains, by_slice, raw_rows, refined_rows, winners
from tests.support.small_spark import BOTH_COMPILERS, SMALL, small_session

NOW = datetime(2026, 2, 20, tzinfo=UTC)
"""Inside the redelivery horizon, so that withdrawn rows leave raw."""
EVENT_COUNTS = "aggregates/event_counts"
MANY_LOADS = "--many-loads"
"""Enough loads that the JVM's second compiler pays."""
TABLES = ("raw/regular_events", "raw/backfill_events", "refined/events", EVENT_COUNTS)
_PAUSED_AT = (
    Failpoint.DURING_LISTING, Failpoint.AFTER_PIN, Failpoint.AFTER_STAGE, Failpoint.AFTER_AUDIT,
    Failpoint.BETWEEN_TABLES, Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_APPLY, Failpoint.IN_TRANSACTION,
    Failpoint.AFTER_PUBLISH, *sorted(OF_TABLE_BY_TABLE),
)  # fmt: skip
_CONFLICT = ("it is built again", "building it again", "reading it again")
"""Log texts of a load that another writer overtook."""


@dataclass
class Writer:
    spark: SparkSession

    def __call__(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order; return its conflicts, or the error."""
        settings = Settings(**order["settings"])
        configure_catalog(self.spark, settings)
        said: list[str] = []
        with closing(Ledger(settings.ledger_database_url)) as ledger:
            lakehouse = Lakehouse(self.spark, settings.catalog_name)
            runtime = Runtime(lakehouse, ledger, LandingStore.from_settings(settings), settings, said.append)
            do: Callable[[Runtime, dict[str, Any]], dict[str, Any]] = getattr(self, order["do"])
            try:
                found = do(runtime, order)
            except TidemarkError as error:
                found = {"error": type(error).__name__, "text": str(error)}
        conflicts = [text for text in said if any(sign in text for sign in _CONFLICT)]
        return found | {"conflicts": conflicts}

    def load(self, runtime: Runtime, order: dict[str, Any]) -> dict[str, Any]:
        """A load of days; without `source`, of raw's rows."""
        rng = random.Random(order["seed"])
        failpoints.watch(lambda point, _: time.sleep(rng.random() * order["pause"]) if point in _PAUSED_AT else None)
        first, last = date.fromisoformat(order["first"]), date.fromisoformat(order["last"])
        days = tuple(first + timedelta(days=shift) for shift in range((last - first).days + 1))
        run_id = str(uuid.UUID(int=rng.getrandbits(128)))
        request = LoadRequest(days, runtime.settings.projects, frozenset(order["tables"]), run_id, NOW)
        try:
            reports = list(run_load(runtime, request, lambda _: True))
        finally:
            failpoints.watch()
        bad = [str(o) for report in reports for o in report.outcomes if o.fails_the_run]
        published = sum(outcome.verdict is Verdict.PUBLISHED for report in reports for outcome in report.outcomes)
        return {"error": "refused", "text": bad[0]} if bad else {"published": published}

    def compact(self, runtime: Runtime, order: dict[str, Any]) -> dict[str, Any]:
        """Iceberg's compaction of a whole table, as anybody may run it."""
        time.sleep(order["wait"])
        table = table_by_key(order["table"])
        name = f"{runtime.settings.catalog_name}.system.rewrite_data_files"
        options = "map('min-input-files', '2', 'partial-progress.enabled', 'false')"
        try:
            self.spark.sql(f"CALL {name}(table => '{table.identifier}', strategy => 'sort', options => {options})")
        except FAILURES as error:
            if not is_conflict(error):
                raise
            return {"left_alone": True}
        return {"left_alone": False}

    def roll_back(self, runtime: Runtime, order: dict[str, Any]) -> dict[str, Any]:
        """Iceberg's own procedure, behind Tidemark's back: main one commit back."""
        time.sleep(order["wait"])
        table = table_by_key(order["table"])
        newest = next(iter(runtime.lakehouse.commits(table, None)), None)
        if newest is None or newest.parent_id is None:
            return {"nothing": True}
        name = f"{runtime.settings.catalog_name}.system.rollback_to_snapshot"
        self.spark.sql(f"CALL {name}(table => '{table.identifier}', snapshot_id => {newest.parent_id})")
        return {}

    def undo(self, runtime: Runtime, order: dict[str, Any]) -> dict[str, Any]:
        """An operator's rollback of a day of refined and all aggregates by one publication."""
        day = date.fromisoformat(order["day"])
        publications = runtime.ledger.publications(TABLES[2], runtime.settings.projects, [day])
        if len(publications) < 2:
            return {"published": 0}
        to, run_id = publications[-2].number, str(uuid.uuid4())
        restores = roll_back(runtime, RollbackRequest((), runtime.settings.projects, day, day, to, "a test", run_id))
        return {"published": sum(not restore.is_there for restore in restores)}

    def release(self, runtime: Runtime, order: dict[str, Any]) -> dict[str, Any]:
        """The release of a rolled-back day, and a load of it."""
        day = date.fromisoformat(order["day"])
        projects = runtime.settings.projects
        held = preview(runtime.ledger, runtime.settings, (), projects, day, day, NOW, is_load_next=True)
        release(runtime.ledger, held, "a test", str(uuid.uuid4()))
        return self.load(runtime, {**order, "first": order["day"], "last": order["day"]})

    def look(self, runtime: Runtime, order: dict[str, Any]) -> dict[str, Any]:
        """Faults: refined rows lost or doubled, and wrong slices that the ledger calls current."""
        unknown = []
        for name in TABLES:
            head, recorded = runtime.lakehouse.head(table_by_key(name)), runtime.ledger.slices(name, None)
            if runtime.ledger.head(name) == Head(head):
                live = runtime.lakehouse.slice_files(table_by_key(name), head)
                told = {key: record.file_hash for key, record in recorded.items() if record.digest.rows}
                if {key: files.file_hash for key, files in live.items()} != told:
                    unknown.append(name)
            # As any run begins: foreign changes are known from here on.
            sync_ledger(runtime, table_by_key(name), "look")
        rows = raw_rows(runtime.lakehouse)
        expected, found = winners(rows, runtime.settings), refined_rows(runtime.lakehouse)
        known = {
            (stale.table, day)
            for day, reasons in scan_stale_days(runtime.ledger, runtime.settings, NOW).items()
            for stale in reasons
        }
        differing = {key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)}
        counts = _event_counts(runtime)
        counted = {
            key for key in found.keys() | counts.keys() if sum(found.get(key, Counter()).values()) != counts[key]
        }
        wrong = {("refined/events", key) for key in differing} | {(EVENT_COUNTS, key) for key in counted}
        lost = sum((expected.get(key, Counter()) - found.get(key, Counter())).total() for key in differing)
        doubled = sum((found.get(key, Counter()) - expected.get(key, Counter())).total() for key in differing)
        objects = Counter((row.source.value, row.object_key) for row in rows)
        return {
            "lost": lost,
            "doubled": doubled,
            "wrong": sorted(f"{table} {key}" for table, key in wrong),
            "stale": sorted(
                f"{table} {key}"
                for table, key in wrong
                if (table, key.event_date) not in known and ("refined/events", key.event_date) not in known
            ),
            "unknown": unknown,
            "chains": broken_chains(runtime.ledger),
            "objects": {f"{source} {key}": count for (source, key), count in objects.items()},
            "slices": len(by_slice(rows, lambda row: row.content)),
        }


def _event_counts(runtime: Runtime) -> Counter[Slice]:
    frame = runtime.spark.table(runtime.lakehouse.identifier(table_by_key(EVENT_COUNTS)))
    counts: Counter[Slice] = Counter()
    for row in frame.collect():
        counts[Slice(row["event_date"], row["project_id"])] += row["events"]
    return counts


def _begin() -> Writer:
    small = BOTH_COMPILERS if MANY_LOADS in sys.argv else SMALL
    return Writer(attach() if is_attached() else small_session("local[1]", "1g", **small))


if __name__ == "__main__":
    serve(_begin)
