"""One Spark session per test process, and a fresh pipeline per test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A busy machine makes an example slow, not wrong. In CI hypothesis sets no deadline by itself.
settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full` runs all claimed rounds of random scenarios; `--images` takes the documentation's pictures anew."""
    parser.addoption("--full", action="store_true", help="all rounds of the random scenarios (make test-full)")
    parser.addoption("--images", action="store_true", help="keep screenshots in docs/images (make images)")


SECONDS = {
    "tests/browser/test_ui.py": 180,
    "tests/scenarios/test_maintenance.py": 130,
    "tests/scenarios/test_crash_matrix.py": 130,
    "tests/scenarios/test_dimensions.py": 100,
    "tests/scenarios/test_random_histories.py": 90,
    "tests/scenarios/test_cluster.py": 90,
    "tests/scenarios/test_rebuild.py": 80,
    "tests/scenarios/test_rollback.py": 80,
    "tests/scenarios/test_lost_catalog.py": 70,
    "tests/scenarios/test_shell.py": 60,
    "tests/scenarios/test_standing.py": 60,
    "tests/scenarios/test_drill.py": 60,
    "tests/scenarios/test_image_root.py": 50,
    "tests/scenarios/test_recover_exports.py": 50,
    "tests/browser/test_labs_page.py": 50,
    "tests/scenarios/test_outside_faults.py": 50,
    "tests/scenarios/test_deployments.py": 40,
    "tests/scenarios/test_two_writers.py": 40,
    "tests/scenarios/test_bad_inputs.py": 40,
}
"""Core-seconds of the longest modules, roughly; another slow test takes about three."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker begins with its share of the slow modules, the longest first: no worker ends with a long one.

    xdist gives each worker as many consecutive tests as others; who is done takes from the end of another's, fast ones.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    slow: dict[str, list[pytest.Item]] = {}
    fast = []
    for item in items:
        if item.get_closest_marker("slow"):
            slow.setdefault(item.nodeid.partition("::")[0], []).append(item)
        else:
            fast.append(item)
    seconds = {name: SECONDS.get(name, 3 * len(tests)) for name, tests in slow.items()}
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for name in sorted(slow, key=lambda name: -seconds[name]):
        least = loads.index(min(loads))
        shares[least] += slow[name]
        loads[least] += seconds[name]
    left, items[:] = len(items), []
    for number, share in enumerate(shares):
        size = left // (workers - number)
        room = max(0, size - len(share))
        items += share + fast[:room]
        fast, left = fast[room:], left - size
    items += fast


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The crash matrix's account: each kill, and whether the next run converged."""
    kills = [
        (dict(report.user_properties)["kill"], report.outcome)
        for reports in terminalreporter.stats.values()
        for report in reports
        if "kill" in dict(getattr(report, "user_properties", ())) and report.when == "call"
    ]
    if not kills:
        return
    terminalreporter.section(f"{len(kills)} kills")
    for (point, table, form, restart, seconds), outcome in sorted(kills):
        equal = "digests, commits, history and Dagster as undisturbed" if outcome == "passed" else "DIFFERS"
        terminalreporter.write_line(f"{point:<15} {table:<24} {form:<8} {restart:<17} {equal} {seconds:>4} s")


@pytest.fixture(scope="session")
def is_full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
    # The JVM inherits them; an S3-compatible server accepts any.
    os.environ.update(
        AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1", AWS_DEFAULT_REGION="us-east-1"
    )
    # `TIDEMARK_NATIVE=off make test` runs all tests without the native library.
    for name in [name for name in os.environ if name.startswith("TIDEMARK_") and name != "TIDEMARK_NATIVE"]:
        del os.environ[name]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small local session with the lakehouse's jars."""
    from tests.support.small_spark import small_session

    warehouse = str(tmp_path_factory.mktemp("spark"))
    session = small_session("local[2]", "2g", **{"spark.sql.warehouse.dir": warehouse})
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """`pipeline(**settings)` makes a pipeline; its tasks go to Spark's workers where the test is marked so."""
    from tests.support.builders import a_pipeline

    form = {"local_bytes": 0} if request.node.get_closest_marker("workers") else {}
    with ExitStack() as stack:
        made = 0

        def make(**settings: Any) -> Any:
            nonlocal made
            made += 1
            folder = tmp_path / f"p{made}"
            folder.mkdir()
            return stack.enter_context(a_pipeline(spark, folder, **{**form, **settings}))

        yield make


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket, `tidemark-test`, on the S3-compatible server of `AWS_ENDPOINT_URL_S3`."""
    import boto3

    from tests.support.s3 import BUCKET, a_working_server

    with a_working_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        yield boto3.resource("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A private PostgreSQL cluster; tests must not stop it."""
    from tests.support.postgres import a_postgres

    with a_postgres() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Any) -> Iterator[str]:
    name = f"of_a_test_{uuid.uuid4().hex[:12]}"
    yield postgres_server.database(name)
    postgres_server.drop_database(name)
