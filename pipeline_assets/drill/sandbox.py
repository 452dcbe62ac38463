"""The scratch deployment of a drill, under temporary names, and its paused or killed processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import sqlalchemy as sa
from dagster_aws.s3 import S3Resource
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateTable

from pipeline_assets.domain.errors import LedgerError, UsageError
from pipeline_assets.domain.machine import SESSION, living
from pipeline_assets.domain.masking import masked
from pipeline_assets.domain.places import is_rest_catalog, local_path
from pipeline_assets.domain.settings import ENV_PREFIX, Settings
from pipeline_assets.inspection.scratch import PARTS, drill_settings, on_server, scratch_name
from resources.failpoints import SIGNAL_FILE_VARIABLE, VARIABLE
from resources.iceberg.slice_changes import schema_of
from resources.landing.bucket import Bucket
from resources.landing.folder import Folder
from resources.spark.session import configure_catalog

if TYPE_CHECKING:
    from obstore.store import LocalStore, S3Store
    from pyspark.sql import SparkSession


_POLL_SECONDS = 0.05
_LONGEST_SECONDS = 600
_LONGEST_COMMAND_SECONDS = 300
_LOG_END = 2000


class VictimError(Exception):
    """The process failed; the message has the end of its output."""


class Victim:
    """A running command in a session of its own."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> None:
        """Start the command, which will pause at `point`, with its output in `victim.log` in the folder."""
        self._signal_file = folder / "paused"
        self._signal_file.unlink(missing_ok=True)
        self._log = folder / "victim.log"
        armed = {**environment, VARIABLE: point, SIGNAL_FILE_VARIABLE: str(self._signal_file)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, env=armed, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> str:
        """Its output so far."""
        return self._log.read_text("utf-8", "replace")

    def wait_until_paused(self) -> str:
        """Wait for the pause and return its point; raises VictimError if the process ends before, or takes too long."""
        self.wait_until(lambda: self._signal_file.exists() and self._signal_file.read_text("utf-8"), "did not pause")
        return self._signal_file.read_text("utf-8")

    def go_on(self) -> None:
        """Let it continue from its pause."""
        self._signal_file.unlink()

    def wait_until_it_ends(self) -> int:
        """Wait for its exit code; raises VictimError if it does not end in time."""
        try:
            return self._process.wait(_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise VictimError(f"the process did not end:\n{self.log[-_LOG_END:]}") from None

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until `is_so` holds; raises VictimError if the process ends before, or takes too long."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not is_so():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise VictimError(f"the process {what}:\n{self.log[-_LOG_END:]}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL to every process of its session; returns when all are gone."""
        kill_session(self._process)


@contextmanager
def a_victim(words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> Iterator[Victim]:
    """A victim that is killed at the end of the block."""
    victim = Victim(words, environment, point, folder)
    try:
        yield victim
    finally:
        victim.kill()


def kill_at(words: Sequence[str], environment: Mapping[str, str], point: str, folder: Path) -> None:
    """Start a command and kill it at `point`; raises VictimError if it does not pause there."""
    with a_victim([*words, "--verbose"], environment, point, folder) as victim:
        victim.wait_until_paused()


def failure(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Run a command; returns the end of its output if it failed."""
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=_LONGEST_COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise VictimError(str(error)) from None
    return done.stderr[-500:] if done.returncode else None


def tidemark(*words: str) -> list[str]:
    """A command of this installation."""
    return [str(Path(sys.executable).with_name("tidemark")), *words]


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to every process of the session that `leader` began; returns when all are gone."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while members := living(SESSION, leader.pid):
        if time.monotonic() > deadline:
            raise VictimError(f"processes survived SIGKILL: {members}")
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leader.poll()
        time.sleep(_POLL_SECONDS)
    leader.wait()


_FARTHEST_FACT = timedelta(days=120)


@dataclass(frozen=True)
class Scratch:
    """The scratch deployment of a drill."""

    settings: Settings
    """Of the disturbed loads."""
    calm: Settings
    """Of undisturbed loads of the same deliveries."""
    home: Path
    store: LocalStore | S3Store
    """Holds landing and both warehouses."""

    def deliver(self, key: str, body: bytes) -> None:
        """Put an object into the drill's landing."""
        obstore.put(self.store, f"landing/{key}", body)

    def environment(self, **changes: str) -> dict[str, str]:
        """The environment of a process of the drill; `changes` are further variables."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        return {**inherited, **as_environment(self.settings), "DAGSTER_HOME": str(self.home), **changes}


def as_environment(settings: Settings) -> dict[str, str]:
    """The environment variables that give a process these settings."""
    # A process of this machine derives the same values; explicit ones would change the parser's version.
    derived = {name for name in Settings.model_fields if settings.is_of_machine(name)}
    values = settings.model_dump(mode="json", exclude_none=True, exclude=derived)
    texts = {name: ",".join(map(str, of)) if isinstance(of, list) else of for name, of in values.items()}
    return {f"{ENV_PREFIX}{name.upper()}": of if isinstance(of, str) else json.dumps(of) for name, of in texts.items()}


def require_catalog_of_its_own(settings: Settings) -> None:
    """Raise UsageError for a REST catalog: it ignores catalog names, so the drill would use the deployment's tables."""
    if is_rest_catalog(settings.catalog_url):
        reason = "is a REST catalog, in which a drill's tables would be those of the deployment"
        hint = "Drill with another catalog: TIDEMARK_CATALOG_URL=sqlite:////tmp/drill.db"
        raise UsageError("catalog_url", reason, hint)


@contextmanager
def scratch(
    spark: SparkSession, settings: Settings, project: str, first_day: date, log: Callable[[str], None] = print
) -> Iterator[Scratch]:
    """The scratch deployment of a drill, removed at the end, also where one removal fails.

    Raises LedgerError where the database does not allow it to create a schema, UsageError for a REST catalog.
    """
    require_catalog_of_its_own(settings)
    with (
        scratch_name(spark, settings, "drill", log) as name,
        tempfile.TemporaryDirectory(prefix=f"tidemark-{name}-") as home,
        ExitStack() as stack,
    ):
        folder, before = Path(home), os.environ.get("DAGSTER_HOME")
        stack.callback(os.environ.update, {} if before is None else {"DAGSTER_HOME": before})
        stack.callback(os.environ.pop, "DAGSTER_HOME")
        os.environ["DAGSTER_HOME"] = home
        changes = {"projects": (project,), "calendar_start": first_day - _FARTHEST_FACT, "notify_urls": ()}
        # Sample data has bad lines on purpose.
        changes["max_quarantined_share"] = 1.0
        disturbed, calm = (drill_settings(settings, name, part, **changes) for part in PARTS)
        # A separate instance: the deployment's dagster.yaml may name a server that holds real runs.
        instance = {"storage": {"sqlite": {"base_dir": home}}, "telemetry": {"enabled": False}}
        (folder / "dagster.yaml").write_text(json.dumps(instance), "utf-8")
        store = _place(f"{settings.warehouse_url.rstrip('/')}/_{name}").open()
        for own in (disturbed, calm):
            _make_databases(settings, own)
            configure_catalog(spark, own)
        yield Scratch(disturbed, calm, folder, store)


def _place(url: str) -> Folder | Bucket:
    folder = local_path(url)
    if folder is None:
        return Bucket.from_url(url, S3Resource())
    (folder / "landing").mkdir(parents=True)
    return Folder(folder)


def _make_databases(settings: Settings, own: Settings) -> None:
    """Create the drill's schema on a server, with empty catalog tables: Iceberg creates none if another schema has them."""
    if not own.ledger_database_url.startswith("sqlite"):
        try:
            on_server(own, f"CREATE SCHEMA {own.catalog_name}")
        except sa.exc.SQLAlchemyError as error:
            reason = f"does not let the drill create a schema ({getattr(error, 'orig', error)})"
            hint = "GRANT CREATE ON DATABASE to this role"
            raise LedgerError(masked(own.ledger_database_url), reason, hint) from error
    if not own.catalog_url.startswith("sqlite") and own.catalog_url != settings.catalog_url:
        url = make_url(own.catalog_url)
        for table in SqlCatalogBaseTable.metadata.sorted_tables:
            on_server(own, str(CreateTable(table.to_metadata(sa.MetaData(), schema=schema_of(url)))))
