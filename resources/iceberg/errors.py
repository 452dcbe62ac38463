"""Translate failures of Spark, Iceberg and their stores into lost races, transient failures, and those an operator must fix."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException

from pipeline_assets.domain import errors
from pipeline_assets.domain.masking import scrubbed

FAILURES = (Py4JError, PySparkException)
_CONFLICTS = (
    "Found conflicting files|Missing required files to delete|Cannot commit, found new|CommitFailedException"
    "|ValidationException|is not an ancestor of"
)
_RACES = (
    "CommitFailedException|AlreadyExistsException|already exists|SQLITE_CONSTRAINT|duplicate key value"
    "|duplicate column name|Branch does not exist"
)
_FILE_LOCKED = "SQLITE_BUSY|database is locked"
_PASSING = (
    f"{_FILE_LOCKED}|terminating connection|he database system is|I/O error occurred while sending to the backend"
    "|connection has been closed|connection attempt failed|SQLTransientConnectionException"
    "|SQLNonTransientConnectionException|CommitStateUnknownException|iceberg.exceptions.ServiceUnavailableException"
    "|Connection refused|Connection reset|Premature end of Content-Length|EOFException: Reached the end of stream"
    "|NoHttpResponseException|SocketTimeoutException|SdkClientException|SlowDown"
    "|Service: S3, Status Code: (5|408|429)"
)
_SHUT = (
    "Failed to connect|Failed to initialize catalog|password authentication failed"
    "|iceberg.exceptions.(NotAuthorized|Forbidden)Exception"
)
_DATA_FILE = re.compile(r"(?:FileNotFound|NotFound|NoSuchKey)Exception\b[^\n]*?((?:\w+:)?/[^\s'\"]+?\.parquet)\b")
_AHEAD = re.compile(
    r"(?:Invalid update timestamp \S+: before |Expected sorted snapshot log entries)[^\d\n]*(\d{10,14})?"
)
"""Iceberg refuses a commit more than a minute older than the table's metadata or main's newest snapshot."""
_REFUSED = re.compile(r"([^:\n]*) \(Service: (?:S3|Sts|SSO|SSO OIDC|SsoOidc), Status Code: 40[0134]\b")
"""A final refusal by the store or its credentials' provider; the group is its sentence."""
_NO_CREDENTIALS = "Unable to load credentials"
"""The client found no credentials; it reports this with the type of a network failure."""
_REFUSED_HINT = (
    "Nothing more was published. Check the credentials and rights of TIDEMARK_WAREHOUSE_URL, then load again"
)
_AGAIN = "Nothing more was published; load again"
_RULES: tuple[tuple[str, type[errors.TidemarkError], str, str], ...] = (
    ("Python worker exited unexpectedly", errors.WorkerLostError,
     "a Python worker of Spark was killed, probably for want of memory",
     "Nothing more was published; load again. Where it happens each time, give this machine more memory, or Spark fewer cores "
     "(TIDEMARK_SPARK_MASTER)"),
    ("Cannot find snapshot", errors.LakehouseUnavailableError,
     "a snapshot that it reads was expired, or main was set back over it", _AGAIN),
    ("NotFoundException: (Location does not exist|Failed to open input stream)", errors.LakehouseError,
     "a file that the catalog names is not in the warehouse: ",
     "Check TIDEMARK_WAREHOUSE_URL; where files were lost or the catalog is too old: docs/operations.md"),
    (_NO_CREDENTIALS, errors.LakehouseError, "credentials of the warehouse are missing or have expired", _REFUSED_HINT),
    (_FILE_LOCKED, errors.LakehouseUnavailableError,
     "another process holds the lock of the SQLite file that TIDEMARK_CATALOG_URL names: ",
     "Nothing more was published; end that process, or wait until it ends; then load again"),
    (_PASSING, errors.LakehouseUnavailableError, "catalog or warehouse is out of reach: ", _AGAIN),
    (_SHUT, errors.LakehouseError, "the catalog cannot be opened: ", "Check TIDEMARK_CATALOG_URL"),
    (f"{_CONFLICTS}|{_RACES}", errors.LakehouseUnavailableError, "another writer was faster: ", _AGAIN),
)  # fmt: skip
"""Pattern of a failure, our type, reason (after a colon comes the trace's informative line) and hint."""
_WRITER = re.compile(r"\bat org\.apache\.(spark|iceberg\.aws\.s3|hadoop|iceberg|parquet)\.")
_FULL_HERE = {
    "spark": ("the disk of spark.local.dir is full", "set spark.local.dir in spark_config to a larger disk"),
    "iceberg.aws.s3": (
        "the disk where files wait for their upload is full",
        "set spark.sql.catalog.<catalog_name>.s3.staging-dir in spark_config to a larger disk",
    ),
}
"""Writing code -> the full disk of this machine, and the setting that moves it; all other code writes to the warehouse."""
_FULL = ("No space left on device", "File too large", "Disk quota exceeded", "database or disk is full")
_NOT_A_CAUSE = ("at ", "Suppressed: ")

_T = TypeVar("_T")
_TRIES, _FIRST_PAUSE_SECONDS = 7, 0.1
"""These retries bridge about six seconds."""
_PATIENCE_SECONDS = 60.0
"""A longer operation was already retried by the store's client."""


def is_conflict(error: Exception) -> bool:
    """Whether another writer changed the state that a commit is based on."""
    return bool(re.search(_CONFLICTS, str(error)))


def may_pass(error: Exception) -> bool:
    """Whether a retry of the same operation, now or a little later, may succeed."""
    text = str(error)
    return _NO_CREDENTIALS not in text and bool(re.search(f"{_RACES}|{_PASSING}", text))


def is_unanswered(error: Exception) -> bool:
    """Whether the outcome of a commit is unknown."""
    return bool(re.search(_PASSING, str(error)))


def again(operation: Callable[[], _T]) -> _T:
    """Run a metadata operation, with retries after lost races and short outages of the catalog."""
    until = time.monotonic() + _PATIENCE_SECONDS
    for is_last in errors.tries(_TRIES, _FIRST_PAUSE_SECONDS):
        try:
            return operation()
        except FAILURES as error:
            if is_last or not may_pass(error) or time.monotonic() > until:
                raise
    raise AssertionError


@contextmanager
def lakehouse_failures(subject: str) -> Iterator[None]:
    """Raise known failures as ours; others, which may be defects, propagate."""
    try:
        yield
    except FAILURES as error:
        ours = failure(subject, error)
        if ours is None:
            raise
        raise ours from error


def failure(subject: str, error: Exception) -> errors.TidemarkError | None:
    """Translate a failure into one of ours; None for an unknown one."""
    known = _known(str(error), error)
    return known and known[0](subject, *known[1:])


def _known(text: str, error: Exception) -> tuple[type[errors.TidemarkError], str, str] | None:
    if full := next((mark for mark in _FULL if mark in text), None):
        writer = _WRITER.search(text.partition(full)[2])
        reason, cure = _FULL_HERE.get(writer[1] if writer else "", ("cannot be written", None))
        room = f"Make room, or {cure};" if cure else "Make room for the warehouse,"
        return errors.LakehouseError, f"{reason}: {full}", f"{room} then load again"
    if ahead := _AHEAD.search(text):
        at = f"{datetime.fromtimestamp(int(ahead[1]) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if ahead[1] else "a time"
        reason = (
            f"its newest commit is of {at}, which lies ahead of this machine's clock, so that Iceberg refuses to commit"
        )
        hint = "where the other machine's was wrong, wait until then or attach without it: docs/operations.md"
        return errors.LakehouseError, reason, f"Correct this clock; {hint}"
    if lost := _DATA_FILE.search(text):
        hint = f"Put it back, or bring its day back: {errors.BRING_BACK}"
        return errors.LakehouseError, f"its data file {lost[1]} is gone from the warehouse", hint
    for pattern, kind, reason, hint in _RULES:
        if re.search(pattern, text):
            return kind, reason + (first_line(error) if reason.endswith(": ") else ""), hint
    if refused := _REFUSED.search(text):
        said = scrubbed(refused[1].strip())[:300].rstrip(".")
        return (
            errors.LakehouseError,
            f"the warehouse refused: {said if said != 'null' else refused[0].strip()}",
            _REFUSED_HINT,
        )
    return None


def first_line(error: Exception) -> str:
    """Return the most informative line of a Java stack trace, without secrets, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if "Exception" in line or "Error" in line]
    lines = [line for line in lines if not line.startswith(_NOT_A_CAUSE)]
    return scrubbed(lines[-1].lstrip(": ") if lines else type(error).__name__)[:300]
