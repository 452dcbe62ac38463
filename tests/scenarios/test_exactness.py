"""Late files and corrections republish exactly the slices whose winners changed, and build exactly those that could change."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from pipeline_assets.domain.identity import RawRow
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from tests.support.random_exports import DAYS, KINDS, WINDOW, Vendor, change, first_exports
from tests.support.reference import by_slice, raw_rows, refined_rows, winners

pytestmark = pytest.mark.slow
REFINED = REFINED_EVENTS.key
ROUNDS, FULL_ROUNDS = 4, 20


def _differing(before: dict[Slice, Counter[Any]], after: dict[Slice, Counter[Any]]) -> set[Slice]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _that_could_change(before: list[RawRow], after: list[RawRow]) -> set[Slice]:
    """Slices whose rows changed, and those that hold a key of which rows within the window changed in id or rank."""
    touched = _differing(by_slice(before, lambda row: row.content), by_slice(after, lambda row: row.content))

    def competing_digests(rows: list[RawRow]) -> Counter[Any]:
        return Counter(
            (row.key, row.event_date, row.row_id, row.received_at, row.processed_at, row.source) for row in rows
        )

    was, now = competing_digests(before), competing_digests(after)
    changed = {name[:2] for name in was.keys() | now.keys() if was[name] != now[name]}
    holders = {
        Slice(row.event_date, row.project_id)
        for row in after
        for key, day in changed
        if row.key == key and 0 < abs((row.event_date - day).days) <= WINDOW
    }
    return touched | holders


def test_republished_and_built_slices_are_those_found_by_brute_force(pipeline: Any, is_full: bool) -> None:
    """Scenario: random late files and corrections, one after another. Outcome: after each, the published slices are those whose
    winners changed, and the built ones those whose rows, or whose events' rows nearby, changed; both by brute force."""
    p = pipeline(dedupe_window_days=WINDOW, reprocessing_window_days=3)
    vendor = Vendor(random.Random(4))
    files = first_exports(vendor)
    for (day, hour), lines in files.items():
        p.deliver(day, lines, hour=hour)
    p.reports(DAYS[0], DAYS[-1])
    before = raw_rows(p.lakehouse)
    seen: Counter[str] = Counter()
    for number in range(FULL_ROUNDS if is_full else ROUNDS):
        kind = KINDS[number % len(KINDS)]
        day, hour = change(vendor, files, kind)
        # The last hours are recovered ones, so that both sources take part.
        p.deliver(day, files[day, hour], hour=hour, source=Source.BACKFILL if hour > 19 else Source.REGULAR)
        known = len(p.ledger.publications())

        reports = p.reports(day)

        after = raw_rows(p.lakehouse)
        published: dict[str, set[Slice]] = defaultdict(set)
        for record in p.ledger.publications()[known:]:
            published[record.table].add(record.key)
        was, now = winners(before, p.settings), winners(after, p.settings)
        expected = _differing(was, now)
        assert published[REFINED] == expected, kind
        assert set(reports[REFINED].built) == _that_could_change(before, after), kind
        assert refined_rows(p.lakehouse) == now, kind
        assert published["aggregates/event_counts"] | published["aggregates/active_users"] <= expected
        seen.update({kind: 1, "published": len(expected), "built": len(reports[REFINED].built), "slices": len(now)})
        before = after
    assert seen["published"] > 0
    print(f"\n{dict(seen)}")
