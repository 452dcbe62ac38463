"""Random histories: a slice published as its difference equals one built whole, and exactly the changes are built."""

from __future__ import annotations

import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timedelta
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.identity import RawRow
from pipeline_assets.domain.slices import Slice, Source
from pipeline_assets.load.build import refined
from pipeline_assets.load.runtime import Outcome
from pipeline_assets.operations import maintenance
from pipeline_assets.operations.decisions import preview, release
from pipeline_assets.operations.maintenance import maintain, require_done
from pipeline_assets.operations.rollback import RollbackRequest, roll_back
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.transforms import refine_task
from tests.support.builders import PROJECT, Pipeline, a_pipeline
from tests.support.random_exports import DAYS, KINDS, WINDOW, Vendor, change, first_exports
from tests.support.reference import by_slice, raw_rows, refined_rows, require_known, winners
from tests.support.world import SOON

pytestmark = pytest.mark.slow
RAW, REFINED = "raw/regular_events", REFINED_EVENTS.key
STEPS, FULL_STEPS = 6, 110
OTHER_KINDS = ("exclusion", "inclusion", "compaction", "rollback", "delivered again", "moved objects", "moved prefix")
_LINEAGE = ("_source", "_object_key", "_line_number")
Act = Callable[[Pipeline], object]


def rows_of(p: Pipeline) -> Counter[Any]:
    """All rows of refined with stored hashes. Which of equal rows it names depends on earlier publications."""
    return Counter(
        tuple(sorted((name, str(value)) for name, value in row.items() if name not in _LINEAGE))
        for row in p.rows(REFINED)
    )


def require_lineage(p: Pipeline, published: Collection[date]) -> None:
    """Each row of these days names an equal row of raw."""
    raw = {(row.event_date, row.name) for row in raw_rows(p.lakehouse)}
    for row in p.rows(REFINED):
        source, key, line = (row[name] for name in _LINEAGE)
        name = (Source(source), key, line, (row["_hash_a"], row["_hash_b"]))
        assert row["event_date"] not in published or (row["event_date"], name) in raw


def differing(before: dict[Slice, Counter[Any]], after: dict[Slice, Counter[Any]]) -> set[Slice]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def that_could_change(before: list[RawRow], after: list[RawRow]) -> set[Slice]:
    """Slices whose rows changed, or that hold a key whose rows in the window changed in id or rank."""
    touched = differing(by_slice(before, lambda row: row.content), by_slice(after, lambda row: row.content))

    def competing(rows: list[RawRow]) -> Counter[Any]:
        return Counter(
            (row.key, row.event_date, row.row_id, row.received_at, row.processed_at, row.source) for row in rows
        )

    was, now = competing(before), competing(after)
    changed = {name[:2] for name in was.keys() | now.keys() if was[name] != now[name]}
    return touched | {
        Slice(row.event_date, row.project_id)
        for row in after
        for key, day in changed
        if row.key == key and 0 < abs((row.event_date - day).days) <= WINDOW
    }


class History:
    """One history in two lakes: published as differences in one, built whole by Spark's workers in the other."""

    def __init__(self, by_difference: Pipeline, whole: Pipeline, seed: int) -> None:
        self.lakes = (by_difference, whole)
        self.vendor = Vendor(random.Random(seed))
        self.files = first_exports(self.vendor)
        self.excluded: dict[str, str] = {}
        self.began = datetime.now(UTC)
        self.refused: list[str] = []
        self.kept = 0
        """Publications that kept files of their slice."""
        for day, hour in self.files:
            self.deliver(day, hour)
        self.load(DAYS[0], DAYS[-1])

    def deliver(self, day: date, hour: int, source: Source = Source.REGULAR, shard: int = 1) -> str:
        key, _ = (p.deliver(day, self.files[day, hour], hour=hour, source=source, shard=shard) for p in self.lakes)
        return key

    def load(self, first: date, last: date | None = None, *, is_exact: bool = False, **decided: Any) -> None:
        """Load both sources in both lakes; compare them. `is_exact`: landing alone changed, so brute force finds the
        changes."""
        p, whole = self.lakes
        known = [len(lake.ledger.publications()) for lake in self.lakes]
        files = {day: p.files(REFINED, day) for day in DAYS} if known[0] else {}
        before = raw_rows(p.lakehouse) if is_exact else []
        told, built = [], set[Slice]()
        for lake in self.lakes:
            for source in Source:
                done = lake.load(first, last, source=source, **(decided if source is Source.REGULAR else {}))
                assert all(one.verdict.is_good for one in done.outcomes(RAW)), done.failure()
                told.append([_told(one) for one in done.outcomes(REFINED)])
                built |= {key for report in done.reports if report.table == REFINED for key in report.built}
        assert told[:2] == told[2:]
        assert rows_of(p) == rows_of(whole)
        assert p.digests() == whole.digests()
        after = raw_rows(p.lakehouse)
        now = winners(after, p.settings)
        assert refined_rows(p.lakehouse) == now
        for lake, count in zip(self.lakes, known, strict=True):
            later = [one for one in lake.ledger.publications()[count:] if one.table == REFINED]
            require_lineage(lake, {one.key.event_date for one in later})
            if is_exact:
                assert {one.key for one in later} == differing(winners(before, p.settings), now)
        if is_exact:
            assert built == that_could_change(before, after)
        self.kept += sum(
            bool(files.get(one.key.event_date, frozenset()) & p.files(REFINED, one.key.event_date)) for one in later
        )

    def step(self, kind: str) -> None:
        """One random event in both lakes, with its loads."""
        if kind in KINDS:
            day, hour = change(self.vendor, self.files, kind)
            # The last hours are recovered ones, so that both sources take part.
            self.deliver(day, hour, Source.BACKFILL if hour > 19 else Source.REGULAR)
            self.load(day, is_exact=True)
            return
        early = sorted(name for name in self.files if name[1] < 16)
        day, hour = self.vendor.rng.choice(early)
        act: Act = _nothing
        decided: dict[str, Any] = {}
        if kind in ("exclusion", "inclusion"):
            key = self.deliver(day, hour)
            decided = {"exclude": {key: "ruled out"}}
            if kind == "inclusion":
                self.load(day, day, **decided)
                decided = {"include": {key: "right after all"}}
            else:
                self.excluded[key] = "ruled out"
                del self.files[day, hour]
            self.load(day, day, **decided)
        elif kind in ("delivered again", "moved prefix"):
            key = self.deliver(day, hour)
            self.deliver(day, hour, Source.BACKFILL)
            if kind == "moved prefix":
                act = methodcaller("remove", key)
                del self.files[day, hour]
        elif kind == "rollback":
            act = partial(self._roll_back_and_release, day=day)
        elif kind == "compaction":
            act = _compact
        else:
            key = self.deliver(day, hour)
            self.deliver(day, hour, shard=2)
            act = methodcaller("remove", key)
        for lake in self.lakes:
            act(lake)
        self.load(DAYS[0], DAYS[-1])

    def _roll_back_and_release(self, p: Pipeline, day: date) -> None:
        runtime = p.runtime
        request = RollbackRequest((REFINED,), (PROJECT,), day, day, self.began, "a look back", str(uuid.uuid4()))
        try:
            roll_back(runtime, request)
        except LakehouseError as torn:
            # The keys that days share have changed, in both lakes alike.
            self.refused.append(torn.reason)
            return
        held = preview(runtime.ledger, runtime.settings, (), (PROJECT,), DAYS[0], DAYS[-1], p.now, is_load_next=True)
        release(runtime.ledger, held, "go on", str(uuid.uuid4()))


def _told(one: Outcome) -> tuple[Any, ...]:
    return one.key, one.verdict, one.reason, one.digest, one.figures, [found.to_json() for found in one.evaluations]


def _nothing(_: Pipeline) -> None: ...


def _compact(p: Pipeline) -> None:
    require_done(list(maintain(p.runtime, str(uuid.uuid4()), SOON, lambda _: False, is_dry_run=False)))


def content(p: Pipeline) -> dict[str, dict[Slice, str]]:
    require_known(p)
    return {table: found for table, found in p.digests().items() if not table.startswith("raw/")}


def test_random_histories(spark: Any, tmp_path: Path, is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: late facts, corrections, withdrawals, exclusions, moves, renames, rollbacks, compactions of both sources.
    Outcome: both lakes equal the pure rule; exactly changed slices are built and published; the end equals one load."""
    window = {"dedupe_window_days": WINDOW, "reprocessing_window_days": 3}
    bounds = {"change_min_rows": 1, "change_max_shrink": 9, "change_max_growth": 9}
    with (
        a_pipeline(spark, tmp_path / "difference", **window, **bounds) as p,
        a_pipeline(spark, tmp_path / "whole", local_bytes=0, **window, **bounds) as q,
        a_pipeline(spark, tmp_path / "once", **window, **bounds) as r,
    ):
        held = refined.held_files
        monkeypatch.setattr(
            refined, "held_files", lambda runtime, *rest: {} if runtime.settings is q.settings else held(runtime, *rest)
        )
        # Late rows of these small days lie apart; tasks of the lake of differences run in this process.
        monkeypatch.setattr(refine_task, "_LEAST_ROWS", 3)
        monkeypatch.setattr(maintenance, "JOINED_FROM", 2)
        p.now = q.now = r.now = SOON
        history = History(p, q, seed=7)
        seen: Counter[str] = Counter()
        kinds = (*KINDS, *OTHER_KINDS)
        for number in range(FULL_STEPS if is_full else STEPS):
            kind = kinds[number * 5 % len(kinds)]
            if kind in ("exclusion", "moved prefix") and sum(hour < 16 for _, hour in history.files) == 1:
                kind = "delivered again"
            seen[kind] += 1
            history.step(kind)
        assert history.kept >= 2, seen
        assert history.refused[::2] == history.refused[1::2]
        assert all("events have moved between these days" in reason for reason in history.refused)

        shutil.copytree(p.landing, r.landing, dirs_exist_ok=True)
        for key in history.excluded:
            r.remove(key)
        for source in (Source.BACKFILL, Source.REGULAR):
            done = r.load(DAYS[0], DAYS[-1] + timedelta(days=1), source=source)
            assert not [one for one in done.outcomes(REFINED) if one.verdict.value == "refused"], done.failure()
        assert content(r) == content(p), dict(seen)
        print(f"\n{dict(seen)}: {history.kept} publications left files of their slice where they were")
