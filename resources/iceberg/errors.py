"""Failures of Spark, Iceberg and their stores as ours: who won a race, what time may heal, what an operator must fix.

Contains: the reading of what the JVM says; trying again what may pass.
Add here: another failure seen in the wild.
Does not contain: what is tried (lakehouse.py, branches.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException

from pipeline_assets.domain.errors import (
    LakehouseError,
    LakehouseUnavailableError,
    TidemarkError,
    WorkerLostError,
)
from pipeline_assets.domain.masking import scrubbed
from pipeline_assets.domain.retry import tries

FAILURES = (Py4JError, PySparkException)
"""All that a call into the JVM raises: `IllegalArgumentException` and the like arrive as pyspark's own types."""
_CONFLICTS = (
    "Found conflicting files",
    "Missing required files to delete",
    "Cannot commit, found new",
    "CommitFailedException",
    "ValidationException",
    # The base was expired meanwhile, and with it what would tell who came between.
    "is not an ancestor of",
)
_RACES = (
    "CommitFailedException",
    "AlreadyExistsException",
    "already exists",
    "SQLITE_CONSTRAINT",
    "duplicate key value",
    "duplicate column name",
    "Branch does not exist",
)
_PASSING = (
    "SQLITE_BUSY",
    "database is locked",
    "terminating connection",
    "he database system is",
    "I/O error occurred while sending to the backend",
    "connection has been closed",
    "connection attempt failed",
    "SQLTransientConnectionException",
    "SQLNonTransientConnectionException",
    "CommitStateUnknownException",
    "iceberg.exceptions.ServiceUnavailableException",
    "Connection refused",
    "Connection reset",
    "Premature end of Content-Length",
    "EOFException: Reached the end of stream",
    "NoHttpResponseException",
    "SocketTimeoutException",
    "SdkClientException",
    "SlowDown",
    "Service: S3, Status Code: 5",
    "Service: S3, Status Code: 408",
    "Service: S3, Status Code: 429",
)
_SHUT = (
    "Failed to connect",
    "Failed to initialize catalog",
    "password authentication failed",
    # A REST catalog that asks for a credential, and one that grants too little.
    "iceberg.exceptions.NotAuthorizedException",
    "iceberg.exceptions.ForbiddenException",
)
"""Signs of a catalog that refuses us; looked for where nothing says that it may pass."""
_EXPIRED = "Cannot find snapshot"
_GONE = ("NotFoundException: Location does not exist", "NotFoundException: Failed to open input stream")
_AHEAD = re.compile(
    r"(?:Invalid update timestamp \S+: before |Expected sorted snapshot log entries)[^\d\n]*(\d{10,14})?"
)
"""Iceberg commits nothing that is older by more than a minute than what the table holds, or than main's newest snapshot."""
_REFUSED = re.compile(r"([^:\n]*) \(Service: (?:S3|Sts|SSO|SSO OIDC|SsoOidc), Status Code: 40[0134]\b")
"""What the store, or who gives credentials for it, says of a request that it will never grant: its sentence, not S3's code."""
_NO_CREDENTIALS = "Unable to load credentials"
"""The client found none, or expired ones, before any request; it tells that as it tells of a network."""
_WORKER_GONE = "Python worker exited unexpectedly"
_WORKER_HINT = (
    "Nothing more was published; load again. Where it happens each time, give this machine more memory, or Spark fewer cores "
    "(TIDEMARK_SPARK_MASTER)"
)
_REFUSED_HINT = (
    "Nothing more was published. Check the credentials and rights of TIDEMARK_WAREHOUSE_URL, then load again"
)
_WRITER = re.compile(r"\bat org\.apache\.(spark|iceberg\.aws\.s3|hadoop|iceberg|parquet)\.")
"""Whose code was writing to the disk that is full: Spark's own does where it keeps what does not fit into memory."""
_FULL_HERE = {
    "spark": ("the disk of spark.local.dir is full", "set spark.local.dir in spark_config to a larger disk"),
    "iceberg.aws.s3": (
        "the disk where files wait for their upload is full",
        "set spark.sql.catalog.<catalog_name>.s3.staging-dir in spark_config to a larger disk",
    ),
}
"""Who was writing -> which disk of this machine that is, and where it is set; anybody else writes to the warehouse."""
_FULL = ("No space left on device", "File too large", "Disk quota exceeded", "database or disk is full")
_NOT_A_CAUSE = ("at ", "Suppressed: ")
"""Frames of a stack trace, which may be named after exceptions, and what failed beside the cause."""

_T = TypeVar("_T")
_TRIES, _FIRST_PAUSE_SECONDS = 7, 0.1
"""A catalog may be away for about six seconds."""
_PATIENCE_SECONDS = 60.0
"""What has failed for longer was tried again by the store's own client, often enough: tries of tries would take hours."""


def is_conflict(error: Exception) -> bool:
    """Whether another writer changed what a commit rests on."""
    return any(mark in str(error) for mark in _CONFLICTS)


def may_pass(error: Exception) -> bool:
    """Whether the same operation may do, tried again at once or a little later."""
    text = str(error)
    return _NO_CREDENTIALS not in text and any(mark in text for mark in (*_RACES, *_PASSING))


def is_unanswered(error: Exception) -> bool:
    """Whether nobody knows what became of a commit."""
    return any(mark in str(error) for mark in _PASSING)


def again(operation: Callable[[], _T]) -> _T:
    """The result of a metadata operation that another writer, or a catalog out of reach for a moment, may fail."""
    until = time.monotonic() + _PATIENCE_SECONDS
    for is_last in tries(_TRIES, _FIRST_PAUSE_SECONDS):
        try:
            return operation()
        except FAILURES as error:
            if is_last or not may_pass(error) or time.monotonic() > until:
                raise
    raise AssertionError


@contextmanager
def lakehouse_failures(subject: str) -> Iterator[None]:
    """Name failures that are not ours to solve; others, which may be defects, pass as they are."""
    try:
        yield
    except FAILURES as error:
        ours = failure(subject, error)
        if ours is None:
            raise
        raise ours from error


def failure(subject: str, error: Exception) -> TidemarkError | None:
    """The failure as ours, None where it is none of those known."""
    text = str(error)
    full = next((mark for mark in _FULL if mark in text), None)
    writer = _WRITER.search(text.partition(full)[2]) if full is not None else None
    if writer is not None and writer[1] in _FULL_HERE:
        reason, cure = _FULL_HERE[writer[1]]
        return LakehouseError(subject, f"{reason}: {full}", f"Make room, or {cure}; then load again")
    if full is not None:
        return LakehouseError(subject, f"cannot be written: {full}", "Make room for the warehouse, then load again")
    if _WORKER_GONE in text:
        return WorkerLostError(
            subject, "a Python worker of Spark was killed, probably for want of memory", _WORKER_HINT
        )
    ahead = _AHEAD.search(text)
    if ahead is not None:
        at = f"{datetime.fromtimestamp(int(ahead[1]) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if ahead[1] else "a time"
        reason = f"its newest commit is of {at}, which lies ahead of this machine's clock"
        hint = "Correct this clock; where the other machine's was wrong, wait until then or attach without it: docs/operations.md"
        return LakehouseError(subject, f"{reason}, so that Iceberg refuses to commit", hint)
    if _EXPIRED in text:
        reason = "a snapshot that it reads was expired, or main was set back over it"
        return LakehouseUnavailableError(subject, reason, "Nothing more was published; load again")
    if any(mark in text for mark in _GONE):
        reason = f"a file that the catalog names is not in the warehouse: {first_line(error)}"
        hint = "Check TIDEMARK_WAREHOUSE_URL; where files were lost or the catalog is too old: docs/operations.md"
        return LakehouseError(subject, reason, hint)
    if _NO_CREDENTIALS in text:
        return LakehouseError(subject, "credentials of the warehouse are missing or have expired", _REFUSED_HINT)
    what = None
    if any(mark in text for mark in _SHUT) and not any(mark in text for mark in _PASSING):
        return LakehouseError(
            subject, f"the catalog cannot be opened: {first_line(error)}", "Check TIDEMARK_CATALOG_URL"
        )
    if any(mark in text for mark in _PASSING):
        what = "catalog or warehouse is out of reach"
    elif is_conflict(error) or may_pass(error):
        what = "another writer was faster"
    refused = _REFUSED.search(text)
    if what is None and refused is not None:
        said = scrubbed(refused[1].strip())[:300].rstrip(".")
        return LakehouseError(
            subject, f"the warehouse refused: {said if said != 'null' else refused[0].strip()}", _REFUSED_HINT
        )
    if what is None:
        return None
    return LakehouseUnavailableError(subject, f"{what}: {first_line(error)}", "Nothing more was published; load again")


def first_line(error: Exception) -> str:
    """The line of a Java stack trace that says most."""
    lines = [line.strip() for line in str(error).splitlines() if "Exception" in line or "Error" in line]
    lines = [line for line in lines if not line.startswith(_NOT_A_CAUSE)]
    return scrubbed(lines[-1].lstrip(": ") if lines else type(error).__name__)[:300]
