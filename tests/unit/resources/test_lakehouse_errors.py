"""The JVM's errors become ours: observed texts, cut to the line that matters."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from py4j.protocol import Py4JError

from pipeline_assets.domain.errors import LakehouseError, LakehouseUnavailableError, TidemarkError, WorkerLostError
from resources.iceberg import errors
from resources.iceberg.errors import again, failure, first_line, is_conflict, may_pass

GONE = "data/event_date=2026-02-02/a.parquet"
LOST = (f"{GONE} is gone", "--read-again")


class Told(NamedTuple):
    """Our error of a text: kind, message, and whether the operation is retried."""

    kind: type[TidemarkError]
    says: tuple[str, ...]
    is_tried_again: bool = False


RACE = Told(LakehouseUnavailableError, ("another writer was faster",), is_tried_again=True)
PASSING = Told(LakehouseUnavailableError, ("catalog or warehouse is out of reach",), is_tried_again=True)
AHEAD = "lies ahead of this machine's clock"
AHEAD_BY_FAR = f"its newest commit is of 2100-01-01 00:00:00 UTC, which {AHEAD}"


def _ours(*says: str) -> Told:
    return Told(LakehouseError, says)


def _full(frame: str) -> str:
    return (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0: java.io.IOException: "
        f"No space left on device\n\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)\n\tat {frame}\n"
        "\tat org.apache.spark.scheduler.Task.run(Task.scala:1)"
    )


TEXTS = {
    # Two processes are the first to use an empty catalog.
    "org.apache.iceberg.jdbc.UncheckedSQLException: Cannot check and eventually update SQL schema\nCaused by: "
    "org.sqlite.SQLiteException: [SQLITE_ERROR] SQL error or missing database (duplicate column name: iceberg_type)": RACE,
    'org.postgresql.util.PSQLException: ERROR: relation "iceberg_tables" already exists': RACE,
    "org.apache.iceberg.exceptions.AlreadyExistsException: Table already exists: refined.events": RACE,
    "org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked (database is locked)": Told(
        LakehouseUnavailableError,
        ("another process holds the lock of the SQLite file that TIDEMARK_CATALOG_URL names", "end that process"),
        is_tried_again=True,
    ),
    "org.postgresql.util.PSQLException: FATAL: the database system is starting up": PASSING,
    "org.apache.iceberg.exceptions.ServiceUnavailableException: Service unavailable: the catalog is restarting": PASSING,
    # A store cuts its answer in the middle of a file.
    "org.apache.iceberg.exceptions.RuntimeIOException: Failed to fetch\nCaused by: org.apache.http.ConnectionClosedException: "
    "Premature end of Content-Length delimited message body (expected: 100; received: 50)": PASSING,
    "java.net.SocketTimeoutException: Read timed out": PASSING,
    "S3Exception: Please reduce your request rate. (Service: S3, Status Code: 429, Request ID: 1)": PASSING,
    f"org.apache.iceberg.exceptions.NotFoundException: Location does not exist: s3://lake/{GONE}": _ours(*LOST),
    f"org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: file:/lake/{GONE}\n"
    "Caused by: java.io.FileNotFoundException: File not found": _ours(*LOST),
    f"java.io.FileNotFoundException: File /lake/{GONE} does not exist": _ours(*LOST),
    "java.io.IOException: No space left on device": _ours("Make room"),
    _full("org.apache.spark.storage.TimeTrackingOutputStream.write(X.java:59)"): _ours("spark.local.dir"),
    _full("org.apache.iceberg.aws.s3.S3OutputStream.write(S3OutputStream.java:1)"): _ours("s3.staging-dir"),
    _full("org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(X.java:1)"): _ours("the warehouse"),
    "org.apache.iceberg.exceptions.NotAuthorizedException: no such credential": _ours("the catalog cannot be opened"),
    "org.apache.iceberg.exceptions.ForbiddenException: no such credential": _ours("the catalog cannot be opened"),
    # As Java's S3 client puts it: the sentence without S3's code.
    "An error occurred while calling o1.loadTable.\n: software.amazon.awssdk.services.s3.model.S3Exception: "
    "The provided token has expired. (Service: S3, Status Code: 400, Request ID: 1, Extended Request ID: null)\n"
    "\tat software.amazon.awssdk.services.s3.DefaultS3Client.getObject(DefaultS3Client.java:1)":
        _ours("the warehouse refused: The provided token has expired. Nothing more was published."),
    "software.amazon.awssdk.core.exception.SdkClientException: Unable to load credentials from any of the providers in the "
    "chain AwsCredentialsProviderChain(credentialsProviders=[…]) : [ProfileCredentialsProvider(): Token is expired]":
        _ours("Check the credentials"),
    "software.amazon.awssdk.services.sts.model.ExpiredTokenException: Token expired: 1764000000 must be before 1764000001 "
    "(Service: Sts, Status Code: 400, Request ID: 1)": _ours("Check the credentials"),
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\n"
    "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)": Told(
        WorkerLostError, ("a Python worker of Spark was killed",)
    ),
    "Invalid update timestamp 1770000000000: before last snapshot log entry at 4102444800000": _ours(AHEAD_BY_FAR),
    "Invalid update timestamp 1770000000000: before the latest metadata log entry timestamp 4102444800000": _ours(AHEAD_BY_FAR),
    # A staging at this machine's earlier time follows a snapshot of main at its later one.
    "IllegalArgumentException: [BUG] Expected sorted snapshot log entries.": _ours(AHEAD),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_failure_is_named_as_ours_and_tried_again_where_it_may_pass(text: str) -> None:
    kind, says, is_tried_again = TEXTS[text]
    error = Exception(f"An error occurred while calling o1.collect\n: {text}\n\tat a.b.C")
    assert (may_pass(error), is_conflict(error)) == (is_tried_again, False)
    ours = failure("refined/events", error)
    assert isinstance(ours, kind)
    assert all(said in str(ours) for said in says), str(ours)


def test_a_lost_commit_is_a_conflict_and_what_nobody_knows_stays_as_it_is() -> None:
    assert is_conflict(Exception("org.apache.iceberg.exceptions.ValidationException: Found conflicting files"))
    error = Exception("java.lang.NullPointerException")
    assert not may_pass(error)
    assert failure("refined/events", error) is None


@pytest.mark.parametrize(("patience", "tries"), [(60.0, 7), (-1.0, 1)])
def test_what_was_tried_for_long_enough_is_not_tried_again(
    patience: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that retries for most of a minute is not asked seven times more."""
    monkeypatch.setattr(errors, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(errors, "_PATIENCE_SECONDS", patience)
    calls: list[int] = []

    def operation() -> None:
        calls.append(1)
        raise Py4JError("SlowDown")

    with pytest.raises(Py4JError):
        again(operation)
    assert len(calls) == tries


def test_of_a_trace_the_innermost_cause_is_told_and_no_frame_of_it() -> None:
    trace = """org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: file:/w/a.parquet
	Suppressed: software.amazon.awssdk.core.exception.SdkClientException: Request attempt 1 failure
Caused by: java.nio.file.NoSuchFileException: /w/a.parquet
	at java.base/sun.nio.fs.UnixException.rethrowAsIOException(UnixException.java:111)
	... 55 more"""
    assert first_line(Exception(trace)) == "Caused by: java.nio.file.NoSuchFileException: /w/a.parquet"
