"""The tables depend on what landing holds in the end, never on the order, the runs or the sources by which it came."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.slices import Digest, Slice, Source
from pipeline_assets.tables.registry import ALL_TABLES
from pipeline_assets.transforms.digests import digest_of, digests
from tests.support.builders import PROJECT, Pipeline, a_pipeline, an_event

pytestmark = pytest.mark.slow
DAYS = (date(2026, 2, 2), date(2026, 2, 3))
SOON = datetime(2026, 2, 20, tzinfo=UTC)
"""Inside the redelivery horizon, so that what is withdrawn leaves raw."""
ORDERS, FULL_ORDERS = 2, 30
EVENTS = 12

Name = tuple[Source, date, int, int]
"""(source, arrival day, hour, shard)."""
Lines = list[dict[str, Any]]


def _line(rng: random.Random, event: int, day: date, sent: int) -> dict[str, Any]:
    # Few different times, so that ties are decided by source and content too.
    sent_at = f"{DAYS[-1]} 2{rng.randrange(2)}:00:00.000000"
    return an_event(
        insert_id=f"i{event}" if event % 5 else None,
        uuid=f"u{event}-{sent % 2}" if event % 7 else None,
        device_id=rng.choice(("d", None)),
        amplitude_id=event,
        event_type=rng.choice(("play", "stop")),
        event_time=f"{day} {rng.randrange(24):02d}:00:00.000000",
        server_upload_time=sent_at,
        processed_time=rng.choice((sent_at, None)),
        event_properties={"$revenue": rng.choice((1.5, 2)), "currency": "EUR"} if event % 3 == 0 else {},
    )


def _final_landing(rng: random.Random) -> dict[Name, Lines]:
    """Objects of both sources and days; most events are in several of them, on one day or on both."""
    names: list[Name] = [
        (source, day, hour, shard)
        for source, hours in ((Source.REGULAR, ((5, 1), (5, 2), (20, 1))), (Source.BACKFILL, ((0, 1), (0, 2))))
        for day in DAYS
        for hour, shard in hours
    ]
    return {
        name: [_line(rng, rng.randrange(EVENTS), rng.choice(DAYS), sent) for sent in range(rng.randrange(3, 9))]
        for name in names
    }


def _steps(rng: random.Random, final: dict[Name, Lines]) -> list[tuple[Name, Lines | None]]:
    """Puts and deletes (None) in random order; the last thing that happens to each name is as in `final`."""
    steps: list[tuple[float, Name, Lines | None]] = []
    for name, lines in final.items():
        at = rng.random()
        steps.append((at, name, lines))
        if rng.random() < 0.5:
            earlier = [_line(rng, rng.randrange(EVENTS), rng.choice(DAYS), 9) for _ in range(4)] + lines[:2]
            steps.append((at * rng.random(), name, earlier))
        if rng.random() < 0.3:
            steps.append((at + (1 - at) * rng.random(), name, lines))
    for number in range(3):
        source, day, hour, _ = rng.choice(sorted(final))
        extra = (source, day, hour, 7 + number)
        at = rng.random()
        steps.append((at, extra, [_line(rng, rng.randrange(EVENTS), rng.choice(DAYS), 8) for _ in range(5)]))
        steps.append((at + (1 - at) * rng.random(), extra, None))
    return [(name, lines) for _, name, lines in sorted(steps, key=lambda step: step[0])]


def _digests(p: Pipeline) -> dict[str, dict[Slice, str]]:
    """Table -> slice -> digest, computed from the rows; the recorded ones must say the same."""
    found = {}
    for table in ALL_TABLES:
        if table.key == "raw/quarantine":
            continue
        frame = p.spark.table(p.lakehouse.identifier(table))
        rows = digests(frame, table.content_columns, ("event_date", "project_id")).collect()
        found[table.key] = {Slice(row["event_date"], row["project_id"]): str(digest_of(row.asDict())) for row in rows}
    recorded = p.digests()
    assert found == {table: recorded[table] for table in found}
    return found


def _apply(p: Pipeline, steps: list[tuple[Name, Lines | None]]) -> None:
    for (source, day, hour, shard), lines in steps:
        if lines is None:
            path: Path = next((p.landing / source.prefix(PROJECT)).glob(f"*_{day}_{hour}#{shard}.json.gz"))
            path.unlink()
        else:
            p.deliver(day, lines, hour=hour, shard=shard, source=source)


def test_every_order_of_delivery_ends_in_the_same_tables(spark: Any, tmp_path: Path, is_full: bool) -> None:
    """Scenario: one final landing, reached in random orders over up to three runs, through both sources, with objects
    delivered again and withdrawn between. Outcome: the digests of every slice of every table are equal."""
    final = _final_landing(random.Random(40))
    expected: dict[str, dict[Slice, str]] = {}
    loads = 0
    for number in range(FULL_ORDERS if is_full else ORDERS):
        rng = random.Random(number)
        steps = _steps(rng, final)
        cuts = sorted(rng.sample(range(1, len(steps)), rng.randrange(3)))
        folder = tmp_path / f"order{number}"
        folder.mkdir()
        with a_pipeline(spark, folder, local_bytes=0) as p:
            p.now = SOON
            for start, end in zip([0, *cuts], [*cuts, len(steps)], strict=True):
                _apply(p, steps[start:end])
                # The last run sees all days; those before may see one of them only. Of some objects that are gone nothing tells
                # that this is meant: they stay until a person says so.
                is_last = end == len(steps)
                days = DAYS if is_last or rng.random() < 0.5 else (rng.choice(DAYS),) * 2
                p.reports(days[0], days[-1], accept_missing="it is the final landing" if is_last else None)
                loads += 1
            found = _digests(p)
        expected = expected or found
        assert found == expected, f"order {number}: {cuts}"
    assert {len(slices) for slices in expected.values()} == {len(DAYS)}
    superseded = sum(map(len, final.values())) - sum(Digest.parse(d).rows for d in expected["refined/events"].values())
    assert superseded > EVENTS
    print(f"\n{number + 1} orders in {loads} loads: {superseded} rows superseded, digests equal")


def test_the_days_do_not_matter_either() -> None:
    """The spread is what the scenario claims: both days and both sources share events, and times tie."""
    lines = [line for lines in _final_landing(random.Random(40)).values() for line in lines]
    by_event: dict[Any, set[str]] = {}
    for line in lines:
        by_event.setdefault(line["$insert_id"] or line["uuid"], set()).add(line["event_time"][:10])
    assert sum(len(days) == len(DAYS) for days in by_event.values()) > 3
    times = [(line["$insert_id"], line["server_upload_time"], line["processed_time"]) for line in lines]
    assert len(set(times)) < len(times)
    assert DAYS[1] - DAYS[0] == timedelta(days=1)
