"""`python -m benchmarks.publishing`: what a load's publish takes in one transaction, and what it takes table by table."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import NOW, a_session, settings_in
from benchmarks.workload import KEPT, PROJECT
from pipeline_assets.load.run import run_load
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.tables.registry import ASSET_TABLES
from resources import failpoints
from resources.failpoints import Failpoint
from resources.iceberg.lakehouse import Lakehouse
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger
from resources.publishing import Promise, promise_of
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

_FIRST_DAY = date(2023, 1, 1)


@dataclass(frozen=True)
class Range:
    """The days of one load."""

    name: str
    days: int
    events_per_day: int

    @property
    def export(self) -> ExportSpec:
        """An export with one object per day."""
        return ExportSpec(
            seed=23,
            projects=(PROJECT,),
            first_day=_FIRST_DAY,
            days=self.days,
            events_per_day=self.events_per_day,
            shards=1,
            hours=(3,),
            tail_share=0.0,
            has_markers=False,
        )


RANGES = {
    one.name: one for one in (Range("a day", 1, 2_000), Range("a month", 30, 300), Range("three years", 1_095, 20))
}


@dataclass(frozen=True)
class Measured:
    """One load, in seconds."""

    range: str
    promise: Promise
    load: float
    publish: float
    """From the end of staging until all tables are visible and recorded."""
    apart: float
    """From the first table that readers see change until the last."""
    locked: float
    """How long other writers are blocked; table by table, Iceberg and the ledger lock only for single statements."""
    steps: dict[str, float]
    """Failpoint of the publish -> seconds since the one before it."""
    slices: int
    digests: str

    @property
    def told(self) -> str:
        """The figures on one line, for people."""
        steps = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.steps.items())
        return f"{self.range}, {self.promise}: load {self.load:.1f} s, publish {self.publish:.2f} s: {steps}"

    def as_json(self) -> dict[str, object]:
        """Return the figures for the JSON file."""
        return {name: value for name, value in vars(self).items() if name != "digests"}


class Moments:
    """Records when a load passes its failpoints, so that the product needs no timers of its own."""

    def __init__(self) -> None:
        """Record the moments of one load."""
        self.passed: list[tuple[Failpoint, float]] = []
        self.steps: dict[str, float] = {}
        """Failpoint and table -> seconds since the one before it, for the publish only."""

    def __call__(self, point: Failpoint, table: str) -> None:
        """Record the moment of a failpoint."""
        now = time.perf_counter()
        if point is Failpoint.BETWEEN_TABLES:
            self.steps.clear()
        elif self.passed:
            self.steps[f"{point} {table}".strip()] = round(now - self.passed[-1][1], 3)
        self.passed.append((point, now))

    def last(self, point: Failpoint) -> float:
        """Return the time of the failpoint's last passage; raises ValueError where there was none."""
        return max(at for passed, at in self.passed if passed is point)

    def between(self, first: Failpoint, last: Failpoint) -> float:
        """Return the seconds from the last passage of one failpoint to that of another."""
        return self.last(last) - self.last(first)

    def spread(self, point: Failpoint) -> float:
        """Return the seconds from the failpoint's first passage to its last."""
        return self.last(point) - min(at for passed, at in self.passed if passed is point)


def load_range(work: Path, chosen: Range, promise: Promise) -> Measured:
    """Load a range into a separate lake; returns its figures."""
    folder = work / f"{chosen.name}-{promise.name}".replace(" ", "-")
    landing = folder / "landing"
    write_export(chosen.export, landing)
    catalog = "bench_" + uuid.uuid4().hex[:8]
    apart = {"ledger_url": f"sqlite:///{folder}/ledger.db"} if promise is Promise.TABLE_BY_TABLE else {}
    settings = settings_in(folder, landing, catalog, calendar_start=_FIRST_DAY, **apart)
    assert promise_of(settings) is promise
    spark = a_session(settings)
    moments = Moments()
    tables = frozenset(table.key for table in ASSET_TABLES)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        runtime = Runtime(Lakehouse(spark, catalog), ledger, LandingStore.from_settings(settings), settings)
        request = LoadRequest(chosen.export.arrival_days, settings.projects, tables, str(uuid.uuid4()), NOW)
        failpoints.watch(moments)
        started = time.perf_counter()
        try:
            reports = run_load(runtime, request, lambda _: False)
            outcomes = list(next(reports).outcomes)
            # The load yields its first report once all tables are published.
            published = time.perf_counter()
            outcomes += [outcome for report in reports for outcome in report.outcomes]
        finally:
            failpoints.watch()
        seconds = time.perf_counter() - started
        digests = {
            table.key: {str(key): str(record.digest) for key, record in ledger.slices(table.key, None).items()}
            for table in ASSET_TABLES
        }
    refused = [outcome for outcome in outcomes if outcome.fails_the_run]
    assert not refused, refused[0]
    is_whole = promise is Promise.ONE_TRANSACTION
    return Measured(
        chosen.name,
        promise,
        load=seconds,
        publish=published - moments.last(Failpoint.BETWEEN_TABLES),
        apart=0.0 if is_whole else moments.spread(Failpoint.AFTER_COMMIT),
        locked=moments.between(Failpoint.AFTER_APPLY, Failpoint.AFTER_PUBLISH) if is_whole else 0.0,
        steps=moments.steps,
        slices=sum(len(slices) for slices in digests.values()),
        digests=json.dumps(digests, sort_keys=True),
    )


def page_of(measured: list[Measured]) -> Table:
    """Return a table that compares both promises by range."""
    page = Table(title="seconds of publishing: table by table -> one transaction")
    for name in ("range", "slices", "publish", "ratio", "the whole load", "ratio ", "tables apart", "others wait"):
        page.add_column(name, justify="left" if name == "range" else "right")
    by_range = {(one.range, one.promise): one for one in measured}
    for name in dict.fromkeys(one.range for one in measured):
        before, after = by_range[name, Promise.TABLE_BY_TABLE], by_range[name, Promise.ONE_TRANSACTION]
        cells = [name, str(after.slices)]
        figures: list[Callable[[Measured], float]] = [lambda one: one.publish, lambda one: one.load]
        for figure in figures:
            cells += [f"{figure(before):.2f} -> {figure(after):.2f}", f"{figure(after) / figure(before):.2f}"]
        page.add_row(*cells, f"{before.apart:.2f} -> {after.apart:.2f}", f"{after.locked:.2f}")
    return page


def _promise(text: str) -> Promise:
    return Promise(text.replace("-", " "))


def main() -> int:
    """Measure and report; returns 1 where the two promises produced different tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publishing", description=__doc__)
    parser.add_argument("--ranges", nargs="*", choices=list(RANGES), default=list(RANGES))
    orders = [Promise.TABLE_BY_TABLE, Promise.ONE_TRANSACTION]
    parser.add_argument("--promise", nargs="*", type=_promise, default=orders, help="one-transaction, table-by-table")
    chosen = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="publishing-", dir=KEPT))
    measured: list[Measured] = []
    console = Console(width=140)
    try:
        # Warm up the session first, so that its one-time work is not measured.
        load_range(work / "warm", Range("warm", 1, 50), Promise.ONE_TRANSACTION)
        for name in chosen.ranges:
            for promise in chosen.promise:
                measured.append(load_range(work, RANGES[name], promise))
                console.print(measured[-1].told, highlight=False)
    finally:
        shutil.rmtree(work)
    if len(chosen.promise) == len(Promise):
        console.print(page_of(measured))
    differing = [
        one.range for one in measured if one.digests != next(m.digests for m in measured if m.range == one.range)
    ]
    console.print(f"digests of all tables {'DIFFER' if differing else 'equal'}", highlight=False)
    (KEPT / "publishing.json").write_text(json.dumps([one.as_json() for one in measured], indent=1) + "\n", "utf-8")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
