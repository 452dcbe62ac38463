"""Builders for tests: an event, an hour's object, a landing folder with a pipeline behind it."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.records import BatchRecord, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.load.runtime import Outcome as SliceOutcome
from pipeline_assets.load.runtime import Runtime, TableReport
from pipeline_assets.orchestration.assets import Clock, LoadConfig, decide_and_load, request_of
from pipeline_assets.orchestration.events import failure_of
from pipeline_assets.orchestration.specs import JOB_OF_SOURCE
from pipeline_assets.tables.events import RAW_TABLES
from pipeline_assets.tables.registry import ALL_TABLES, AS_OF_TABLES, ASSET_TABLES, DERIVED, table_by_key
from pipeline_assets.tables.table import Table
from resources.iceberg.lakehouse import Lakehouse
from resources.iceberg.metadata import JavaTables
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog
from sample_export.events import KEYS

PROJECT = "10001"
RAW_AND_REFINED = ("raw/regular_events", "raw/backfill_events", "refined/events")
"""Enough for stories to which aggregates add nothing."""
LATER = datetime(2026, 6, 1, tzinfo=UTC)
"""Long after every deadline of the days that tests use."""


def an_event(**changes: Any) -> dict[str, Any]:
    """A delivered event with all 55 keys; `insert_id` etc. stand for the keys with `$`."""
    event: dict[str, Any] = dict.fromkeys(KEYS)
    event |= {
        "app": int(PROJECT),
        "amplitude_id": 1,
        "device_id": "d1",
        "event_type": "click",
        "platform": "iOS",
        "event_time": "2026-02-02 10:00:00.000000",
        "server_upload_time": "2026-02-02 10:00:05.000000",
        "processed_time": "2026-02-02 10:00:09.000000",
        "event_properties": {},
        "user_properties": {},
        "uuid": str(uuid.uuid4()),
        "$insert_id": str(uuid.uuid4()),
    }
    for name, value in changes.items():
        event[f"${name}" if f"${name}" in KEYS else name] = value
    return event


def events_on(day: date, count: int, *, prefix: str = "e", **changes: Any) -> list[dict[str, Any]]:
    """`count` different events that happened and arrived on a day; deterministic."""
    return [
        an_event(
            insert_id=f"{prefix}-{day}-{number}", uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{prefix}-{day}-{number}")),
            amplitude_id=number, device_id=f"d{number}", event_time=f"{day} 10:00:00.{number:06d}",
            server_upload_time=f"{day} 10:30:00.{number:06d}", processed_time=f"{day} 10:31:00.{number:06d}",
            event_properties={"$revenue": 2.5, "currency": "EUR"} if number % 10 == 0 else {}, **changes,
        )
        for number in range(count)
    ]  # fmt: skip


def sent_again(
    event: Mapping[str, Any], sent: date, *, to: date | None = None, at: str = "11:00", **changes: Any
) -> dict[str, Any]:
    """The event as uploaded at noon of a day; `to`: with a time on that day."""
    moved = {"event_time": f"{to} {at}:00.000000"} if to else {}
    when = {"server_upload_time": f"{sent} 12:00:00.000000", "processed_time": f"{sent} 12:00:01.000000"}
    return {**event, **when, **moved, **changes}


def an_orphan_below(place: Path) -> Path:
    """Create the folder; return a data file's name of 2026-02-02 as Iceberg's writer in Spark makes it."""
    path = (
        place / "data" / "event_date=2026-02-02" / f"project_id={PROJECT}" / f"00000-1-{uuid.uuid4()}-0-00001.parquet"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def a_body(events: Iterable[Mapping[str, Any] | bytes], *, truncated: bool = False) -> bytes:
    """An object's bytes; lines given as bytes are written unchanged."""
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    body = gzip.compress(b"".join(line + b"\n" for line in lines), mtime=0)
    return body[: len(body) // 2] if truncated else body


@dataclass
class Outcome:
    result: dg.ExecuteInProcessResult
    ledger: Ledger
    keys: list[str] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return self.result.run_id

    @property
    def success(self) -> bool:
        return bool(self.result.success)

    def _told(self, kind: dg.DagsterEventType) -> list[Any]:
        """The specific data of all events of a kind."""
        return [event.event_specific_data for event in self.result.all_events if event.event_type is kind]

    def _materializations(self, key: str) -> list[Any]:
        found = [one.materialization for one in self._told(dg.DagsterEventType.ASSET_MATERIALIZATION)]
        return [one for one in found if one.asset_key == dg.AssetKey(key.split("/"))]

    def materialized(self, key: str) -> set[str]:
        return {str(one.partition) for one in self._materializations(key)}

    def metadata(self, key: str, day: date) -> dict[str, Any]:
        """A day's materialization metadata, as the UI shows it, and its data version."""
        (found,) = [one for one in self._materializations(key) if one.partition == day.isoformat()]
        shown = {name: entry.value for name, entry in found.metadata.items()}
        return {**shown, "data_version": (found.tags or {})["dagster/data_version"]}

    def check_metadata(self, key: str, check: str, day: date) -> Mapping[str, Any]:
        (found,) = [
            one.metadata
            for one in self._told(dg.DagsterEventType.ASSET_CHECK_EVALUATION)
            if (one.asset_key.to_user_string(), one.check_name, one.partition) == (key, check, str(day))
        ]
        return dict(found)

    def failed_checks(self, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR) -> set[tuple[str, str, str]]:
        """(asset, check, partition) of each failed evaluation, errors or warnings."""
        return {
            (one.asset_key.to_user_string(), one.check_name, str(one.partition))
            for one in self._told(dg.DagsterEventType.ASSET_CHECK_EVALUATION)
            if not one.passed and one.severity is severity
        }

    @property
    def output(self) -> dict[str, Any]:
        """Metadata of its op's output, as the UI shows it."""
        (found,) = [event.step_output_data for event in self.result.all_events if event.is_successful_output]
        return {name: entry.value for name, entry in found.metadata.items()}

    def failure(self) -> str:
        for data in self._told(dg.DagsterEventType.STEP_FAILURE):
            return str(data.user_failure_data.description if data.user_failure_data else data.error)
        return ""


def _days(first: date, last: date | None) -> list[date]:
    return [first + timedelta(days=shift) for shift in range(((last or first) - first).days + 1)]


@dataclass
class Loaded:
    ledger: Ledger
    run_id: str
    reports: Sequence[TableReport] = ()
    error: TidemarkError | None = None

    @property
    def success(self) -> bool:
        """Whether its run would have succeeded."""
        return self.error is None and not self._failed

    def failure(self) -> str:
        """The message its run would have failed with."""
        if self.error is not None:
            return str(self.error)
        return str(failure_of(self._failed).description) if self._failed else ""

    @property
    def _failed(self) -> list[SliceOutcome]:
        return [outcome for report in self.reports for outcome in report.outcomes if outcome.fails_the_run]

    def of(self, project: str) -> Loaded:
        """The part of one project."""
        reports = [
            replace(
                report,
                outcomes=tuple(one for one in report.outcomes if one.key.project_id == project),
                built=tuple(key for key in report.built if key.project_id == project),
            )
            for report in self.reports
        ]
        return replace(self, reports=reports)

    def outcome(self, table: str, day: date) -> SliceOutcome:
        """Verdict of a slice, of several projects' the first."""
        return next(one for one in self.outcomes(table) if one.key.event_date == day)

    def outcomes(self, table: str) -> list[SliceOutcome]:
        return [one for report in self.reports if report.table == table for one in report.outcomes]

    def good(self, table: str) -> set[date]:
        """Days that turn green in Dagster: good, and requested or red before."""
        told = [one for one in self.outcomes(table) if one.is_requested or not one.was_good]
        return {one.key.event_date for one in told if one.verdict.is_good}

    def built(self, table: str) -> list[date]:
        return [key.event_date for report in self.reports if report.table == table for key in report.built]

    def failed_checks(self) -> set[tuple[str, str, date]]:
        return {
            (one.table, found.check.name, one.key.event_date)
            for report in self.reports
            for one in report.outcomes
            for found in one.evaluations
            if not found.is_passed
        }


_CONFIG = {"accept": "accept_changes", "even_if_gone": "exclude_even_if_gone"}
"""Short names for stories."""


def _config(decided: Mapping[str, Any]) -> LoadConfig:
    return LoadConfig(**{_CONFIG.get(name, name): value for name, value in decided.items() if value is not None})


class LandingFolder:
    """A project's deliveries, and what the ledger has of them."""

    landing: Path
    grammar: KeyGrammar
    ledger: Ledger
    project = PROJECT

    def deliver(
        self,
        day: date,
        events: Iterable[Mapping[str, Any] | bytes],
        *,
        hour: int = 10,
        shard: int = 1,
        source: Source = Source.REGULAR,
        project: str | None = None,
        truncated: bool = False,
    ) -> str:
        """Put one object into landing; return its key."""
        key = self.grammar.format_delivery(BatchKey(source, project or self.project, day), hour, shard)
        path = self.landing / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(a_body(events, truncated=truncated))
        return key

    def remove(self, *keys: str) -> None:
        for key in keys:
            (self.landing / key).unlink()

    def mark(self, day: date, *, hours: Iterable[int] = range(24), project: str | None = None) -> None:
        batch = BatchKey(Source.REGULAR, project or self.project, day)
        for hour in hours:
            path = self.landing / self.grammar.format_marker(batch, hour)
            path.parent.mkdir(exist_ok=True)
            path.touch()

    def record(self, key: str, day: date, project: str | None = None) -> SliceRecord:
        one = Slice(day, project or self.project)
        return self.ledger.slices(key, [one.project_id], [day])[one]

    def verdict(self, key: str, day: date, project: str | None = None) -> str:
        return self.record(key, day, project).verdict.value

    def batch(self, day: date, source: Source = Source.REGULAR) -> BatchRecord:
        return self.ledger.batches([self.project], day, day)[BatchKey(source, self.project, day)]


class Pipeline(LandingFolder):
    """A landing folder and its own lake: loaded in this process, or by real Dagster jobs."""

    def __init__(
        self, spark: Any, folder: Path, instance: dg.DagsterInstance, only: Iterable[str] = (), **settings: Any
    ) -> None:
        """`only`: the tables that its loads build; default all."""
        self.only = tuple(only)
        self.landing = folder / "landing"
        self.landing.mkdir(parents=True, exist_ok=True)
        defaults: dict[str, Any] = {
            "landing_url": str(self.landing),
            "warehouse_url": str(folder / "warehouse"),
            "catalog_url": f"sqlite:///{folder}/catalog.db",
            "catalog_name": f"lake_{uuid.uuid4().hex[:8]}",
            "projects": (PROJECT,),
            "calendar_start": date(2026, 1, 1),
        }
        self.settings = Settings(**{**defaults, **settings})
        self.instance = instance
        self.spark = spark
        self.ledger = Ledger(self.settings.ledger_database_url)
        self.grammar = KeyGrammar(self.settings.marker_pattern)
        self.now = LATER
        self.resources: dict[str, Any] = {}
        self._defined: tuple[Any, dg.Definitions] | None = None

    def load(
        self,
        first: date,
        last: date | None = None,
        *,
        source: Source = Source.REGULAR,
        tables: Iterable[str] = (),
        **decided: Any,
    ) -> Loaded:
        """Load a source's job or the given tables without Dagster; `decided`: run config, as in `_CONFIG`."""
        of_job = [table.key for table in (RAW_TABLES[source], *DERIVED, *AS_OF_TABLES)]
        wanted = tuple(tables) or tuple(key for key in of_job if not self.only or key in self.only)
        run_id = str(uuid.uuid4())
        try:
            return Loaded(self.ledger, run_id, self._reports(_config(decided), first, last, wanted, run_id))
        except TidemarkError as error:
            return Loaded(self.ledger, run_id, error=error)

    def run(
        self,
        first: date,
        last: date | None = None,
        *,
        source: Source = Source.REGULAR,
        tables: Iterable[str] = (),
        tags: Mapping[str, str] | None = None,
        **decided: Any,
    ) -> Outcome:
        """The same by the Dagster job, for stories about runs, checks, events and logs."""
        span = {
            "dagster/asset_partition_range_start": first.isoformat(),
            "dagster/asset_partition_range_end": (last or first).isoformat(),
        }
        config = _config(decided).model_dump()
        return self.run_job(JOB_OF_SOURCE[source], "load", config, tables or self.only, {**(tags or {}), **span})

    def run_job(
        self,
        job: str,
        op: str,
        config: Mapping[str, Any],
        tables: Iterable[str] = (),
        tags: Mapping[str, str] | None = None,
    ) -> Outcome:
        """A Dagster job with one op, of all its assets or of some."""
        result = (
            self.definitions()
            .resolve_job_def(job)
            .execute_in_process(
                run_config={"ops": {op: {"config": dict(config)}}},
                tags=tags,
                instance=self.instance,
                raise_on_error=False,
                asset_selection=[dg.AssetKey(table.split("/")) for table in tables] or None,
            )
        )
        return Outcome(result, self.ledger)

    def must_load(self, *days: date, **how: Any) -> Loaded:
        done = self.load(*days, **how)
        assert done.success, done.failure()
        return done

    def must_run(self, *days: date, **how: Any) -> Outcome:
        done = self.run(*days, **how)
        assert done.success, done.failure()
        return done

    def definitions(self) -> dg.Definitions:
        """Dagster's definitions, made again when settings, clock or resources change."""
        known = (self.settings, self.now, dict(self.resources))
        if self._defined is None or self._defined[0] != known:
            self._defined = known, build_defs(self.settings, clock=Clock(self.now), **self.resources)
        return self._defined[1]

    def reports(
        self, first: date, last: date | None = None, *, accept_missing: str | None = None
    ) -> dict[str, TableReport]:
        """Load both sources without Dagster: table -> report. Raises the load's error."""
        named = [
            f"{table.key}:{day}/{one}"
            for table in RAW_TABLES.values()
            for day in _days(first, last)
            for one in self.settings.projects
        ]
        config = LoadConfig(accept_missing=dict.fromkeys(named, accept_missing) if accept_missing else {})
        wanted = self.only or tuple(table.key for table in ASSET_TABLES)
        return {one.table: one for one in self._reports(config, first, last, wanted, str(uuid.uuid4()))}

    def _reports(
        self, config: LoadConfig, first: date, last: date | None, tables: Iterable[str], run_id: str
    ) -> list[TableReport]:
        request = request_of(config, self.settings, _days(first, last), tables, run_id, self.now)
        return list(decide_and_load(self.runtime, config, request, lambda _: False))

    @property
    def runtime(self) -> Runtime:
        """The steps' runtime; the session's catalog becomes this one."""
        configure_catalog(self.spark, self.settings)
        return Runtime(self.lakehouse, self.ledger, LandingStore.from_settings(self.settings), self.settings)

    @property
    def lakehouse(self) -> Lakehouse:
        return Lakehouse(self.spark, self.settings.catalog_name)

    @property
    def tables(self) -> list[Table]:
        return [table for table in ALL_TABLES if not self.only or self.lakehouse.knows(table)]

    def rows(self, key: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.spark.table(self.lakehouse.identifier(table_by_key(key))).collect()]

    def count(self, key: str, day: date | None = None) -> int:
        found = self.rows(key)
        return sum(1 for row in found if day is None or row[table_by_key(key).day_column] == day)

    def files(self, key: str, day: date, project: str = PROJECT) -> frozenset[str]:
        table, wanted = table_by_key(key), Slice(day, project)
        found = self.lakehouse.slice_files(table, self.lakehouse.head(table), [wanted])
        return found[wanted].paths if wanted in found else frozenset()

    def change(self, **settings: Any) -> None:
        self.settings = self.settings.model_copy(update=settings)

    def snapshots(self) -> dict[str, int]:
        return {table.key: self._snapshot_count(table) for table in self.tables}

    def history(self) -> dict[str, int]:
        """Table -> number of snapshots that main went through, without unpublished staged ones."""
        return {table.key: len(self.lakehouse.commits(table, None)) for table in self.tables}

    def _snapshot_count(self, table: Table) -> int:
        return sum(1 for _ in JavaTables(self.spark, self.settings.catalog_name).load(table).snapshots())

    def digests(self) -> dict[str, dict[Slice, str]]:
        """Table -> slice -> recorded digest, of slices with rows."""
        return {
            table.key: {key: str(r.digest) for key, r in self.ledger.slices(table.key, None).items() if r.digest.rows}
            for table in self.tables
        }

    def digests_of(self, key: str) -> dict[Slice, str]:
        return {one: str(r.digest) for one, r in self.ledger.slices(key, None).items() if r.digest.rows}

    def history_of(self, key: str) -> int:
        return len(self.lakehouse.commits(table_by_key(key), None))


@contextmanager
def a_pipeline(
    spark: Any, folder: Path, *, home: Path | None = None, only: Iterable[str] = (), **settings: Any
) -> Iterator[Pipeline]:
    """A fresh pipeline on a real Dagster instance, in memory unless other processes share its `home`."""
    with ExitStack() as stack:
        if home is None:
            instance = stack.enter_context(dg.DagsterInstance.ephemeral())
        else:
            home.mkdir(exist_ok=True)
            instance = stack.enter_context(dg.DagsterInstance.local_temp(str(home)))
        pipeline = Pipeline(spark, folder, instance, only, **settings)
        try:
            yield pipeline
        finally:
            pipeline.ledger.close()
