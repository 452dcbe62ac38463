"""Detect workers that cannot run our tasks before the first real task, with tiny jobs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipeline_assets.domain.errors import WorkerError
from resources.spark.worker_check import PYTHON, Difference, differences_in

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_ROUNDS = 10
"""Number of tiny jobs; an executor that got no task in so many will get none."""
_MOST_ATTEMPTS = 10_000
_MESSAGES_MS = 30_000
_WAIT = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
}
_HOST = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>[^\s()]+) executor")
_NO_PROGRAM = re.compile(r'Cannot run program "(?P<program>[^"\n]+)"')
_NO_MODULE = re.compile(r"No module named '(?P<name>[\w.]+)'")
_OTHER_PYTHON = re.compile(r"different version: (?P<there>\d+\.\d+) than that in driver:? (?P<here>\d+\.\d+)")


@dataclass(frozen=True)
class Attempt:
    """One try of a task."""

    executor: str
    host: str
    failure: str | None
    """Spark's error message; None where the attempt did not fail."""


def waiting_for_workers(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that make a session wait for all executors before its first job, for at most ten seconds.

    By default a standalone cluster does not wait, so these settings make it wait for the cores of `spark.cores.max`. YARN and
    Kubernetes wait for four fifths of the requested executors by themselves. Executors allocated on demand are not waited for.
    """
    is_on_demand = config.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    return {} if is_on_demand or not master.startswith("spark://") else _WAIT


def require_same_workers(session: SparkSession) -> None:
    """Run an empty task on each executor; raises WorkerError, which names what differs on one of them.

    Executors that join meanwhile are checked as well. A worker's Python compares itself with the driver when it starts
    (worker_daemon.py), also on an executor that joins later.
    """
    context = session.sparkContext
    asked: set[str] = set()
    for _ in range(_ROUNDS):
        known = set(context.statusTracker().getJobIdsForGroup())
        # Spark distributes tasks without a preferred location over the idle executors in turn.
        tasks = max(1, len(executors_of(context)))
        try:
            context.parallelize(range(tasks), tasks).count()
        except (Py4JJavaError, PySparkException) as error:
            unfit = unfit_among(attempts_of(context, known))
            if unfit is None:
                raise
            raise unfit from error
        attempts = attempts_of(context, known)
        # Spark retries a failed task on another executor, so the job succeeds where some executors are fit.
        unfit = unfit_among(attempts)
        if unfit is not None:
            raise unfit
        asked |= {attempt.executor for attempt in attempts}
        if executors_of(context) <= asked:
            return


def executors_of(context: SparkContext) -> set[str]:
    """Return the ids of the executors that Spark knows and has not lost."""
    listed = context._jsc.sc().statusStore().executorList(True)
    return {executor.id() for executor in _each(listed)} - {"driver"}


def attempts_of(context: SparkContext, known: Collection[int]) -> list[Attempt]:
    """Return all task attempts of the session's finished jobs, without the jobs in `known`."""
    # Spark learns about its tasks through messages, and a listener of the operator may delay them. Executors check
    # themselves, so attempts that are unknown by then need no check here.
    with suppress(Py4JJavaError):
        context._jsc.sc().listenerBus().waitUntilEmpty(_MESSAGES_MS)
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup() if job not in known]
    stages = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
    return [
        Attempt(task.executorId(), task.host(), said.get() if (said := task.errorMessage()).isDefined() else None)
        for stage in stages
        for task in _each(store.taskList(stage, 0, _MOST_ATTEMPTS))
    ]


def _each(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def unfit_among(attempts: Iterable[Attempt]) -> WorkerError | None:
    """Return the error of the first attempt whose worker cannot run our tasks; None where every worker can."""
    failures = ((attempt.failure, attempt.host) for attempt in attempts if attempt.failure is not None)
    unfit = next(filter(None, (unfit_worker(failure, host) for failure, host in failures)), None)
    return (
        None
        if unfit is None
        else WorkerError(unfit.subject, unfit.reason, f"{unfit.hint}; nothing was read or written")
    )


def unfit_worker(text: str, host: str = "a worker") -> WorkerError | None:
    """Return the error where Spark's message says that a worker's Python did not start or differs from the driver's; else None.

    `host` names the worker where the message does not.
    """
    found = differences_in(text)
    if found:
        return _error(found)
    host = match["host"] if (match := _HOST.search(text)) else host
    if match := _OTHER_PYTHON.search(text):
        return _error([Difference(host, PYTHON, match["here"], match["there"])])
    if "PythonWorkerFactory" in text and (match := _NO_PROGRAM.search(text)):
        hint = "Install Python with the locked packages there, or set PYSPARK_PYTHON to where workers have it"
        return WorkerError(f"worker {host}", f"has no program {match['program']}, which is to run tasks", hint)
    if "Error from python worker" in text and (match := _NO_MODULE.search(text)):
        hint = 'Install the locked packages and this package there, or let code be sent: spark_ship_code = "archive"'
        return WorkerError(f"worker {host}", f"its Python finds no module {match['name']}", hint)
    return None


def _error(found: list[Difference]) -> WorkerError:
    first = found[0]
    told = "; ".join(
        f"{one.what} is {one.there} there and {one.here} here"
        if one.there
        else f"{one.what} is missing ({one.here} here)"
        for one in found
        if one.host == first.host
    )
    hint = "Install there what deploy/build/requirements.lock names, with the same Python"
    if any(one.what.startswith("code of ") for one in found):
        hint = 'Install the same Tidemark there, or let code be sent: spark_ship_code = "archive"'
    if any(one.there is None for one in found):
        hint = f"{hint}; where code is sent, repeat a PYTHONPATH of the worker's own as spark.executorEnv.PYTHONPATH"
    return WorkerError(f"worker {first.host}", told, hint)
