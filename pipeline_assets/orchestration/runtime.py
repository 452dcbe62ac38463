"""The runtime of an op's run: kept connections, metrics file, notices, and our errors as Dagster's failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage  # no public name in Dagster 1.13
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession
from sqlalchemy import Connection, Engine, create_engine, event, inspect

from pipeline_assets.domain.errors import PublishConflictError, TidemarkError, TransientError
from pipeline_assets.domain.masking import tellable
from pipeline_assets.domain.plain_text import bounded, shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import StepSkew, ratio_of
from pipeline_assets.inspection.questions import unsigned_notices
from pipeline_assets.load.runtime import Runtime, SkewLog
from pipeline_assets.operations.notices import register_receivers, send_notices
from pipeline_assets.orchestration.events import LONGEST_TAG
from pipeline_assets.orchestration.live_runs import run_queue
from pipeline_assets.orchestration.specs import SKEW_TAG
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.failpoints import Failpoint, failpoint
from resources.iceberg.catalog_at_rest import CatalogAtRest
from resources.iceberg.errors import lakehouse_failures
from resources.iceberg.lake_identity import Purpose
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.decisions import FOLDER, DecisionObjects
from resources.ledger.processes import heartbeat
from resources.ledger.store import Ledger
from resources.spark.session import configure_catalog
from resources.spark.workers import naming_a_dead_engine


@contextmanager
def writing_metrics(runtime: Runtime, instance: dg.DagsterInstance) -> Iterator[None]:
    """Write the metrics file after the block, also if it fails. A failure to write does not fail the run."""
    try:
        yield
    finally:
        path, now = runtime.settings.metrics_file, datetime.now(UTC)
        if path is not None:
            from pipeline_assets.inspection import metrics  # noqa: PLC0415 - only runs with a metrics file need the library

            try:
                try:
                    samples = metrics.read_samples(runtime.ledger, runtime.settings, now, run_queue(instance))
                except Exception as error:
                    runtime.log(f"metrics: {shown(str(error))}; {path} says that the ledger cannot be read")
                    samples = metrics.samples_of_nothing(now)
                metrics.write_textfile(metrics.text_of(samples), path)
            except Exception as error:
                runtime.log(f"metrics: {shown(str(error))}; the figures of this run are not written")


@contextmanager
def telling_receivers(runtime: Runtime, *, is_dry_run: bool) -> Iterator[None]:
    """Send the notices that the block records, also if it fails. A failure to send does not fail the run."""
    if is_dry_run:
        yield
        return
    # A new receiver must get the notices that the block records.
    _attempt(runtime, register_receivers)
    try:
        yield
    except Exception:
        _send(runtime)
        raise
    _send(runtime)


def _send(runtime: Runtime) -> None:
    failpoint(Failpoint.BEFORE_NOTICES)
    for text in (
        *(f"notices: {one}" for one in _attempt(runtime, send_notices) or ()),
        *map(str, unsigned_notices(runtime.settings)),
    ):
        runtime.log(text)


def _attempt(runtime: Runtime, do: Callable[[Ledger, Settings], Any]) -> Any:
    try:
        return do(runtime.ledger, runtime.settings) if runtime.settings.notify_urls else None
    except Exception as error:
        runtime.log(f"notices: {error}; they are kept, and sent by the next run")
        return None


@contextmanager
def kept_connections(instance: dg.DagsterInstance) -> Iterator[None]:
    """Use one engine per SQLite file in the outermost block, with its connection and statements; close all at its end."""
    events, runs = instance.event_log_storage, instance.run_storage
    with ExitStack() as stack:

        @cache
        def engine_of(url: str) -> Engine:
            engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})
            # A power loss may lose the last events, which leaves a run for `dead_runs`; a killed process loses none.
            event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
            stack.callback(engine.dispose)
            return engine

        @contextmanager
        def connect(shard: str) -> Iterator[Connection]:
            assert isinstance(events, SqliteEventLogStorage)
            with events._db_lock:
                engine = engine_of(events.conn_string_for_shard(shard))
                if shard not in events._initialized_dbs:
                    events._initdb(engine)
                    events._initialized_dbs.add(shard)
                with engine.begin() as connection:
                    yield connection

        kept: list[tuple[object, str, Callable[..., Any]]] = []
        if type(events) is SqliteEventLogStorage and "_connect" not in vars(events):
            index = events.conn_string_for_shard(INDEX_SHARD_NAME)
            kept += [(events, "_connect", connect)]
            kept += [(events, "has_table", lambda name: inspect(engine_of(index)).has_table(name))]
        if type(runs) is SqliteRunStorage and "connect" not in vars(runs):
            kept += [(runs, "connect", lambda: engine_of(runs._conn_string).begin())]
        for storage, name, method in kept:
            setattr(storage, name, method)
            stack.callback(delattr, storage, name)
        yield


_RETRIES, _RETRY_PAUSE_SECONDS = 2, 10


def production_ledger(settings: Settings) -> Ledger:
    """Return the ledger that also stores operators' decisions in the warehouse."""
    return Ledger(settings.ledger_database_url, DecisionObjects(LakeObjects.of(settings, FOLDER)))


@contextmanager
def op_runtime(
    context: dg.OpExecutionContext,
    settings: Settings,
    spark: LazyPySparkResource,
    landing: LandingStore,
    *,
    is_dry_run: bool = False,
    purpose: Purpose | None = None,
) -> Iterator[Runtime]:
    """Yield the runtime of an op's run; turns our errors into Failure, or into RetryRequested where a retry can help.

    Checks first that lake and ledger belong together, as `purpose` (by default from `is_dry_run`) demands.
    """
    url, run = settings.ledger_database_url, context.run
    try:
        # The heartbeat starts first: a run without a known process counts as missing.
        with (
            kept_connections(context.instance),
            heartbeat(url, run.run_id, run.job_name, _steps(context)),
            closing(production_ledger(settings)) as ledger,
        ):
            at_rest = CatalogAtRest(settings)
            lakehouse = Lakehouse(lambda: _started(spark, settings), settings.catalog_name, at_rest)
            memory = settings.spark_driver_memory
            with closing(at_rest), naming_a_dead_engine(lambda: lakehouse.engine, context.log.info, memory) as log:
                with lakehouse_failures("tables"):
                    # Reading decisions back and syncing the ledger would write to another lake.
                    meant = purpose or (Purpose.LOOK if is_dry_run else Purpose.KEEP)
                    lakehouse.require_own(settings, EVERY_TABLE, meant, ledger.lake)
                skew = SkewLog(partial(_tag_skew, context.instance, run.run_id, {}))
                runtime = Runtime(lakehouse, ledger, landing, settings, log, skew=skew)
                with (
                    writing_metrics(runtime, context.instance),
                    telling_receivers(runtime, is_dry_run=is_dry_run),
                    lakehouse_failures("tables"),
                ):
                    yield runtime
    except PublishConflictError as error:
        raise dg.Failure(str(error), allow_retries=True) from tellable(error)
    except TransientError as error:
        if context.retry_number >= _RETRIES:
            # Dagster reports a retry beyond the limit only by the exception's name.
            raise dg.Failure(str(error), allow_retries=False) from tellable(error)
        raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_PAUSE_SECONDS) from tellable(error)
    except TidemarkError as error:
        raise dg.Failure(str(error), allow_retries=False) from tellable(error)
    except Exception as error:
        masked_error = tellable(error)
        if masked_error is error:
            raise
        raise masked_error from None


def _started(spark: LazyPySparkResource, settings: Settings) -> SparkSession:
    session: SparkSession = spark.spark_session
    configure_catalog(session, settings)
    return session


def _tag_skew(instance: dg.DagsterInstance, run_id: str, told: dict[str, str], step: StepSkew) -> None:
    """Tag the run before the step begins, so a run that one task slows down or kills shows the skew."""
    sign = " !" if step.warning is not None else ""
    told[f"{step.table} {step.step}"] = f"{ratio_of(step.forecast):.1f}{sign}"
    text = "; ".join(f"{name} {ratio}" for name, ratio in told.items())
    instance.add_run_tags(run_id, {SKEW_TAG: bounded(text, LONGEST_TAG)})


def _steps(context: dg.OpExecutionContext) -> int:
    """The number of steps if this process runs all of them, else 0, because another process may outlive this one."""
    here = context.get_step_execution_context().execution_plan.step_keys_to_execute
    planned = context.run.execution_plan_snapshot_id
    known = context.instance.get_execution_plan_snapshot(planned).step_keys_to_execute if planned else here
    return len(here) if set(here) == set(known) else 0
