"""A load decides early that it has nothing to do, and only where deciding slice by slice would say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import (
    EXCLUDED,
    UNREAD,
    BatchDay,
    DeliveryRecord,
    Exclusion,
    InputDay,
    InputState,
    SliceRecord,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.load.deliveries.plan import BatchPlan
from pipeline_assets.load.runtime import LoadRequest, Runtime, TableReport
from pipeline_assets.load.unchanged import reports_of_nothing
from pipeline_assets.tables.events import QUARANTINE, RAW_TABLES
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, DIMENSION_TABLES
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.schema import RUNS
from resources.ledger.store import Ledger
from tests.support.cases import cases

PROJECT, DAY, NOW = "10001", date(2026, 2, 2), datetime(2026, 3, 1, tzinfo=UTC)
BATCH, KEY, NEXT = BatchKey(Source.REGULAR, PROJECT, DAY), Slice(DAY, PROJECT), Slice(DAY + timedelta(days=1), PROJECT)
GRAMMAR = KeyGrammar("{prefix}_{date}_{hour}_complete")
RAW, OTHER_RAW, REFINED = RAW_TABLES[Source.REGULAR], RAW_TABLES[Source.BACKFILL], DERIVED[0]
ROWS, HEAD = Digest(3, 1, 1), 7


@dataclass
class Lake:
    """A day that a load published, and a later request for it."""

    landing: Path
    ledger: Ledger
    settings: Settings
    request: LoadRequest
    heads: dict[str, int]
    lost: dict[Slice, str]
    unsettled: set[str] = field(default_factory=set)

    @property
    def reports(self) -> list[TableReport] | None:
        lakehouse = SimpleNamespace(
            head=lambda table: self.heads.get(table.key, HEAD),
            lost_slices=lambda *_: self.lost,
            require_own=lambda *_: None,
            is_settled=lambda table: table.key not in self.unsettled,
        )
        landing = LandingStore.from_settings(self.settings)
        runtime: Any = Runtime(lakehouse, self.ledger, landing, self.settings)  # type: ignore[arg-type]
        return reports_of_nothing(runtime, self.request)

    def deliver(self, hour: int = 10, text: bytes = b"rows", batch: BatchKey = BATCH) -> str:
        key = GRAMMAR.format_delivery(batch, hour, 1)
        (self.landing / key).parent.mkdir(parents=True, exist_ok=True)
        (self.landing / key).write_bytes(text)
        return key

    def record(self, *records: SliceRecord, **changes: Any) -> None:
        self.ledger.record(Changes(slices=list(records), **changes), "run")

    def slice(self, table: str = REFINED.key, **changes: Any) -> None:
        (record,) = self.ledger.slices(table, [PROJECT], [DAY]).values()
        self.record(replace(record, **changes))

    def deliveries(self, **changes: Any) -> None:
        kept = self.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY).values()
        self.record(deliveries=[replace(one, **changes) for one in kept])

    def batch(self, **changes: Any) -> None:
        (kept,) = self.ledger.batches([PROJECT], DAY, DAY).values()
        self.record(batches=[replace(kept, **changes)])

    def change(self, **settings: Any) -> None:
        self.settings = self.settings.model_copy(update=settings)

    def ask(self, **request: Any) -> None:
        self.request = replace(self.request, **request)


@pytest.fixture
def lake(tmp_path: Path, ledger: Ledger) -> Lake:
    settings = Settings(projects=(PROJECT,), landing_url=str(tmp_path / "landing"), calendar_start=date(2026, 1, 1))
    tables = frozenset(table.key for table in (RAW, *DERIVED, *AS_OF_TABLES))
    made = Lake(tmp_path / "landing", ledger, settings, LoadRequest((DAY,), (PROJECT,), tables, "again", NOW), {}, {})
    made.deliver()
    listed = {
        one.key: one
        for one in LandingStore.from_settings(settings).list(Source.REGULAR, [PROJECT], DAY, DAY).deliveries
    }
    code = RAW.code_version(settings)
    plan = BatchPlan(BATCH, listed=listed, is_closed=True, code_version=code)
    deliveries = [
        DeliveryRecord(
            BATCH, key, one.etag, one.size_bytes, "bytes", lines=3, rows=3, quarantined=0, blank=0, error=None,
            is_accepted=True, code_version=code,
        )
        for key, one in listed.items()
    ]  # fmt: skip
    batch = plan.record(BatchVerdict.ACCEPTED, Evaluation(Check.DELIVERY_RECONCILES, True), settings)
    first = SliceRecord(RAW.key, KEY, Verdict.PUBLISHED, digest=ROWS, file_hash="files", input_state=InputState())
    head = (RAW.key, HEAD, None)
    made.record(first, deliveries=deliveries, batches=[batch], batch_days={BATCH: {DAY: BatchDay(ROWS)}}, head=head)
    made.record(head=(OTHER_RAW.key, HEAD, None))
    for table in DERIVED:
        upstream = RAW.key if table is REFINED else REFINED.key
        record = SliceRecord(
            table.key, KEY, Verdict.PUBLISHED, is_final=True, final_at=NOW.isoformat(), baseline=Baseline(), digest=ROWS,
            file_hash="files", input_state=InputState({InputDay(upstream, DAY): ROWS}), code_version=table.code_version(settings),
        )  # fmt: skip
        made.record(record, head=(table.key, HEAD, None))
    return made


def test_a_final_day_with_nothing_new_is_unchanged(lake: Lake) -> None:
    reports = lake.reports
    assert reports is not None
    assert [one.table for one in reports] == [RAW.key, *(table.key for table in DERIVED)]
    told = [(one.key, one.verdict, one.is_requested, one.is_repeat) for report in reports for one in report.outcomes]
    assert told == [(KEY, Verdict.UNCHANGED, True, False)] * len(reports)
    assert (reports[0].outcomes[0].figures["rows"], reports[1].outcomes[0].is_final) == (3, True)
    assert (reports[1].snapshot_id, reports[1].pins) == (HEAD, {RAW.key: HEAD, OTHER_RAW.key: HEAD})


def _exclusion() -> Exclusion:
    return Exclusion(BATCH, GRAMMAR.format_delivery(BATCH, 10, 1), "etag", "other bytes", "a test")


@cases(
    "change",
    {
        "a table moved": lambda lake: lake.heads.update({REFINED.key: 8}),
        "an input moved": lambda lake: lake.heads.update({OTHER_RAW.key: 8}),
        "a table lacks a column, or holds a draft": lambda lake: lake.unsettled.add(QUARANTINE.key),
        "a data file is gone": lambda lake: lake.lost.update({KEY: "a.parquet"}),
        "an object is new": lambda lake: lake.deliver(11),
        "an object was overwritten": lambda lake: lake.deliver(10, b"other"),
        "an object is gone": lambda lake: (lake.landing / lake.deliver()).unlink(),
        "an object has an odd name": lambda lake: (lake.landing / PROJECT / "notes.txt").touch(),
        "an object lies beside the days": lambda lake: lake.deliver(
            batch=BatchKey(Source.REGULAR, PROJECT, date(2020, 1, 1))
        ),
        "some hours have markers": lambda lake: (lake.landing / GRAMMAR.format_marker(BATCH, 10)).touch(),
        "an object is to be read again": lambda lake: lake.deliveries(etag=f"{UNREAD}etag"),
        "another parser refused lines": lambda lake: lake.deliveries(quarantined=1, code_version="before"),
        "a version was refused": lambda lake: lake.deliveries(is_accepted=False),
        "an operator excluded an object": lambda lake: lake.ledger.interventions.exclude([_exclusion()], "run"),
        "an operator holds a slice": lambda lake: lake.ledger.interventions.hold({REFINED.key: [KEY]}, "a test", "run"),
        "derived tables alone, and raw refused a batch": lambda lake: (
            lake.ask(tables=frozenset(table.key for table in DERIVED)), lake.batch(verdict=BatchVerdict.REFUSED),
        ),
        "an operator decided about a batch once": lambda lake: lake.batch(
            evaluations=(Evaluation(Check.DELIVERY_RECONCILES, True, figures={EXCLUDED: 1}),),
        ),
        "a recovery is under way": lambda lake: lake.ledger.recoveries.begin(PROJECT, Hour(DAY, 4)),
        "the slice is provisional": lambda lake: lake.slice(is_final=False, final_at=None),
        "a clock was ahead": lambda lake: lake.slice(final_at=(NOW + timedelta(days=1)).isoformat()),
        "the deadline lies ahead": lambda lake: lake.ask(now=datetime(2026, 2, 2, 12, tzinfo=UTC)),
        "a slice was refused": lambda lake: lake.slice(verdict=Verdict.REFUSED),
        "raw was refused": lambda lake: lake.slice(RAW.key, verdict=Verdict.REFUSED),
        "its inputs are unknown": lambda lake: lake.slice(input_state=None),
        "its code is another": lambda lake: lake.slice(code_version="before"),
        "its inputs are others": lambda lake: lake.slice(RAW.key, digest=Digest(4, 1, 1)),
        "a day near it was never built": lambda lake: lake.record(
            SliceRecord(RAW.key, NEXT, Verdict.PUBLISHED, digest=ROWS, input_state=InputState()),
        ),
        "the bounds of a batch are others": lambda lake: lake.change(max_quarantined_share=0.5),
        "nobody loaded the other day": lambda lake: lake.ask(days=(DAY, NEXT.event_date)),
        "a change is accepted": lambda lake: lake.ask(accepted={(REFINED.key, KEY): "a test"}),
        "lost files are to be read again": lambda lake: lake.ask(is_read_again=True),
        "a dimension is asked for": lambda lake: lake.ask(tables=lake.request.tables | {DIMENSION_TABLES[0].key}),
    },
)  # fmt: skip
def test_a_load_looks_closer_where(lake: Lake, change: Callable[[Lake], object]) -> None:
    change(lake)
    assert lake.reports is None


def test_a_run_that_finds_nothing_is_recorded_unless_another_publishes_meanwhile(lake: Lake) -> None:
    run = {"first_day": DAY, "last_day": DAY, "tables": [REFINED.key], "verdicts": {}}
    assert not lake.ledger.record_unchanged("again", run, {REFINED.key: HEAD + 1}, {(REFINED.key, KEY)})
    assert lake.ledger.slices(REFINED.key, [PROJECT])[KEY].verdict is Verdict.PUBLISHED
    assert lake.ledger.record_unchanged("again", run, {REFINED.key: HEAD}, {(REFINED.key, KEY)})
    with lake.ledger.engine.connect() as connection:
        ((run_id, snapshots),) = connection.execute(sa.select(RUNS.c.run_id, RUNS.c.snapshots)).all()
    assert (run_id, snapshots[REFINED.key]) == ("again", HEAD)
    assert lake.ledger.slices(REFINED.key, [PROJECT])[KEY].verdict is Verdict.UNCHANGED
    assert lake.ledger.slices(RAW.key, [PROJECT])[KEY].verdict is Verdict.PUBLISHED
    assert lake.reports is not None
