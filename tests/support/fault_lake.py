"""A small deployment for faults of the outside world: a bucket and PostgreSQL, each behind a proxy."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import boto3
import sqlalchemy as sa
from pyiceberg.table import StaticTable

from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.drill.sandbox import Victim, a_victim, as_environment
from pipeline_assets.tables.registry import ALL_TABLES
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.faulty_proxy import Faults, a_faulty_proxy
from tests.support.faulty_wire import Wire, a_faulty_wire
from tests.support.hands import Hand
from tests.support.postgres import Server, a_postgres
from tests.support.s3 import BUCKET, a_working_server
from tests.support.small_spark import SMALL

FIRST, SECOND = date(2026, 2, 2), date(2026, 2, 3)
"""When a fault comes, only a late part of the first is new, and all of the second."""
_LARGE_EVENTS = 8000
_WAREHOUSE_MEGABYTES, _SPARK_KILOBYTES = 256, 64
_SPARE_MEGABYTES = 2
"""Free space of a nearly full warehouse disk."""
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
_IMPATIENT = {"spark.sql.catalog.lake.s3.retry.num-retries": "3", "spark.sql.catalog.lake.s3.retry.min-wait-ms": "200"}
"""Java's S3 client would retry each request for most of a minute."""
_NO_FAILURE = re.compile(r"\d\d:\d\d:\d\d |day  |\d{4}-\d\d-\d\d  |  details: ")
"""Lines of progress, of the table of days, and of the log's place."""
_FIX = "  fix: "
_TRIED_AGAIN = "SELECT count(*) FROM event_logs WHERE dagster_event_type = 'STEP_RESTARTED'"
_TIME = re.compile(rb'("(?:timestamp-ms|last-updated-ms)"\s*:\s*)(\d+)')


class Story(StrEnum):
    """Landing's content when a fault comes, and the place of the tables."""

    SMALL = auto()
    LARGE = auto()
    """Files that take several requests to write."""
    FOLDER = auto()
    """The same, on a disk of its own instead of the bucket."""


@dataclass(frozen=True)
class Loaded:
    code: int
    said: tuple[str, ...]
    """Its output without progress and the table of days."""
    tried_again: int
    """How often the whole load restarted within the run."""


@dataclass(frozen=True)
class State:
    """The deployment's content, to be restored."""

    story: Story
    database: str
    objects: Mapping[str, bytes]
    files: Path | None


@dataclass
class Lake:
    folder: Path
    bucket: Any
    s3_url: str
    proxy_url: str
    faults: Faults
    server: Server
    wire: Wire
    warehouse: Path | None = None
    """The tables' folder, where they are not in the bucket."""
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables of the following loads."""
    spark: dict[str, str] = field(default_factory=dict)
    """Further Spark configuration of the following loads."""
    is_by_wire: bool = False
    """Whether loads reach PostgreSQL through the proxy, which a stopped server does not need."""
    unmet: Callable[[], list[str]] = list
    """Requests that were to fail and were never made."""
    _story: Story | None = None
    _calm: Hand | None = None
    _timely: dict[str, bytes] = field(default_factory=dict)
    """Metadata files as of a right clock."""
    _mounted: list[Path] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "dagster_home"

    def begin(self, story: Story) -> State:
        """Load a day, then put new deliveries that no load has seen."""
        self._empty(story)
        self.server.database("lake")
        self._deliver(FIRST, 10, 1)
        done = self.load_calmly(FIRST, FIRST)
        if done.code:
            raise AssertionError(f"the first load failed: {done.said}")
        self._deliver(FIRST, 11, 1)
        for shard in range(4):
            self._deliver(SECOND, 10, shard, is_large=story is not Story.SMALL)
        name = f"kept_{story.value}"
        self.server.copy_database("lake", name)
        objects = {item.key: item.get()["Body"].read() for item in self.bucket.objects.all()}
        files = None
        if self.warehouse is not None:
            files = self.folder / name
            shutil.copytree(self.warehouse, files)
        return State(story, name, objects, files)

    def restore(self, state: State) -> None:
        self._empty(state.story)
        self.server.copy_database(state.database, "lake")
        for key, body in state.objects.items():
            self.bucket.put_object(Key=key, Body=body)
        if self.warehouse is not None and state.files is not None:
            shutil.copytree(state.files, self.warehouse, dirs_exist_ok=True)

    def heal(self) -> int:
        """Ends all faults; returns how many requests and connections failed."""
        self.environment.clear()
        self.spark.clear()
        self.is_by_wire = False
        self.unmet = list
        if self.warehouse is not None:
            _mount(self.warehouse, f"remount,size={_WAREHOUSE_MEGABYTES}m")
        self.server.start_again()
        for key, body in self._timely.items():
            self.bucket.put_object(Key=key, Body=body)
        self._timely.clear()
        return self.faults.end() + self.wire.end()

    def set_clock_back(self) -> None:
        """Set it back by an hour for Iceberg, until `heal`: all tables' history lies an hour ahead."""
        for item in list(self.bucket.objects.all()):
            if item.key.endswith(".metadata.json"):
                body = self._timely[item.key] = item.get()["Body"].read()
                self.bucket.put_object(Key=item.key, Body=_TIME.sub(_an_hour_later, body))

    def small_disk(self) -> Path:
        """A disk of so few kilobytes."""
        folder = self.folder / "small_disk"
        if not folder.is_dir():
            folder.mkdir()
            _mount(folder, f"size={_SPARK_KILOBYTES}k")
            self._mounted.append(folder)
        return folder

    def fill_warehouse(self) -> None:
        assert self.warehouse is not None
        used = shutil.disk_usage(self.warehouse).used // 1024**2
        _mount(self.warehouse, f"remount,size={used + _SPARE_MEGABYTES}m")

    def close(self) -> None:
        self._end_calm()
        for folder in self._mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        self._mounted.clear()

    def _end_calm(self) -> None:
        if self._calm is not None:
            self._calm.close()
            self._calm = None

    def _empty(self, story: Story) -> None:
        self.heal()
        if story is not self._story:
            # Its settings are those of the other story's tables.
            self._end_calm()
            self._story = story
        self.server.drop_database("lake")
        for item in self.bucket.objects.all():
            item.delete()
        self.warehouse = None
        if story is Story.FOLDER:
            self.warehouse = self.folder / "warehouse"
            if not self.warehouse.is_dir():
                self.warehouse.mkdir()
                _mount(self.warehouse, f"size={_WAREHOUSE_MEGABYTES}m")
                self._mounted.append(self.warehouse)
            for entry in self.warehouse.iterdir():
                shutil.rmtree(entry)

    def _deliver(self, day: date, hour: int, shard: int, *, is_large: bool = False) -> None:
        events = events_on(day, _LARGE_EVENTS // 4 if is_large else 25, prefix=f"h{hour}s{shard}")
        if is_large:
            # Even compressed, a file takes several requests to write.
            noise = random.Random(shard)
            events = [{**event, "user_properties": {"noise": noise.randbytes(6000).hex()}} for event in events]
        key = f"exports/{PROJECT}/{PROJECT}_{day}_{hour}#{shard}.json.gz"
        self.bucket.put_object(Key=key, Body=a_body(events))

    @contextmanager
    def loading(self, first: date, last: date, point: str = "") -> Iterator[Victim]:
        """`tidemark load` in its own process; it pauses at `point`, if given."""
        # A home for each load: Dagster's counts are then of this load.
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        words = [str(Path(sys.executable).parent / "tidemark"), *words_of_load(first, last)]
        with a_victim(words, self._variables(self.home), point, self.home) as victim:
            yield victim

    def load_calmly(self, first: date = FIRST, last: date = SECOND) -> Loaded:
        """A load without faults in a process that stays, because starting one takes most of the time."""
        if self._calm is None:
            home = self.folder / "calm_home"
            home.mkdir(exist_ok=True)
            self._calm = Hand("tests.support.commands", environment=self._variables(home))
        start = self._calm.place()
        answer = self._calm.ask(words_of_load(first, last))
        return Loaded(answer["code"], said_in(self._calm.said(start)) + said_in(answer["stderr"]), 0)

    def ended(self, victim: Victim) -> Loaded:
        code = victim.wait_until_it_ends()
        return Loaded(code, said_in(victim.log), tried_again(self.home))

    def _variables(self, home: Path) -> dict[str, str]:
        settings = Settings(
            landing_url=f"s3://{BUCKET}/exports", projects=(PROJECT,), calendar_start=date(2026, 1, 1),
            warehouse_url=f"s3://{BUCKET}/warehouse" if self.warehouse is None else str(self.warehouse),
            catalog_url=self._database_url(self.wire.port if self.is_by_wire else self.server.port),
            spark_master="local[2]", spark_driver_memory="1g", spark_config=SMALL | _IMPATIENT | self.spark,
            # Faults strike Spark's workers too.
            local_bytes=0,
        )  # fmt: skip
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMARK_", "AWS_"))}
        told = {
            **_KEYS, "AWS_ENDPOINT_URL_S3": self.proxy_url, "NO_PROXY": "127.0.0.1,localhost", "DAGSTER_HOME": str(home),
            "DAGSTER_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(PROJECT_ROOT),
        }  # fmt: skip
        return {**inherited, **as_environment(settings), **told, **self.environment}

    def _database_url(self, port: int) -> str:
        return self.server.url.replace(f":{self.server.port}/postgres", f":{port}/lake")

    def digests(self) -> dict[str, str]:
        return digests(self._database_url(self.server.port), self.s3_url)


def _an_hour_later(time: re.Match[bytes]) -> bytes:
    return time[1] + str(int(time[2]) + 3_600_000).encode()


def _mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)


def words_of_load(first: date, last: date) -> list[str]:
    return ["load", "--source", "regular", "--from", str(first), "--to", str(last)]


def said_in(log: str) -> tuple[str, ...]:
    """Lines of failures; the next line's remedy belongs to the sentence."""
    said: list[str] = []
    for line in log.splitlines():
        if said and line.startswith(_FIX):
            said[-1] = f"{said[-1]}. {line.removeprefix(_FIX)}"
        elif line.strip() and not _NO_FAILURE.match(line):
            said.append(line.rstrip())
    return tuple(said)


def tried_again(home: Path) -> int:
    """How often the runs in this Dagster home restarted their load."""
    count = 0
    for path in home.glob("history/runs/*.db"):
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):
            count += connection.execute(_TRIED_AGAIN).fetchone()[0]
    return count


def digests(database_url: str, s3_url: str) -> dict[str, str]:
    """Table and slice -> digest of its rows, by PyIceberg and the catalog's pointers; and the ledger's digests."""
    engine = sa.create_engine(database_url.replace("postgresql:", "postgresql+psycopg2:"))
    with engine.connect() as connection:
        pointers, recorded = (
            connection.execute(sa.text(f"SELECT {columns}")).all()
            for columns in (
                "table_namespace || '/' || table_name, metadata_location FROM iceberg_tables",
                "table_name, event_date, project_id, digest FROM tidemark_slices",
            )
        )
    engine.dispose()
    columns = {table.key: [column.name for column in table.columns] for table in ALL_TABLES}
    found = {
        f"{name} {place}": digest
        for name, location in pointers
        if name in columns
        for place, digest in _live(location, columns[name], s3_url).items()
    }
    return found | {f"ledger {name} {day} {project}": digest for name, day, project, digest in recorded}


def _live(location: str, columns: Sequence[str], s3_url: str) -> dict[str, str]:
    keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test", "s3.region": "us-east-1"}
    table = StaticTable.from_metadata(location, {"s3.endpoint": s3_url, **keys})
    rows: dict[str, list[str]] = {}
    for row in table.scan().to_arrow().to_pylist():
        place = f"{row.get('event_date') or row.get('_arrival_date')} {row['project_id']}"
        rows.setdefault(place, []).append(repr([row.get(name) for name in columns]))
    return {place: f"{len(of)} rows {_hash(of)}" for place, of in rows.items()}


def _hash(rows: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()[:16]


@contextmanager
def a_lake(folder: Path) -> Iterator[Lake]:
    with ExitStack() as stack:
        s3 = stack.enter_context(a_working_server())
        server = stack.enter_context(a_postgres())
        faults = Faults()
        proxy = stack.enter_context(a_faulty_proxy(s3, faults))
        wire = stack.enter_context(a_faulty_wire(server.port))
        bucket = boto3.resource(
            "s3", endpoint_url=s3, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        ).create_bucket(Bucket=BUCKET)
        lake = Lake(folder, bucket, s3, proxy, faults, server, wire)
        stack.callback(lake.close)
        yield lake
