"""Send code to workers, and name workers or an engine that differ, failed or died."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from pipeline_assets.domain.errors import EngineError, SettingsError, WorkerError
from pipeline_assets.domain.settings import Settings, ShippedCode
from resources.spark.worker_daemon import VARIABLE, described, differences_in, encoded, files_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_OWN = ("pipeline_assets", "resources")
_COMPILED = (".so", ".pyd", ".dylib")
_PATH, _EXPECTED = "spark.executorEnv.PYTHONPATH", f"spark.executorEnv.{VARIABLE}"


class Shipped(NamedTuple):
    """The settings and the archive that bring our code to a cluster."""

    config: Mapping[str, str]
    name: str | None = None
    content: bytes = b""

    def send(self, session: SparkSession) -> None:
        """Hand the archive to Spark, which copies it to every executor before its first task."""
        if self.name is not None:
            path = Path(session.sparkContext._temp_dir) / self.name
            path.write_bytes(self.content)
            session.sparkContext.addFile(str(path))


def shipped(settings: Settings, config: Mapping[str, str]) -> Shipped:
    """Return what workers need in addition to `config`; raises SettingsError for code that cannot run from an archive."""
    tables = (*settings.extra_aggregates, *settings.extra_dimensions)
    packages = tuple(dict.fromkeys((*_OWN, *(re.split("[:.]", name)[0] for name in tables))))
    expected = {_EXPECTED: encoded(described(packages))}
    if settings.spark_ship_code is ShippedCode.INSTALLED:
        return Shipped(expected)
    files = {name: body for package in packages for name, body in _sent_files(package)}
    content = _archive(files)
    name = f"tidemark-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    # Executors run in the folder of the sent files; other installed packages come later on the path.
    path = ":".join([name, *filter(None, [config.get(_PATH)])])
    return Shipped({**expected, _PATH: path}, name, content)


def _sent_files(package: str) -> list[tuple[str, bytes]]:
    files = [(name, body) for name, body in files_of(package) if package not in _OWN or name.endswith(".py")]
    compiled = next((name for name, _ in files if name.endswith(_COMPILED)), None)
    if compiled is not None:
        reason = f"{compiled} is compiled, and Python imports nothing compiled from an archive"
        hint = 'Install the package on every worker, and set TIDEMARK_SPARK_SHIP_CODE to "installed"'
        raise SettingsError(f"package {package}", reason, hint)
    if not files:
        raise SettingsError(f"package {package}", "holds no module that could be sent to workers", "Correct its name")
    return files


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Identical for the same code: an entry's date is 1980 by default."""
    # Python finds a folder without `__init__.py` in an archive only by an entry.
    folders = {f"{folder}/": b"" for name in files for folder in PurePosixPath(name).parents if folder.name}
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in sorted({**folders, **files}.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return body.getvalue()


_ROUNDS = 10
"""An executor without a task in so many tiny jobs will get none."""
_MOST_ATTEMPTS = 10_000
_MESSAGES_MS = 30_000
_WAIT = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
}
_HOST = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>[^\s()]+) executor")
_OF_WORKERS = ("PythonWorkerFactory", "Error from python worker", "PYTHON_VERSION_MISMATCH")
_NO_START = re.compile(
    r'Cannot run program "[^"\n]+"|No module named \'[\w.]+\'|different version: \d+\.\d+ than that in driver:? \d+\.\d+'
)
_HINT = (
    "Install there what deploy/build/requirements.lock names, with the same Python (PYSPARK_PYTHON names another one); let code "
    'be sent (spark_ship_code = "archive"), and repeat a PYTHONPATH of the worker\'s own as spark.executorEnv.PYTHONPATH'
)


Attempt = tuple[str, str, str | None]
"""One try of a task: executor, host, failure."""


def waiting_for_workers(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that make a standalone cluster wait at most ten seconds for its executors before the first job."""
    is_on_demand = config.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    return {} if is_on_demand or not master.startswith("spark://") else _WAIT


def require_same_workers(session: SparkSession) -> None:
    """Run an empty task on each executor, also on ones that join meanwhile; raises WorkerError, which names one's differences."""
    context = session.sparkContext
    asked: set[str] = set()
    for _ in range(_ROUNDS):
        known, failure = set(context.statusTracker().getJobIdsForGroup()), None
        # Spark distributes tasks without a preferred location over the idle executors in turn.
        tasks = max(1, len(_executors(context)))
        try:
            context.parallelize(range(tasks), tasks).count()
        except (Py4JJavaError, PySparkException) as error:
            failure = error
        attempts = attempts_of(context, known)
        # Spark retries a failed task on another executor, so the job may succeed beside an unfit one.
        if unfit := unfit_among(attempts):
            raise unfit from failure
        if failure is not None:
            raise failure
        asked |= {executor for executor, *_ in attempts}
        if _executors(context) <= asked:
            return


def _executors(context: SparkContext) -> set[str]:
    listed = context._jsc.sc().statusStore().executorList(True)
    return {executor.id() for executor in _each(listed)} - {"driver"}


def attempts_of(context: SparkContext, known: Collection[int]) -> list[Attempt]:
    """Return all task attempts of the session's finished jobs, without the jobs in `known`."""
    # An operator's listener may delay Spark's messages about tasks; attempts unknown by then check themselves.
    with suppress(Py4JJavaError):
        context._jsc.sc().listenerBus().waitUntilEmpty(_MESSAGES_MS)
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup() if job not in known]
    stages = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
    return [
        (task.executorId(), task.host(), said.get() if (said := task.errorMessage()).isDefined() else None)
        for stage in stages
        for task in _each(store.taskList(stage, 0, _MOST_ATTEMPTS))
    ]


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def unfit_among(attempts: Iterable[Attempt]) -> WorkerError | None:
    """Return the error of the first attempt whose worker cannot run our tasks; None where every worker can."""
    for _, host, failure in attempts:
        if failure is not None and (unfit := unfit_worker(failure, host)):
            return WorkerError(unfit.subject, unfit.reason, f"{unfit.hint}; nothing was read or written")
    return None


def unfit_worker(text: str, host: str = "a worker") -> WorkerError | None:
    """Return the error where Spark's message says that a worker's Python did not start or differs; `host`: its default name."""
    if found := differences_in(text):
        host = found[0].host
        reason = "; ".join(
            f"{one.what} is {f'{one.there} there and {one.here} here' if one.there else f'missing ({one.here} here)'}"
            for one in found
            if one.host == host
        )
    elif any(mark in text for mark in _OF_WORKERS) and (reached := _NO_START.search(text)):
        host = match["host"] if (match := _HOST.search(text)) else host
        reason = f"its Python does not start: {reached[0]}"
    else:
        return None
    return WorkerError(f"worker {host}", reason, _HINT)


_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_ENDING_SECONDS = 5


@contextmanager
def naming_a_dead_engine(
    engine: Callable[[], SparkSession | None], log: Callable[[str], None], memory: str
) -> Iterator[Callable[[str], None]]:
    """Raise EngineError where the JVM died or ran out of memory, WorkerError for an unfit worker; retries nothing.

    Yields `log`, whose last line the error repeats.
    """
    last = "starting"

    def said(text: str) -> None:
        nonlocal last
        last = text
        log(text)

    try:
        yield said
    except Exception as error:
        if (session := engine()) is None:
            raise
        # Python's handle of the process, because a dead JVM does not answer.
        process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
        what = _end_of(process, error)
        if what is None:
            if (unfit := next(filter(None, (unfit_worker(str(cause)) for cause in _chain(error))), None)) is None:
                raise
            raise unfit from error
        reason = f"{what}; the last line it logged: {last}"
        hint = f"Raise TIDEMARK_SPARK_DRIVER_MEMORY (now {memory}), then load again; what was not published yet is not lost"
        raise EngineError("Spark", reason, hint) from error


def _end_of(process: subprocess.Popen[bytes] | None, error: Exception) -> str | None:
    chain = list(_chain(error))
    if process is None and any(isinstance(cause, ConnectionRefusedError | Py4JNetworkError) for cause in chain):
        return "its JVM is gone, probably out of memory"
    # py4j also reports a dead JVM as "does not exist in the JVM", for any class.
    lost = [one for one in chain if isinstance(one, ConnectionError | Py4JError) and not isinstance(one, Py4JJavaError)]
    if process is not None and lost:
        try:
            return f"its JVM died (exit code {process.wait(_ENDING_SECONDS)}), probably out of memory"
        except subprocess.TimeoutExpired:
            return None
    if any(_OUT_OF_MEMORY in str(cause) for cause in chain):
        return "its JVM ran out of memory"
    return None


def _chain(error: BaseException | None) -> Iterator[Any]:
    """An error and its causes: the clean-up after the first failure fails as well and hides it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
