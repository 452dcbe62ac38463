"""Detect that Spark's JVM, or the Python of a worker, died, and name the error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from pipeline_assets.domain.errors import EngineError
from resources.spark.workers import unfit_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_ENDING_SECONDS = 5


class LastWords:
    """A `log` that remembers its last line, to tell what the load was doing when the engine died."""

    def __init__(self, log: Callable[[str], None]) -> None:
        """Forward every line to `log`."""
        self._log = log
        self.last = "starting"

    def __call__(self, text: str) -> None:
        """Log a line and remember it."""
        self.last = text
        self._log(text)


@contextmanager
def naming_a_dead_engine(engine: Callable[[], SparkSession | None], words: LastWords, memory: str) -> Iterator[None]:
    """Raise EngineError where the JVM died or ran out of memory, WorkerError where a worker that joined later is unfit.

    Other failures propagate unchanged.
    Nothing is retried: this process has no engine any more, and a new one with the same memory would fail the same way. So
    an operator must act. `engine` returns the session, None where none was started.
    """
    try:
        yield
    except Exception as error:
        session = engine()
        if session is None:
            raise
        # Ask Python's handle of the process, because a dead JVM does not answer.
        process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
        what = _end_of(process, error)
        if what is None:
            unfit = next(filter(None, (unfit_worker(str(cause)) for cause in _chain(error))), None)
            if unfit is None:
                raise
            raise unfit from error
        reason = f"{what}; the last line it logged: {words.last}"
        hint = f"Raise TIDEMARK_SPARK_DRIVER_MEMORY (now {memory}), then load again; what was not published yet is not lost"
        raise EngineError("Spark", reason, hint) from error


def _end_of(process: subprocess.Popen[bytes] | None, error: Exception) -> str | None:
    """Describe how the JVM ended; None where it is not the cause."""
    chain = list(_chain(error))
    is_lost = any(_is_lost_connection(cause) for cause in chain)
    if process is None and any(isinstance(cause, ConnectionRefusedError | Py4JNetworkError) for cause in chain):
        return "its JVM is gone, probably out of memory"
    if is_lost and process is not None:
        try:
            return f"its JVM died (exit code {process.wait(_ENDING_SECONDS)}), probably out of memory"
        except subprocess.TimeoutExpired:
            return None
    if any(_OUT_OF_MEMORY in str(cause) for cause in chain):
        return "its JVM ran out of memory"
    return None


def _is_lost_connection(error: BaseException) -> bool:
    # py4j also reports a dead JVM as "does not exist in the JVM", for whatever class was requested.
    return isinstance(error, ConnectionError) or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError))


def _chain(error: BaseException | None) -> Iterator[Any]:
    """An error and its causes: the clean-up after the first failure fails as well and hides it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
