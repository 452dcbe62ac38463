"""After a kill at any point the next run converges: point x table x restart (`make crash-matrix`, a part of it in CI)."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY
from pipeline_assets.drill.sandbox import Victim
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.maintenance import maintain
from pipeline_assets.orchestration.live_runs import report_dead_runs
from pipeline_assets.tables.registry import ALL_TABLES, ASSET_TABLES
from resources import failpoints
from resources.failpoints import Failpoint
from resources.landing.store import LandingStore
from resources.spark.session import configure_catalog
from tests.support.builders import PROJECT, Pipeline, an_event, events_on
from tests.support.points import OF_MOVES, OF_REBUILDS, OF_RECOVERY, OF_ROLLBACKS, OF_TABLE_BY_TABLE
from tests.support.prepared import Again, a_prepared_pipeline
from tests.support.reference import require_known
from tests.support.victim import a_victim

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(3)]
RAW, REFINED, AGGREGATE = "raw/regular_events", "refined/events", "aggregates/event_counts"
QUARANTINE_KEY = "raw/quarantine"
INSIDE = "inside_commit"
"""After the new metadata files are written, before the transaction; the database is locked meanwhile."""
RETRY, FRESH = "retry of the run", "a fresh run"
LOCAL_BYTES = {"workers": 0, "driver": int(Settings.model_fields["local_bytes"].default)}
"""Where tasks run -> the setting that makes these loads run them there."""
OF_TABLES = (
    Failpoint.AFTER_PIN,
    Failpoint.AFTER_STAGE,
    Failpoint.AFTER_AUDIT,
    Failpoint.BETWEEN_TABLES,
    Failpoint.AFTER_APPLY,
    Failpoint.BEFORE_EVENTS,
)
ALONE = (
    f"{Failpoint.DURING_LISTING}:regular/{PROJECT}",
    str(Failpoint.MID_PARSE),
    str(Failpoint.BETWEEN_CHUNKS),
    str(Failpoint.BEFORE_PUBLISH),
    INSIDE,
    str(Failpoint.IN_TRANSACTION),
    str(Failpoint.AFTER_PUBLISH),
    str(Failpoint.BEFORE_NOTICES),
)
FILES = tuple(f"{Failpoint.AFTER_FILES}:{table}" for table in (RAW, REFINED))
"""Tasks have written files that no snapshot names yet."""
QUARANTINE = tuple(f"{point}:raw/quarantine" for point in (Failpoint.AFTER_STAGE, Failpoint.AFTER_APPLY))


def _whole_matrix() -> list[tuple[str, str, str]]:
    points = [
        *ALONE,
        *FILES,
        *QUARANTINE,
        *(f"{point}:{table}" for table in (RAW, REFINED, AGGREGATE) for point in OF_TABLES),
    ]
    return [(point, restart, form) for point in points for restart in (RETRY, FRESH) for form in LOCAL_BYTES]


def _every_point_once() -> list[tuple[str, str, str]]:
    """Tables, restarts and places of tasks by turns."""
    tables, restarts, forms = (RAW, REFINED, AGGREGATE), (RETRY, FRESH), tuple(LOCAL_BYTES)
    points = [*ALONE, FILES[1], *(f"{point}:{tables[turn % 3]}" for turn, point in enumerate(OF_TABLES))]
    return [(point, restarts[turn % 2], forms[(turn + 1) // 2 % 2]) for turn, point in enumerate(points)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "restart" in metafunc.fixturenames:
        cases = _whole_matrix() if metafunc.config.getoption("--full") else _every_point_once()
        metafunc.parametrize(("point", "restart", "form"), cases)


_LEAVES_MUCH = (INSIDE, Failpoint.AFTER_STAGE, Failpoint.IN_TRANSACTION)


def _before(p: Pipeline) -> None:
    for day in DAYS[:2]:
        p.deliver(day, events_on(day, 12))
    run = p.run(DAYS[0], DAYS[1])
    assert run.success, run.failure()


def _changes(p: Pipeline) -> None:
    """A larger object, a late fact for the day before, a moved event, and a new day with a bad line."""
    moved = events_on(DAYS[1], 12)[3]
    again = {
        **moved,
        "uuid": "again",
        "event_time": f"{DAYS[2]} 11:00:00.000000",
        "server_upload_time": f"{DAYS[2]} 12:00:00.000000",
        "processed_time": f"{DAYS[2]} 12:00:01.000000",
    }
    late = an_event(
        insert_id="late",
        uuid="late",
        event_time=f"{DAYS[0]} 23:00:00.000000",
        server_upload_time=f"{DAYS[1]} 01:00:00.000000",
        event_properties={"$revenue": 7},
    )
    p.deliver(DAYS[1], [*events_on(DAYS[1], 15), late])
    p.deliver(DAYS[2], [*events_on(DAYS[2], 9), again, b"{not json"])


Story = tuple[dict[str, Any], dict[str, int], Counter[tuple[str, ...]], dict[str, set[str]]]


def _story(p: Pipeline) -> Story:
    """Digests, commits per table, changes on record, materialized partitions. Quarantine may be written twice: its rows."""
    changes = Counter(
        (record.table, str(record.key), str(record.digest_before), str(record.digest_after))
        for record in p.ledger.publications()
    )
    shown = {
        table.key: p.instance.get_materialized_partitions(dg.AssetKey(table.key.split("/"))) for table in ASSET_TABLES
    }
    history = {table: count for table, count in p.history().items() if table != QUARANTINE_KEY}
    bad = Counter((row["object_key"], row["line_number"], row["reason"]) for row in p.rows(QUARANTINE_KEY))
    return {**p.digests(), QUARANTINE_KEY: bad}, history, changes, shown


@pytest.fixture(scope="module")
def loaded_before(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Again[None]]:
    """Two published days, loaded once for all kills."""
    with a_prepared_pipeline(spark, tmp_path_factory.mktemp("crash_matrix"), _before, has_home=True) as again:
        yield again


@pytest.fixture(scope="module")
def undisturbed(loaded_before: Again[None]) -> Story:
    """The same deliveries, loaded by a run that lives."""
    with loaded_before() as (p, _):
        _changes(p)
        run = p.run(DAYS[0], DAYS[2])
        assert run.success, run.failure()
        return _story(p)


def _kill_before_the_transaction(p: Pipeline, victim: Victim) -> None:
    (metadata,) = Path(p.settings.warehouse_url).glob("aggregates/active_users/metadata")
    known = set(metadata.glob("*.metadata.json"))
    with closing(sqlite3.connect(p.settings.catalog_url.removeprefix("sqlite:///"), isolation_level=None)) as catalog:
        catalog.execute("BEGIN IMMEDIATE")
        victim.go_on()
        victim.wait_until(lambda: set(metadata.glob("*.metadata.json")) - known, "wrote no metadata")
        victim.kill()
        catalog.execute("ROLLBACK")


def _start_again(p: Pipeline, restart: str) -> None:
    """Dagster's monitor finds the dead run and starts it again; or an operator starts another run before that."""
    seeming = p.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    tags = {}
    if restart == RETRY:
        dead = report_dead_runs(p.instance, p.ledger)
        assert [one.run_id for one in dead if one.is_reported] == [run.run_id for run in seeming]
        for one in dead:
            tags = {"dagster/parent_run_id": one.run_id, "dagster/root_run_id": one.run_id, "dagster/retry_number": "1"}
    run = p.run(DAYS[0], DAYS[2], tags=tags)
    assert run.success, run.failure()
    report_dead_runs(p.instance, p.ledger)
    assert not p.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))


def test_killed_and_started_again(
    loaded_before: Again[None],
    undisturbed: Story,
    record_property: Any,
    is_full: bool,
    point: str,
    restart: str,
    form: str,
) -> None:
    """Scenario: SIGKILL at a point, once (always with --full, with JVM and workers); the load is started again.
    Outcome: digests, commits, changes and partitions equal an undisturbed run's; ledger and tables agree before it."""
    started = time.monotonic()
    name, _, table = point.partition(":")
    armed = point.replace(INSIDE, Failpoint.BEFORE_PUBLISH)
    with loaded_before() as (p, _):
        _changes(p)
        changes = {"local_bytes": LOCAL_BYTES[form]}
        if name == Failpoint.BETWEEN_CHUNKS:
            changes["days_per_run"] = 1
        with a_victim(p, DAYS[0], DAYS[2], armed, has_engine=is_full or name == INSIDE, **changes) as victim:
            assert victim.wait_until_paused().startswith(armed)
            if name == INSIDE:
                _kill_before_the_transaction(p, victim)
        _require_agreement(p)

        _start_again(p, restart)

        digests, history, changes_on_record, shown = _story(p)
        assert digests == undisturbed[0]
        assert shown == undisturbed[3]
        assert {change for change, count in changes_on_record.items() if count > 1} == set()
        if name != Failpoint.BETWEEN_CHUNKS:
            # Each chunk is a commit, and a day may pass through more states.
            assert history == undisturbed[1]
            assert changes_on_record == undisturbed[2]
        _require_chains(p)
        require_known(p)
        # Leftovers do not depend on the restart, and few points leave any.
        if name in _LEAVES_MUCH or (is_full and restart == FRESH):
            _require_nothing_left(p)
    record_property("kill", (name, table or "-", form, restart, f"{time.monotonic() - started:.0f}"))


def _require_agreement(p: Pipeline) -> None:
    """The record of every slice is its table's main, to the file."""
    for table in ASSET_TABLES:
        if table.key not in p.digests():
            continue
        head = p.lakehouse.head(table)
        assert p.ledger.head(table.key) == Head(head)
        live = {key: files.file_hash for key, files in p.lakehouse.slice_files(table, head).items()}
        recorded = p.ledger.slices(table.key, None)
        assert {key: one.file_hash for key, one in recorded.items() if one.digest != EMPTY} == live


@pytest.mark.parametrize("point", sorted(OF_TABLE_BY_TABLE))
def test_table_by_table_the_next_run_finds_what_is_not_recorded(
    pipeline: Any, tmp_path: Path, is_full: bool, point: Failpoint
) -> None:
    """Outcome: the next load records what was committed, as if the first had lived."""
    if not is_full and point is not Failpoint.AFTER_COMMIT:
        pytest.skip("in full: make crash-matrix")
    p = pipeline(ledger_url=f"sqlite:///{tmp_path}/apart.db")
    for table in (RAW, REFINED, AGGREGATE) if is_full else (REFINED,):
        p.deliver(DAYS[0], events_on(DAYS[0], 12, prefix=table), hour=len(p.ledger.publications()) % 24)

        def die(at: Failpoint, name: str, table: str = table) -> None:
            if (at, name) == (point, table):
                raise _KilledError

        failpoints.watch(die)
        try:
            with pytest.raises(_KilledError):
                p.reports(DAYS[0])
        finally:
            failpoints.watch()
        assert p.run(DAYS[0]).success
        found = [record for record in p.ledger.publications(table) if record.cause.kind is CauseKind.UNRECORDED_RUN]
        assert bool(found) == (point is not Failpoint.BEFORE_COMMIT)
        _require_chains(p)
        _require_agreement(p)
        require_known(p)


class _KilledError(Exception):
    """The process ends here."""


def _require_chains(p: Pipeline) -> None:
    """Every slice's changes on record form one chain from nothing to the published state."""
    present: dict[tuple[str, Any], str] = {}
    for record in p.ledger.publications():
        place = (record.table, record.key)
        assert str(record.digest_before) == present.get(place, str(EMPTY))
        present[place] = str(record.digest_after)
    digests = {(table, key): digest for table, found in p.digests().items() for key, digest in found.items()}
    assert {place: digest for place, digest in present.items() if not digest.startswith("0:")} == digests


def _require_nothing_left(p: Pipeline) -> None:
    """After maintenance a month later: no branch, and no data file that no snapshot knows."""
    warehouse = Path(p.settings.warehouse_url)
    old = (datetime.now(UTC) - timedelta(days=40)).timestamp()
    for path in warehouse.rglob("*"):
        os.utime(path, (old, old))
    configure_catalog(p.spark, p.settings)
    landing = LandingStore.from_settings(p.settings)
    runtime = Runtime(p.lakehouse, p.ledger, landing, p.settings)
    digests = p.digests()
    later = datetime.now(UTC) + timedelta(days=40)
    reports = list(maintain(runtime, str(uuid.uuid4()), later, lambda _: False, is_dry_run=False))
    assert len(reports) == len(ALL_TABLES)
    for table in ALL_TABLES:
        name = p.lakehouse.identifier(table)
        assert [row["name"] for row in p.spark.table(f"{name}.refs").collect()] == ["main"]
        known = {row["file_path"].removeprefix("file:") for row in p.spark.table(f"{name}.all_data_files").collect()}
        assert {str(path) for path in (warehouse / table.key).rglob("data/**/*.parquet")} == known
    assert p.digests() == digests
    require_known(p)


def test_every_point_of_the_load_path_is_in_the_matrix() -> None:
    def covered(cases: list[tuple[str, str, str]]) -> set[str]:
        return {point.partition(":")[0] for point, *_ in cases}

    expected = {
        point.value
        for point in set(Failpoint) - OF_RECOVERY - OF_MOVES - OF_REBUILDS - OF_TABLE_BY_TABLE - OF_ROLLBACKS
    } | {INSIDE}
    assert covered(_every_point_once()) == expected
    assert covered(_whole_matrix()) == expected
