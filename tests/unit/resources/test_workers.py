"""Code for a cluster's workers, its comparison, and messages about unfit workers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from io import BytesIO
from pathlib import Path

import pytest

from pipeline_assets.domain.errors import EngineError, SettingsError, WorkerError
from pipeline_assets.domain.settings import Settings, ShippedCode
from resources.spark import worker_daemon, workers
from resources.spark.session import engine_config
from tests.support.spark_cluster import a_python

TASKS = (
    *(f"pipeline_assets.transforms.{name}" for name in ("write_objects", "refine_task", "parse", "snapshot_rows")),
    "resources.landing.store", "resources.iceberg.lake_objects", "resources.spark.tasks", "resources.spark.worker_daemon",
)  # fmt: skip
"""Modules whose functions and arguments go to workers."""
_LOST = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent "
    "failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 0): "
)


def sent(**settings: object) -> workers.Shipped:
    """Archives that a cluster is sent with these settings."""
    places = {"landing_url": "s3://bucket/a", "warehouse_url": "s3://bucket/b", "spark_master": "spark://host:7077"}
    return workers.shipped(Settings(**{**places, **settings}), {})


def modules_in(content: bytes) -> set[str]:
    return {name for name in zipfile.ZipFile(BytesIO(content)).namelist() if not name.endswith("/")}


def written(code: workers.Shipped, folder: Path) -> tuple[Path, dict[str, str]]:
    """The archive in this folder, and what a worker is told to expect."""
    assert code.name is not None
    archive = folder / code.name
    archive.write_bytes(code.content)
    return archive, worker_daemon.decoded(code.config[f"spark.executorEnv.{worker_daemon.VARIABLE}"])


def daemon(archive: Path, python: Path, expected: str | None) -> tuple[bool, str]:
    """Whether an executor's Python starts in the folder of its files, and its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
    told = {"PYTHONPATH": archive.name} | ({worker_daemon.VARIABLE: expected} if expected is not None else {})
    done = subprocess.run(
        [str(python), "-m", "resources.spark.worker_daemon", "pyspark.worker"], cwd=archive.parent, check=False,
        env={**inherited, **told}, stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip
    # Its first output is a port in four bytes; it ends with its empty input.
    return len(done.stdout) == 4, done.stderr.decode()


def test_the_same_code_is_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a name for each content; our modules and all of a user's package, nothing hidden or linked, no bytecode."""
    first, again = sent(), sent()
    assert (first.name, first.content) == (again.name, again.content)
    names = modules_in(first.content)
    assert {"resources/spark/worker_daemon.py", "pipeline_assets/transforms/write_objects.py"} <= names
    assert all(name.startswith(("pipeline_assets/", "resources/")) and name.endswith(".py") for name in names)
    package = tmp_path / "acme_tables"
    inside = ("__init__.py", "cities.py", "cities/of_france.py", "cities.csv")
    outside = ("__pycache__/cities.cpython-311.pyc", "__pycache__/left.py", "old.pyc", ".env", ".git/hooks/hook.py")
    for name in (*inside, *outside, ".venv/lib/python3.11/site-packages/six.py", "cities/.cache/one.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1\n")
    (package / "itself").symlink_to(package)
    monkeypatch.syspath_prepend(tmp_path)
    theirs = sent(extra_aggregates=("acme_tables.cities:CITIES",))
    added = modules_in(theirs.content) - names
    assert added == {f"acme_tables/{name}" for name in inside}
    # The digest covers content, whether in folders or in an archive.
    with zipfile.ZipFile(BytesIO(theirs.content)) as packed:
        expected = worker_daemon.decoded(theirs.config[f"spark.executorEnv.{worker_daemon.VARIABLE}"])[
            "code of acme_tables"
        ]
        theirs_alone = ((name, packed.read(name)) for name in packed.namelist() if name.startswith("acme_"))
        assert worker_daemon.digest_of(theirs_alone) == expected
    # Files that are not sent make no difference, where a worker has the package installed.
    (package / ".git" / "hooks" / "hook.py").write_text("x = 2\n")
    assert sent(extra_dimensions=("acme_tables.cities:CITIES",)).config == theirs.config
    (package / "cities.py").write_text("x = 2\n")
    changed = sent(extra_dimensions=("acme_tables.cities:CITIES",))
    assert len({first.name, theirs.name, changed.name}) == 3
    assert (
        changed.config[f"spark.executorEnv.{worker_daemon.VARIABLE}"]
        != theirs.config[f"spark.executorEnv.{worker_daemon.VARIABLE}"]
    )


@pytest.mark.parametrize("package_file", ["__init__.py", "of_italy.py"])
def test_folders_without_an_init_file_are_found_in_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package_file: str
) -> None:
    """Outcome: the archive's modules win over an older installed copy, and equal the driver's."""
    for where in ("driver", "worker"):
        (tmp_path / where / "acme" / "cities").mkdir(parents=True)
        for name in (package_file, "cities/of_france.py", f"only_of_{where}.py"):
            (tmp_path / where / "acme" / name).write_text(f"PLACE = '{where}'\n")
    monkeypatch.syspath_prepend(tmp_path / "driver")
    archive, expected = written(sent(extra_aggregates=("acme.cities.of_france:CITIES",)), tmp_path)
    program = (
        "from acme.cities import of_france; from resources.spark.worker_daemon import digest_of, files_of;"
        "print(of_france.PLACE, digest_of(files_of('acme')))"
    )
    # Without installed packages: Python, and a worker's variables.
    environment = {"PYTHONPATH": f"{archive}:{tmp_path / 'worker'}"}
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"driver {expected['code of acme']}\n", "")


def test_what_cannot_be_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a user's package with a compiled module. Outcome: it is named, with the setting that helps."""
    package = tmp_path / "acme_fast"
    package.mkdir()
    for name in ("__init__.py", "_fast.so"):
        (package / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    table = ("acme_fast.cities:CITIES",)
    refusal = r"package acme_fast: acme_fast/_fast.so is compiled.*TIDEMARK_SPARK_SHIP_CODE"
    with pytest.raises(SettingsError, match=refusal):
        sent(extra_aggregates=table)
    installed = sent(extra_aggregates=table, spark_ship_code=ShippedCode.INSTALLED)
    assert (installed.name, installed.content) == (None, b"")
    assert list(installed.config) == [f"spark.executorEnv.{worker_daemon.VARIABLE}"]


def test_folders_of_code_that_a_user_names_come_after() -> None:
    settings = Settings(spark_master="spark://host:7077")
    told = workers.shipped(settings, {"spark.executorEnv.PYTHONPATH": "/their/folder"})
    assert told.config["spark.executorEnv.PYTHONPATH"] == f"{told.name}:/their/folder"


def test_what_is_expected_passes_through_the_shell_that_starts_a_container() -> None:
    """YARN writes executors' variables into a bash script in quotation marks. Outcome: they arrive unchanged."""
    value = sent().config[f"spark.executorEnv.{worker_daemon.VARIABLE}"]
    script = f'set -o pipefail -e\nexport {worker_daemon.VARIABLE}="{value}"\nprintenv {worker_daemon.VARIABLE}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert worker_daemon.decoded(done.stdout.rstrip("\n")) == worker_daemon.described(("pipeline_assets", "resources"))


def test_all_packages_that_tasks_import_are_compared() -> None:
    """Outcome: packages that the tasks' modules import are compared, except those that others bring."""
    modules = (*worker_daemon.SHARED, *TASKS)
    program = f"import sys\nfor name in {modules!r}: __import__(name)\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    owners = packages_distributions()
    imported = {owner.lower() for name in done.stdout.split() for owner in owners.get(name, ())}
    brought = {"annotated-types", "certifi", "jmespath", "py4j", "pydantic-core", "pydantic_core", "python-dateutil", "pytz",
               "python-dotenv", "s3transfer", "setuptools", "six", "tidemark-pipeline", "typing-extensions",
               "typing_extensions", "typing-inspection", "urllib3", "cython", "greenlet", "tzdata"}  # fmt: skip
    assert {name.replace("_", "-") for name in imported} - brought == set(worker_daemon.PACKAGES)


def test_a_worker_that_differs_does_not_begin(tmp_path: Path) -> None:
    """Outcome: an executor's Python starts with the driver's versions, and otherwise ends with the difference."""
    archive, expected = written(sent(), tmp_path)
    assert expected == worker_daemon.described(("pipeline_assets", "resources"))
    bare, other = a_python(tmp_path / "bare"), a_python(tmp_path / "other", msgspec="0.1.0")
    assert daemon(archive, bare, worker_daemon.encoded(expected)) == (True, "")
    for python, changes, what, there in (
        (other, {}, "msgspec", "0.1.0"),
        (bare, {"code of resources": "0" * 16}, "code of resources", expected["code of resources"]),
        (bare, {"pyarrow-of-theirs": "1.0"}, "pyarrow-of-theirs", None),
        (bare, {"Python": "3.99"}, "Python", expected["Python"]),
    ):
        begins, said = daemon(archive, python, worker_daemon.encoded(expected | changes))
        assert not begins
        (found,) = worker_daemon.differences_in(said)
        assert (found.what, found.here, found.there) == (what, (expected | changes)[what], there)
        error = workers.unfit_worker(
            f"{_LOST}org.apache.spark.SparkException: \nError from python worker:\n  {said}" * 2
        )
        assert error is not None
        assert (error.subject, what in error.reason) == (f"worker {found.host}", True)
        assert "spark.executorEnv.PYTHONPATH" in error.hint
    assert daemon(archive, bare, None) == (True, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory\n'
            "\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:294)",
            """worker 10.0.0.7: its Python does not start: Cannot run program "/opt/python".""",
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while finding module "
            "specification for 'resources.spark.worker_daemon' (ModuleNotFoundError: No module named 'resources')\n",
            "worker 10.0.0.7: its Python does not start: No module named 'resources'.",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.10 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "worker 10.0.0.7: its Python does not start: different version: 3.10 than that in driver: 3.11.",
        ),
        ('java.io.IOException: Cannot run program "chmod": error=2\n\tat org.apache.hadoop.util.Shell.run', None),
        ("pyspark.errors.PythonException: ModuleNotFoundError: No module named 'acme'", None),
    ],
)
def test_what_spark_says_of_a_worker_is_told_in_one_sentence(text: str, said: str | None) -> None:
    """Scenario: failures that clusters reported. Outcome: those of a worker's Python name host and reason."""
    assert str(workers.unfit_worker(_LOST + text)).startswith(str(said))


def test_an_unfit_worker_beside_fit_ones_is_named() -> None:
    """Outcome: an unfit worker's failed attempt is an error though the job succeeds; a lost executor is none."""
    program = 'Cannot run program "/opt/python": error=2\n\tat org.apache.spark.api.python.PythonWorkerFactory'
    other = 'tidemark-worker {"host": "ip-10-0-0-7", "what": "msgspec", "here": "0.22.0", "there": "0.1.0"}\n'
    fit, lost = (
        ("0", "10.0.0.6", None),
        "ExecutorLostFailure (executor 1 exited unrelated to the running tasks)",
    )
    for failure, said in (
        (program, "worker 10.0.0.7: its Python does not start: Cannot run program"),
        (other, "worker ip-10-0-0-7: msgspec is 0.1.0 there and 0.22.0 here"),
        (lost, None),
    ):
        unfit = workers.unfit_among([fit, ("1", "10.0.0.7", failure), fit])
        assert str(unfit).startswith(str(said))
        assert unfit is None or unfit.hint.endswith("; nothing was read or written")
    # In mid-load its host is unknown.
    for failure in (program, other):
        assert "nothing was" not in str(workers.unfit_worker(failure))


def test_executors_that_are_asked_for_at_once_are_waited_for() -> None:
    """Outcome: a session waits for its cores where Spark would not, except with executors on demand."""
    ratio, patience = "spark.scheduler.minRegisteredResourcesRatio", "spark.scheduler.maxRegisteredResourcesWaitingTime"
    assert set(workers.waiting_for_workers("spark://host:7077", {})) == {ratio, patience}
    for master in ("yarn", "k8s://https://host:6443", "local[2]"):
        assert workers.waiting_for_workers(master, {}) == {}
    assert workers.waiting_for_workers("spark://host:7077", {"spark.dynamicAllocation.enabled": "true"}) == {}
    patient = engine_config(Settings(spark_master="spark://host:7077", spark_config={patience: "1m"}))
    assert (patient[ratio], patient[patience]) == ("1.0", "1m")


def test_a_worker_that_comes_later_is_named_as_well() -> None:
    """Scenario: in mid-load a worker's failure is the cause of another. Outcome: the worker is named, not the engine."""

    class Session:
        class sparkContext:  # noqa: N801 - pyspark's name
            _gateway = None

    def fail() -> None:
        told = f'{_LOST}Cannot run program "/opt/python"\n\tat org.apache.spark.api.python.PythonWorkerFactory'
        raise ValueError("while reading") from RuntimeError(told)

    said = r"worker 10\.0\.0\.7: its Python does not start: Cannot run program"
    with pytest.raises(WorkerError, match=said), workers.naming_a_dead_engine(Session, print, "1g"):  # type: ignore[arg-type]
        fail()
    assert not issubclass(WorkerError, EngineError)
