"""Late files and corrections republish exactly the slices whose winners changed, and build exactly those that could change.

Lives here: random changes of a loaded landing, and the sets found by brute force over all raw rows. Put here: another kind of
change. Keep out: orders of delivery (test_order.py).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pytest

from pipeline_assets.domain.identity import Outcome, RawRow, outcomes
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import CONTENT, REFINED_EVENTS
from pipeline_assets.transforms.measure import HASH_A, HASH_B, with_row_hashes
from tests.builders import PROJECT, Pipeline, an_event

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(7)]
REFINED = REFINED_EVENTS.key
ROUNDS, FULL_ROUNDS = 4, 20
WINDOW = 2


@dataclass
class Vendor:
    """What a vendor may export next, from one seed; every line's times differ, so that content decides nothing."""

    rng: random.Random
    lines: int = 0

    def line(self, day: date, event: str, sent: date) -> dict[str, Any]:
        """A row of an event, sent on a day; later lines carry later times."""
        self.lines += 1
        seconds = f"{10 + self.lines // 3600:02d}:{self.lines // 60 % 60:02d}:{self.lines % 60:02d}.000000"
        return an_event(
            insert_id=event, uuid=f"{event}-{self.lines}", device_id="d", amplitude_id=self.lines,
            event_time=f"{day} {self.rng.randrange(24):02d}:00:00.000000", server_upload_time=f"{sent} {seconds}",
            processed_time=f"{sent} {seconds}", city=self.rng.choice(("Bern", "Köln", None)),
        )  # fmt: skip

    def near(self, day: date, by: int) -> date:
        """A known day close to this one."""
        return self.rng.choice([other for other in DAYS if abs((other - day).days) <= by])


def _first_exports(vendor: Vendor) -> dict[tuple[date, int], list[dict[str, Any]]]:
    """(arrival day, hour) -> lines; some events come twice, some on two days."""
    files = {}
    for day in DAYS:
        for hour in (3, 15):
            own = [vendor.line(day, f"{day}-{hour}-{number}", day) for number in range(8)]
            again = [vendor.line(vendor.near(day, WINDOW + 1), f"{day}-{hour}-{number}", day) for number in range(2)]
            files[day, hour] = [*own, *again]
    return files


KINDS = ("corrections", "late", "corrections", "withdrawn lines", "changed lines", "lost corrections", "same lines")


def _change(vendor: Vendor, files: dict[tuple[date, int], list[dict[str, Any]]], kind: str) -> tuple[date, int]:
    """Change or add one file; returns its name."""
    rng = vendor.rng
    if kind in ("late", "corrections", "lost corrections"):
        arrival = rng.choice(DAYS)
        name = (arrival, rng.randrange(16, 24))
        known = sorted({line["$insert_id"] for lines in files.values() for line in lines})
        added = []
        for number in range(rng.randrange(1, 4)):
            day = vendor.near(arrival, 4)
            event = f"new-{vendor.lines}-{number}"
            if kind != "late":
                event = rng.choice(known)
                held = [line["event_time"] for lines in files.values() for line in lines if line["$insert_id"] == event]
                day = vendor.near(date.fromisoformat(rng.choice(held)[:10]), WINDOW)
            added.append(
                vendor.line(day, event, DAYS[-1] if kind != "lost corrections" else DAYS[0] - timedelta(days=9))
            )
        files[name] = [*files.get(name, []), *added]
        return name
    name = rng.choice(sorted(files))
    lines = list(files[name])
    place = rng.randrange(len(lines))
    if kind == "withdrawn lines":
        del lines[place]
    elif kind == "changed lines":
        lines[place] = lines[place] | {"city": f"changed {vendor.lines}"}
    else:
        rng.shuffle(lines)
    files[name] = lines
    return name


def _raw(p: Pipeline) -> list[RawRow]:
    rows = []
    for source, table in RAW_TABLES.items():
        frame = with_row_hashes(p.spark.table(p.lakehouse.identifier(table)), CONTENT)
        for r in frame.collect():
            rows.append(
                RawRow(
                    r["project_id"], r["event_date"], source, r["_object_key"], r["_line_number"], r["app"],
                    r["device_id"], r["insert_id"], r["uuid"], r["server_upload_time"], r["processed_time"],
                    (r[HASH_A], r[HASH_B]),
                )
            )  # fmt: skip
    return rows


def _slices(rows: Iterable[RawRow], what: Callable[[RawRow], Any]) -> dict[Slice, Counter[Any]]:
    found: defaultdict[Slice, Counter[Any]] = defaultdict(Counter)
    for row in rows:
        found[Slice(row.event_date, row.project_id)][what(row)] += 1
    return found


def _winners(p: Pipeline, rows: list[RawRow]) -> dict[Slice, Counter[Any]]:
    by_key: defaultdict[Any, list[RawRow]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    won = [
        row
        for same in by_key.values()
        for row, outcome in zip(same, outcomes(same, p.settings.source_precedence, WINDOW), strict=True)
        if outcome is Outcome.WINNER
    ]
    return _slices(won, lambda row: row.content)


def _differing(before: dict[Slice, Counter[Any]], after: dict[Slice, Counter[Any]]) -> set[Slice]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _that_could_change(before: list[RawRow], after: list[RawRow]) -> set[Slice]:
    """Slices whose rows changed, and those that hold a key of which rows within the window changed in id or rank."""
    touched = _differing(_slices(before, lambda row: row.content), _slices(after, lambda row: row.content))

    def rivals(rows: list[RawRow]) -> Counter[Any]:
        return Counter(
            (row.key, row.event_date, row.uuid, row.server_upload_time, row.processed_time, row.source) for row in rows
        )

    was, now = rivals(before), rivals(after)
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
    files = _first_exports(vendor)
    for (day, hour), lines in files.items():
        p.deliver(day, lines, hour=hour)
    p.reports(DAYS[0], DAYS[-1])
    before = _raw(p)
    seen: Counter[str] = Counter()
    for number in range(FULL_ROUNDS if is_full else ROUNDS):
        kind = KINDS[number % len(KINDS)]
        day, hour = _change(vendor, files, kind)
        # The last hours are recovered ones, so that both sources take part.
        p.deliver(day, files[day, hour], hour=hour, source=Source.BACKFILL if hour > 19 else Source.REGULAR)
        known = len(p.ledger.publications())

        reports = p.reports(day)

        after = _raw(p)
        published: dict[str, set[Slice]] = defaultdict(set)
        for record in p.ledger.publications()[known:]:
            published[record.table].add(record.key)
        was, now = _winners(p, before), _winners(p, after)
        expected = _differing(was, now)
        assert published[REFINED] == expected, kind
        assert set(reports[REFINED].built) == _that_could_change(before, after), kind
        assert _slices_of_refined(p) == now, kind
        assert published["aggregates/event_counts"] | published["aggregates/active_users"] <= expected
        seen.update({kind: 1, "published": len(expected), "built": len(reports[REFINED].built), "slices": len(now)})
        before = after
    assert seen["published"] > 0
    print(f"\n{dict(seen)}")


def _slices_of_refined(p: Pipeline) -> dict[Slice, Counter[Any]]:
    frame = with_row_hashes(p.spark.table(p.lakehouse.identifier(REFINED_EVENTS)), CONTENT)
    found: defaultdict[Slice, Counter[Any]] = defaultdict(Counter)
    for row in frame.select("event_date", HASH_A, HASH_B).collect():
        found[Slice(row["event_date"], PROJECT)][row[HASH_A], row[HASH_B]] += 1
    return found
