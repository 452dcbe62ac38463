"""A ledger whose digests another version of the row hash measured goes on, and nothing is lost, refused or counted twice.

Contains: claims on carrying records over.
Add here: another place where digests are on record.
Does not contain: the hash itself (tests/spark/test_row_hash.py).
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchDay
from pipeline_assets.domain.slices import EMPTY, Digest, Source
from pipeline_assets.tables.registry import ASSET_TABLES, SOURCE_OF_TABLE
from pipeline_assets.transforms.digests import measured_parts
from resources.ledger.digests import Renamed
from tests.support.builders import PROJECT, Pipeline, an_event, events_on
from tests.support.reference import require_known

pytestmark = pytest.mark.slow
FIRST, SECOND = date(2026, 2, 2), date(2026, 2, 3)


def _as_a_former_version_left_it(p: Pipeline) -> None:
    """Every digest on record becomes the one that version 1 measures."""
    for table in ASSET_TABLES:
        source = SOURCE_OF_TABLE.get(table.key)
        rows = p.lakehouse.spark.table(p.lakehouse.identifier(table))
        former, present = (
            measured_parts(
                rows, table.content_columns, table.day_column, by_arrival=source is not None, version=version
            )
            for version in (1, 2)
        )
        slices = {key: Renamed(_sum(present[key]), _sum(former[key])) for key in present}
        days = {
            (BatchKey(source, key.project_id, arrival), key.event_date): (
                part.digest,
                BatchDay(former[key][arrival].digest, former[key][arrival].lineage),
            )
            for key, parts in present.items()
            for arrival, part in parts.items()
            if source is not None and arrival is not None
        }
        p.ledger.digests.rename(table.key, slices, days)
    with p.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE tidemark_heads SET row_hash_version = NULL")


def _sum(parts: Any) -> Digest:
    return sum((part.digest for part in parts.values()), EMPTY)


def _versions(p: Pipeline) -> set[int]:
    digests = [r.digest for table in ASSET_TABLES for r in p.ledger.slices(table.key, None).values()]
    for source in Source:
        for days in p.ledger.batch_days(source, [PROJECT], FIRST, SECOND).values():
            digests += [part.digest for part in days.values()]
    return {digest.version for digest in digests if digest != EMPTY}


def test_a_ledger_of_another_version_is_carried_over(pipeline: Any) -> None:
    """Scenario: two loaded days, one with a duplicate, on record as version 1 left them; then a late file for the first, while
    one record names content that no version finds. Outcome: only what the file touches is published, nothing is lost."""
    p = pipeline(dedupe_window_days=1)
    twice = an_event(insert_id="twice", event_properties={"$revenue": 3})
    p.deliver(FIRST, [*events_on(FIRST, 5), twice, {**twice, "uuid": "sent again"}])
    p.deliver(SECOND, events_on(SECOND, 4))
    assert p.load(FIRST, SECOND).success
    undisturbed, told = p.digests(), len(p.ledger.publications())
    _as_a_former_version_left_it(p)
    assert _versions(p) == {1}

    history = p.history()
    assert p.load(FIRST, SECOND).success
    assert (p.digests(), p.history()) == (undisturbed, history)
    assert len(p.ledger.publications()) == told
    assert _versions(p) == {2}
    refined = p.ledger.publications("refined/events")
    assert {str(record.digest_after) for record in refined} == set(undisturbed["refined/events"].values())
    require_known(p)

    _as_a_former_version_left_it(p)
    with p.ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE tidemark_slices SET digest = '4:1:2' WHERE table_name = 'refined/events' AND event_date = ?",
            (str(SECOND),),
        )
    p.deliver(FIRST, events_on(FIRST, 2, prefix="late"), hour=11)
    assert p.load(FIRST, FIRST + timedelta(days=1)).success
    assert (p.count("refined/events", FIRST), p.count("refined/events", SECOND)) == (8, 4)
    found = p.ledger.publications()[told:]
    built = {
        (table.key, FIRST)
        for table in ASSET_TABLES
        if table.key not in ("raw/backfill_events", "aggregates/active_users")
    }
    assert {(r.table, r.key.event_date) for r in found if r.cause.kind is not CauseKind.FOREIGN} == built
    assert [(r.table, r.key.event_date) for r in found if r.cause.kind is CauseKind.FOREIGN] == [
        ("refined/events", SECOND)
    ]
    assert _versions(p) == {2}
    require_known(p)
