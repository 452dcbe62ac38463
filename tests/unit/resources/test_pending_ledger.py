"""A load's pending ledger answers as if its steps were written, and writes nothing underneath."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline_assets.domain import records
from pipeline_assets.domain.changes import Baseline, Cause, CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.lateness import LatenessSketch
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from resources.ledger.changes import BatchAsRead, Changes
from resources.ledger.schema import METADATA, SCHEMA
from resources.ledger.store import Ledger, PendingLedger

RAW, REFINED = TABLES = ("raw/regular_events", "refined/events")
PROJECTS = ("10001", "10002")
DAYS = tuple(date(2026, 2, 1) + timedelta(days=number) for number in range(3))
RANGES = [(DAYS[0], DAYS[-1]), (DAYS[1], DAYS[1])]

days, projects, sources = st.sampled_from(DAYS), st.sampled_from(PROJECTS), st.sampled_from(list(Source))
digests = st.sampled_from((EMPTY, Digest(3, 1, -2), Digest(5, 7, 9)))
batch_keys = st.builds(BatchKey, sources, projects, days)
slice_keys = st.builds(Slice, days, projects)
inputs = st.dictionaries(st.builds(records.InputDay, st.just(RAW), days), digests, max_size=2)
states = st.builds(records.InputState, inputs, st.none() | st.just("x"))
sketches = st.none() | st.just(LatenessSketch({7: 8}, 0, 20, 21))
batch_days = st.builds(records.BatchDay, digests, st.none() | st.just("lineage"), sketches)
why = st.none() | st.just("why")


def a_delivery(key: BatchKey, number: int, etag: str, is_accepted: bool) -> records.DeliveryRecord:
    name = f"{key.source}-{key.project_id}-{key.arrival_date}-{number}"
    return records.DeliveryRecord(key, name, etag, 7, None, 1, 1, 0, 0, None, is_accepted)


deliveries = st.builds(a_delivery, batch_keys, st.integers(1, 2), st.sampled_from(("e1", "e2")), st.booleans())
batches = st.builds(
    records.BatchRecord, key=batch_keys, verdict=st.sampled_from([*BatchVerdict]), reason=why,
    input_state=st.none() | st.just("state"), deliveries=st.integers(0, 1), hours=st.none() | st.just((1, 2)),
)  # fmt: skip
slices = st.builds(
    records.SliceRecord, table=st.sampled_from(TABLES), key=slice_keys, verdict=st.sampled_from([*Verdict]), reason=why,
    is_final=st.booleans(), baseline=st.none() | st.just(Baseline({"rows": 3.0}, 2, {"added": 1}, "3:1:2")),
    digest=digests, file_hash=st.none() | st.sampled_from(("a", "b")), input_state=st.none() | states,
    rejection=st.none() | st.builds(records.Rejection, states, st.just("code"), st.just((DAYS[0],))),
    figures=st.just({}) | st.just({"rows": 3}),
)  # fmt: skip
publications = st.builds(
    records.PublicationRecord, table=st.sampled_from(TABLES), key=slice_keys, snapshot_id=st.integers(1, 2),
    parent_id=st.just(9), digest_before=digests, digest_after=digests, cause=st.just(Cause.of(CauseKind.DELIVERY)),
    run_id=st.just("own"), accepted_reason=st.none() | st.just("known"), pins=st.none() | st.just({RAW: 1 << 60}),
)  # fmt: skip
steps = st.builds(
    Changes, deliveries=st.lists(deliveries, max_size=3), publications=st.lists(publications, max_size=2),
    batches=st.lists(batches, max_size=2, unique_by=lambda one: one.key),
    batch_days=st.dictionaries(batch_keys, st.dictionaries(days, batch_days, max_size=2), max_size=2),
    slices=st.lists(slices, max_size=3, unique_by=lambda one: (one.table, one.key)),
)  # fmt: skip
Forgetting = tuple[list[int], list[int]]
"""Recorded deliveries that a step forgets, accepted and refused ones, by their index."""
forgettings = st.tuples(*[st.lists(st.integers(0, 5), max_size=2)] * 2)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, Ledger]]:
    folder = tmp_path_factory.mktemp("pending")
    urls = [f"sqlite:///{folder}/{name}.db" for name in ("under", "written")]
    with closing(Ledger(urls[0])) as under, closing(Ledger(urls[1])) as written:
        yield under, written


def _wipe(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        for table in METADATA.sorted_tables:
            if table is not SCHEMA:
                connection.execute(table.delete())


def _contents(ledger: Ledger) -> dict[str, list[Any]]:
    with ledger.transaction() as connection:
        return {table.name: list(connection.execute(sa.select(table)).all()) for table in METADATA.sorted_tables}


def _all_deliveries(ledger: Ledger, *, is_accepted: bool) -> list[records.DeliveryRecord]:
    found = [ledger.deliveries(of, PROJECTS, DAYS[0], DAYS[-1], is_accepted=is_accepted) for of in Source]
    return [record for known in found for _, record in sorted(known.items())]


def _as_a_load_makes_it(step: Changes, forgetting: Forgetting, ledger: Ledger) -> Changes:
    """The step as a load derives it from this ledger's answers, with its reads."""
    known = {table: ledger.slices(table, None) for table in TABLES}
    read_hash = {(table, key): record.file_hash for table, found in known.items() for key, record in found.items()}
    judged = ledger.batches(PROJECTS, DAYS[0], DAYS[-1])
    accepted, refused = (_all_deliveries(ledger, is_accepted=value) for value in (True, False))
    read = {
        key: BatchAsRead(
            {record.object_key: record.etag for record in accepted if record.batch == key},
            (judged[key].verdict.value, judged[key].input_state) if key in judged else None,
        )
        for key in (*(record.key for record in step.batches), *step.batch_days)
    }
    made = [replace(record, read_hash=read_hash.get((record.table, record.key))) for record in step.slices]
    deliveries, refusals = (
        [(known[n].batch, known[n].object_key) for n in numbers if n < len(known)]
        for known, numbers in zip((accepted, refused), forgetting, strict=True)
    )
    return replace(step, slices=made, forgotten_deliveries=deliveries, forgotten_refusals=refusals, read_batches=read)


def _answers(ledger: Ledger) -> dict[Any, Any]:
    """Every question about a load's changes, of everything and of a part."""
    asked: dict[Any, Any] = {}
    reaches = [PROJECTS, PROJECTS[:1]]
    for of, (first, last) in product(reaches, RANGES):
        asked["batches", of, first, last] = ledger.batches(of, first, last)
        for source in Source:
            for is_accepted in (True, False):
                found = ledger.deliveries(source, of, first, last, is_accepted=is_accepted)
                asked["deliveries", source, of, first, last, is_accepted] = found
            asked["batch_days", source, of, first, last] = ledger.batch_days(source, of, first, last)
    for of, source in product(reaches, (None, *Source)):
        for bound in (date.min, *DAYS, date.max):
            bounds = dict.fromkeys(of, bound)
            asked["next_arrivals", of, source, bound] = ledger.nearest_arrivals(bounds, source)
            asked["previous_arrivals", of, source, bound] = ledger.nearest_arrivals(bounds, source, is_before=True)
    for project, source, wanted in product(PROJECTS, Source, (DAYS, DAYS[1:2])):
        asked["batch_days_of", project, source, wanted] = ledger.batch_days_of(source, project, wanted)
    for table in TABLES:
        asked["first_day", table] = ledger.first_day(table)
        for of, wanted in ((None, None), (PROJECTS[:1], DAYS[::2]), (None, ())):
            asked["slices", table, of, wanted] = ledger.slices(table, of, wanted)
        for of, wanted in product(reaches, (DAYS, DAYS[1:2])):
            found = ledger.publications(table, of, wanted)
            # Number and moment are given when it is written.
            asked["publications_of", table, of, wanted] = [replace(one, number=0, published_at="") for one in found]
    return asked


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=st.lists(st.tuples(steps, st.just(([], []))), min_size=1, max_size=2),
    own=st.lists(st.tuples(steps, forgettings), min_size=1, max_size=3),
)
def test_it_answers_as_a_ledger_with_the_same_steps(
    ledgers: tuple[Ledger, Ledger], before: list[tuple[Changes, Forgetting]], own: list[tuple[Changes, Forgetting]]
) -> None:
    """Scenario: random steps of former runs on record, then of a load, each made of the present answers.
    Outcome: every answer is that of a ledger with all steps written; the one underneath is unchanged byte for byte."""
    under, written = ledgers
    for ledger in ledgers:
        _wipe(ledger)
    for step, forgetting in before:
        made = _as_a_load_makes_it(step, forgetting, under)
        for ledger in ledgers:
            ledger.record(made, "former")
    at_rest = _contents(under)
    pending = PendingLedger(under)
    for number, (step, forgetting) in enumerate(own):
        made = _as_a_load_makes_it(step, forgetting, pending)
        pending.record(made, f"own-{number}")
        written.record(made, f"own-{number}")
    expected, found = _answers(written), _answers(pending)
    assert {question: found[question] for question in found if found[question] != expected[question]} == {}
    assert _contents(under) == at_rest


def test_a_sketch_of_lateness_is_written_where_only_the_first_of_two_steps_measured_it(
    ledgers: tuple[Ledger, Ledger],
) -> None:
    """Scenario: a second step replaces a measured batch by equal, unmeasured rows. Outcome: the sketch stays."""
    _, written = ledgers
    _wipe(written)
    batch, sketch = BatchKey(Source.REGULAR, PROJECTS[0], DAYS[0]), LatenessSketch({7: 8}, 0, 20, 21)
    rows = records.BatchDay(Digest(8, 1, 1))
    pending = PendingLedger(written)
    load = [Changes(batch_days={batch: {DAYS[0]: part}}) for part in (replace(rows, lateness=sketch), rows)]
    for step in load:
        pending.record(step, "own")
    assert pending.batch_days(Source.REGULAR, PROJECTS, *DAYS[:2]) == {batch: {DAYS[0]: rows}}
    for step in load:
        written.record(step, "own")
    assert [found for *_, found in written.summaries.lateness(Source.REGULAR, PROJECTS, DAYS[0], DAYS[0])] == [sketch]


def test_it_stays_open_and_shares_the_engine(ledgers: tuple[Ledger, Ledger]) -> None:
    under, _ = ledgers
    pending = PendingLedger(under)
    engine = pending.engine
    pending.close()
    assert under.engine is engine
