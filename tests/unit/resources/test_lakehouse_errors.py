"""What the JVM says is read as ours: texts as they were seen, cut to the line that matters."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from pipeline_assets.domain.errors import LakehouseError, LakehouseUnavailableError, TransientError, WorkerLostError
from resources.iceberg import errors
from resources.iceberg.errors import again, failure, first_line, is_conflict, may_pass

RACES = (
    # Two processes are the first to use an empty catalog; seen twice among rounds of three writers.
    "org.apache.iceberg.jdbc.UncheckedSQLException: Cannot check and eventually update SQL schema\n"
    "Caused by: org.sqlite.SQLiteException: [SQLITE_ERROR] SQL error or missing database (duplicate column name: iceberg_type)",
    'org.postgresql.util.PSQLException: ERROR: relation "iceberg_tables" already exists',
    "org.apache.iceberg.exceptions.AlreadyExistsException: Table already exists: refined.events",
)
PASSING = (
    "org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked (database is locked)",
    "org.postgresql.util.PSQLException: FATAL: the database system is starting up",
    "org.apache.iceberg.exceptions.ServiceUnavailableException: Service unavailable: the catalog is restarting",
    # A store that cuts its answer in the middle of a file.
    "org.apache.iceberg.exceptions.RuntimeIOException: Failed to fetch\nCaused by: org.apache.http.ConnectionClosedException: "
    "Premature end of Content-Length delimited message body (expected: 100; received: 50)",
    "java.net.SocketTimeoutException: Read timed out",
)


@pytest.mark.parametrize("text", [*RACES, *PASSING])
def test_what_may_pass_is_tried_again_and_then_named(text: str) -> None:
    error = Exception(text)
    assert may_pass(error)
    assert not is_conflict(error)
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseUnavailableError)
    assert ("another writer was faster" in str(ours)) == (text in RACES)


def test_a_catalog_file_that_another_process_locks_is_told_as_that() -> None:
    told = str(failure("refined/events", Exception(PASSING[0])))
    assert "another process holds the lock of the SQLite file that TIDEMARK_CATALOG_URL names" in told
    assert "end that process" in told


def test_a_lost_commit_is_a_conflict() -> None:
    assert is_conflict(Exception("org.apache.iceberg.exceptions.ValidationException: Found conflicting files"))


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.iceberg.exceptions.NotFoundException: Location does not exist: s3://lake/data/event_date=2026-02-02/a.parquet",
        "org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: "
        "file:/lake/data/event_date=2026-02-02/a.parquet\nCaused by: java.io.FileNotFoundException: File not found",
        "java.io.FileNotFoundException: File /lake/data/event_date=2026-02-02/a.parquet does not exist",
    ],
)
def test_a_data_file_that_is_gone_is_named_with_the_command_that_brings_it_back(text: str) -> None:
    ours = failure("refined/events", Exception(f"An error occurred while calling o1.collect\n: {text}\n\tat a.b.C"))
    assert isinstance(ours, LakehouseError)
    assert "data/event_date=2026-02-02/a.parquet is gone" in str(ours)
    assert "--read-again" in str(ours)


def test_a_full_disk_is_not_tried_again() -> None:
    error = Exception("java.io.IOException: No space left on device")
    assert not may_pass(error)
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseError)
    assert "Make room" in str(ours)


@pytest.mark.parametrize("kind", ["NotAuthorized", "Forbidden"])
def test_a_rest_catalog_that_refuses_us_is_not_asked_again(kind: str) -> None:
    error = Exception(f"org.apache.iceberg.exceptions.{kind}Exception: no such credential")
    assert not may_pass(error)
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseError)
    assert "the catalog cannot be opened" in str(ours)


@pytest.mark.parametrize(
    ("frame", "hint"),
    [
        (
            "org.apache.spark.storage.TimeTrackingOutputStream.write(TimeTrackingOutputStream.java:59)",
            "spark.local.dir",
        ),
        (
            "org.apache.iceberg.aws.s3.S3OutputStream.write(S3OutputStream.java:1)",
            "s3.staging-dir",
        ),
        (
            "org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java:1)",
            "the warehouse",
        ),
    ],
)
def test_a_full_disk_is_told_by_who_writes_to_it(frame: str, hint: str) -> None:
    error = Exception(
        "org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0: java.io.IOException: "
        f"No space left on device\n\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)\n\tat {frame}\n"
        "\tat org.apache.spark.scheduler.Task.run(Task.scala:1)"
    )
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseError)
    assert hint in str(ours)


def test_a_store_that_refuses_is_not_tried_again() -> None:
    """As Java's client of S3 puts it: without S3's code, which its sentence stands for."""
    error = Exception(
        "An error occurred while calling o1.loadTable.\n: software.amazon.awssdk.services.s3.model.S3Exception: "
        "The provided token has expired. (Service: S3, Status Code: 400, Request ID: 1, Extended Request ID: null)\n"
        "\tat software.amazon.awssdk.services.s3.DefaultS3Client.getObject(DefaultS3Client.java:1)"
    )
    assert not may_pass(error)
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseError)
    assert str(ours).startswith(
        "refined/events: the warehouse refused: The provided token has expired. Nothing more was published."
    )


@pytest.mark.parametrize(
    "text",
    [
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to load credentials from any of the providers in the "
        "chain AwsCredentialsProviderChain(credentialsProviders=[…]) : [ProfileCredentialsProvider(): Token is expired]",
        "software.amazon.awssdk.services.sts.model.ExpiredTokenException: Token expired: 1764000000 must be before 1764000001 "
        "(Service: Sts, Status Code: 400, Request ID: 1)",
    ],
)
def test_credentials_that_ended_are_not_tried_again(text: str) -> None:
    error = Exception(text)
    assert not may_pass(error)
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseError)
    assert "Check the credentials" in str(ours)


def test_a_store_that_asks_for_patience_is_tried_again() -> None:
    error = Exception("S3Exception: Please reduce your request rate. (Service: S3, Status Code: 429, Request ID: 1)")
    assert may_pass(error)
    assert isinstance(failure("refined/events", error), LakehouseUnavailableError)


@pytest.mark.parametrize(("patience", "tries"), [(60.0, 7), (-1.0, 1)])
def test_what_was_tried_for_long_enough_is_not_tried_again(
    patience: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that tries for most of a minute by itself is not asked seven times more."""
    monkeypatch.setattr(errors, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(errors, "_PATIENCE_SECONDS", patience)
    calls: list[int] = []

    def operation() -> None:
        calls.append(1)
        raise Py4JError("SlowDown")

    with pytest.raises(Py4JError):
        again(operation)
    assert len(calls) == tries


def test_a_killed_python_worker_is_named_and_tried_again() -> None:
    error = Exception(
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    )
    ours = failure("raw/regular_events", error)
    assert isinstance(ours, WorkerLostError)
    assert isinstance(ours, TransientError)
    assert "a Python worker of Spark was killed" in str(ours)


def test_what_nobody_knows_stays_as_it_is() -> None:
    error = Exception("java.lang.NullPointerException")
    assert not may_pass(error)
    assert failure("refined/events", error) is None


@pytest.mark.parametrize("entry", ["last snapshot log entry at", "the latest metadata log entry timestamp"])
def test_a_commit_of_a_clock_that_was_ahead_is_named_and_not_tried_again(entry: str) -> None:
    error = Exception(
        f"java.lang.IllegalArgumentException: Invalid update timestamp 1770000000000: before {entry} 4102444800000"
    )
    assert not may_pass(error)
    assert not is_conflict(error)
    ours = failure("refined/events", error)
    assert isinstance(ours, LakehouseError)
    assert "its newest commit is of 2100-01-01 00:00:00 UTC, which lies ahead of this machine's clock" in str(ours)


def test_a_clock_that_was_set_back_during_a_load_is_named() -> None:
    """What is staged on this machine's earlier time follows a snapshot of main of its later one."""
    ours = failure("refined/events", Exception("IllegalArgumentException: [BUG] Expected sorted snapshot log entries."))
    assert isinstance(ours, LakehouseError)
    assert "lies ahead of this machine's clock" in str(ours)


def test_of_a_trace_the_innermost_cause_is_told_and_no_frame_of_it() -> None:
    trace = """org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: file:/w/a.parquet
	Suppressed: software.amazon.awssdk.core.exception.SdkClientException: Request attempt 1 failure
Caused by: java.nio.file.NoSuchFileException: /w/a.parquet
	at java.base/sun.nio.fs.UnixException.rethrowAsIOException(UnixException.java:111)
	... 55 more"""
    assert first_line(Exception(trace)) == "Caused by: java.nio.file.NoSuchFileException: /w/a.parquet"
