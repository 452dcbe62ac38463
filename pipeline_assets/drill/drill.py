"""Carry out a drill: deliver sample data day by day, disturb each load, and check the result."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import dagster as dg
from dagster_aws.s3 import S3Resource
from pyspark.sql import SparkSession

from pipeline_assets.definitions import run_job
from pipeline_assets.domain.errors import LakehouseError, TidemarkError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.drill import scenarios
from pipeline_assets.drill.sandbox import Scratch, VictimError, a_victim, scratch, tidemark
from pipeline_assets.load.file_tasks import slice_digests
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.orchestration.live_runs import WORKING, liveness, report_dead_runs
from pipeline_assets.orchestration.specs import JOB_OF_SOURCE, asset_key, range_tags
from pipeline_assets.tables.events import QUARANTINE, RAW_TABLES
from pipeline_assets.tables.registry import ALL_TABLES, ASSET_TABLES, table_by_key
from pipeline_assets.tables.table import Table
from resources.failpoints import Failpoint
from resources.iceberg.errors import FAILURES
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from sample_export.account import ExportAccount
from sample_export.objects import iter_export
from sample_export.spec import ExportSpec

PROJECT = "10001"
_SMALL: dict[str, Any] = {"days": 1, "events_per_day": 60, "shards": 1, "bad_lines_per_day": 1, "tail_share": 0.02}
_SAMPLE = ExportSpec(projects=(PROJECT,), hours=(1, 9, 17), has_markers=False, **_SMALL)
_LONG_AGO = timedelta(days=180)
"""Age of the first day, so that the deadlines of all days have passed."""
_BETWEEN = timedelta(days=60)
"""Distance from the first loaded day back to the days that are only recovered."""
_REGULAR = next(source for source, table in RAW_TABLES.items() if table.key == "raw/regular_events")
_TABLES = tuple(table for table in ASSET_TABLES if table not in RAW_TABLES.values() or table is RAW_TABLES[_REGULAR])
_CONFLICT_SIGN = "and it is built again"


class Result(NamedTuple):
    """The result of one trial."""

    trial: scenarios.Trial
    seconds: float
    conflicts: int = 0
    """How often the paused load met a conflict with a load that had published first."""
    faults: tuple[str, ...] = ()

    @property
    def is_survived(self) -> bool:
        """Whether all invariants hold."""
        return not self.faults


def carry_out(
    spark: SparkSession, settings: Settings, trials: Sequence[scenarios.Trial], log: Callable[[str], None]
) -> Iterator[Result]:
    """Carry out the trials one after the other on the same tables; yields each result."""
    first_day = datetime.now(UTC).date() - _LONG_AGO
    with (
        scratch(spark, settings, PROJECT, first_day, log) as place,
        closing(Ledger(place.settings.ledger_database_url)) as ledger,
        closing(Ledger(place.calm.ledger_database_url)) as calm_ledger,
    ):
        log(
            f"drill on {place.settings.warehouse_url}, catalogs {place.settings.catalog_name} and {place.calm.catalog_name}"
        )
        runtimes = _runtime(spark, place.settings, ledger), _runtime(spark, place.calm, calm_ledger)
        drill = _Drill(*runtimes, place, first_day, first_day - _BETWEEN)
        log("sample data: two days are loaded undisturbed")
        drill.begin()
        for number, trial in enumerate(trials, start=1):
            result = drill.carry_out(trial)
            outcome = "survived" if result.is_survived else f"NOT SURVIVED: {result.faults[0]}"
            log(f"{number}/{len(trials)} {trial.event} at {trial.armed}: {outcome} ({result.seconds:.0f} s)")
            yield result


def _runtime(spark: SparkSession, settings: Settings, ledger: Ledger) -> Runtime:
    landing = LandingStore.from_settings(settings, S3Resource())
    return Runtime(Lakehouse(spark, settings.catalog_name), ledger, landing, settings)


@dataclass
class _Drill:
    runtime: Runtime
    calm: Runtime
    place: Scratch
    next_day: date
    recovered_day: date
    days: list[date] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    """Faults of earlier trials, which later trials do not report again."""

    def begin(self) -> None:
        """Publish two days before any disturbance; raises LakehouseError where that fails."""
        days = self._deliver(2)
        failures = self._load(days)
        self._load_calmly(days)
        if failures or not all(self._calm_digests().values()):
            reason = f"undisturbed loads of sample data do not work ({'; '.join(failures) or 'tables are empty'})"
            raise LakehouseError("drill", reason, "Fix that first: load any day with tidemark load")

    def carry_out(self, trial: scenarios.Trial) -> Result:
        """Carry out one trial on days of its own: newly delivered ones, one only recovered, or the first one."""
        started, conflicts, days, found = time.monotonic(), 0, list[date](), list[str]()
        try:
            if trial.event is scenarios.Disturbance.RECOVERED:
                self.recovered_day -= timedelta(days=1)
                found += scenarios.recovery_faults(self.place, _SAMPLE, PROJECT, self.recovered_day, trial.armed)
            elif trial.event is scenarios.Disturbance.REBUILT:
                tables = [table_by_key(name) for name in (scenarios.REVENUE, scenarios.AGGREGATE)]
                measured = lambda: {table.key: _measured(self.runtime, table) for table in tables}  # noqa: E731 - each time anew
                found += scenarios.rebuild_faults(self.place, self.days[0], trial, measured)
            else:
                is_chunked = trial.point is Failpoint.BETWEEN_CHUNKS
                days = self._deliver(2 if is_chunked else 1)
                environment = self.place.environment(**({"TIDEMARK_DAYS_PER_RUN": "1"} if is_chunked else {}))
                span = ("--from", str(days[0]), "--to", str(days[-1]))
                words = tidemark("load", "--source", _REGULAR.value, *span, "--verbose")
                with a_victim(words, environment, trial.armed, self.place.home) as victim:
                    victim.wait_until_paused()
                    if trial.event is scenarios.Disturbance.MET:
                        found += self._load(days)
                        victim.go_on()
                        if victim.wait_until_it_ends() != 0:
                            found.append(f"the load that was overtaken failed: {victim.log[-500:]}")
                        conflicts = victim.log.count(_CONFLICT_SIGN)
                if trial.event is not scenarios.Disturbance.MET:
                    found += self._start_again(trial.event, days)
        except (VictimError, TidemarkError, *FAILURES) as error:
            found += [str(error), *(self._load(days) if days else ())]
        if days:
            self._load_calmly(days)
            found += scenarios.faults(self._state(), self._calm_digests(), self.days)
            found = [fault for fault in found if fault not in self.reported]
            self.reported.update(found)
        return Result(trial, time.monotonic() - started, conflicts, tuple(found))

    def _deliver(self, count: int) -> list[date]:
        days = [self.next_day + timedelta(days=shift) for shift in range(count)]
        for day in days:
            for exported in iter_export(replace(_SAMPLE, first_day=day), ExportAccount()):
                self.place.deliver(exported.key, exported.body)
        self.next_day = days[-1] + timedelta(days=1)
        self.days += days
        return days

    def _start_again(self, event: scenarios.Disturbance, days: Sequence[date]) -> list[str]:
        """Start again as Dagster would: the monitor retries the dead run, or another run finds it."""
        with dg.DagsterInstance.get() as instance:
            is_retried, tags = event is scenarios.Disturbance.RETRIED, dict[str, str]()
            for dead in report_dead_runs(instance, self.runtime.ledger) if is_retried else ():
                tags = {f"dagster/{name}_run_id": dead.run_id for name in ("parent", "root")}
                tags["dagster/retry_number"] = "1"
            failures = self._load(days, **tags)
            for run in instance.get_runs(dg.RunsFilter(statuses=list(WORKING))):
                failures.append(f"run {run.run_id} died unnoticed")
                instance.report_run_failed(run, "its process was killed by a drill")
            self.runtime.lakehouse.branches.sweep(ALL_TABLES, liveness(instance, self.runtime.ledger, ""))
        return failures

    def _load(self, days: Sequence[date], **tags: str) -> list[str]:
        tags |= range_tags(days[0], days[-1])
        return run_job(self.place.settings, JOB_OF_SOURCE[_REGULAR], {}, tags, _SILENT)

    def _load_calmly(self, days: Sequence[date]) -> None:
        tables = frozenset(table.key for table in _TABLES)
        request = LoadRequest(tuple(days), (PROJECT,), tables, str(uuid.uuid4()), datetime.now(UTC))
        for _ in run_load(self.calm, request, lambda _: True):
            continue

    def _calm_digests(self) -> dict[str, dict[Slice, str]]:
        digests = {}
        for table in _TABLES:
            slices = self.calm.ledger.slices(table.key, None)
            digests[table.key] = {key: str(one.digest) for key, one in slices.items() if one.digest.rows}
        return digests | {QUARANTINE.key: _measured(self.calm, QUARANTINE)}

    def _state(self) -> scenarios.DrillState:
        lakehouse = self.runtime.lakehouse
        digests = {table.key: _measured(self.runtime, table) for table in (*_TABLES, QUARANTINE)}
        changes = [
            scenarios.Change(record.table, record.key, str(record.digest_before), str(record.digest_after))
            for record in self.runtime.ledger.publications()
            if record.table in digests
        ]
        dead = {table.key: lakehouse.branches.dead(table, lambda _: False) for table in ALL_TABLES}
        branches = [f"{name} {branch}" for name, found in dead.items() for branch in found]
        with dg.DagsterInstance.get() as instance:
            shown = {
                table.key: {date.fromisoformat(day) for day in instance.get_materialized_partitions(asset_key(table))}
                for table in _TABLES
            }
        return scenarios.DrillState(digests, changes, branches, shown)


def _measured(runtime: Runtime, table: Table) -> dict[Slice, str]:
    head = runtime.lakehouse.head(table)
    measured = slice_digests(runtime, table, head, runtime.lakehouse.slice_files(table, head).keys())
    return {key: str(digest) for key, digest in measured.items()}


_SILENT = dg.LoggerDefinition(lambda _: logging.Logger("tidemark.drill", logging.CRITICAL + 1))
