"""Workers that cannot run our tasks, named before the first of these: one tiny job, and the error that it ends in.

Contains: the job, the reading of what a cluster says of its workers.
Add here: another way in which the Python of a worker does not start.
Does not contain: what is compared (worker_check.py), where code comes from (shipping.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from pipeline_assets.domain.errors import WorkerError
from resources.spark.worker_check import PYTHON, Difference, differences_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOST = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>[^\s()]+) executor")
_NO_PROGRAM = re.compile(r'Cannot run program "(?P<program>[^"\n]+)"')
_NO_MODULE = re.compile(r"No module named '(?P<name>[\w.]+)'")
_OTHER_PYTHON = re.compile(r"different version: (?P<there>\d+\.\d+) than that in driver:? (?P<here>\d+\.\d+)")


def require_same_workers(session: SparkSession) -> None:
    """Run one task that does nothing on each executor that is there; raises WorkerError, which names what differs.

    The Python of an executor compares itself when it starts (worker_daemon.py): so does that of an executor which comes later.
    """
    context = session.sparkContext
    executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
    try:
        context.parallelize(range(max(1, executors)), max(1, executors)).count()
    except Py4JError as error:
        found = unfit_worker(str(error))
        if found is None:
            raise
        raise found from error


def unfit_worker(text: str) -> WorkerError | None:
    """The error where Spark's words say that the Python of a worker did not start, or is not the driver's; None otherwise."""
    found = differences_in(text)
    if found:
        return _error(found)
    host = match["host"] if (match := _HOST.search(text)) else "a worker"
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
    return WorkerError(f"worker {first.host}", told, f"{hint}; nothing was read or written")
