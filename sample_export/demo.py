"""`make demo`: two weeks loaded, loaded again, a lost part recovered, and the account of it.

Lives here: the story of the demo and how it is told. Put here: another step a newcomer should see. Keep out: anything the
pipeline does; the demo only calls `tidemark` and reads tables and ledger.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import date
from decimal import Decimal
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from rich.table import Table

from pipeline_assets.domain.identity import Outcome
from pipeline_assets.domain.settings import PROJECT_ROOT
from resources.ledger import Ledger
from sample_export.account import ExportAccount
from sample_export.objects import write_export, write_recovery
from sample_export.spec import ExportSpec

DATA = PROJECT_ROOT / "data"
OURS = DATA / ".demo"
"""Marks a data folder that the demo may empty."""
SPEC = ExportSpec(days=14, events_per_day=400, bad_lines_per_day=2, lost_days=(date(2026, 1, 6),), lost_share=0.1)
RECOVERED = (date(2026, 1, 5), date(2026, 1, 7))
_REASONS = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.WINNER)


def main() -> int:
    """Tell the story; returns the exit code."""
    console = Console()
    if DATA.exists() and any(DATA.iterdir()) and not OURS.exists():
        console.print(
            f"[red]{DATA}[/] holds data that the demo did not write. Move it away, then run `make demo` again."
        )
        return 1
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    OURS.touch()
    started = time.monotonic()
    landing = DATA / "landing"

    console.rule("1  an export lands: 2 projects, 14 days, hourly objects")
    exported = write_export(SPEC, landing)
    console.print(
        f"{exported.objects} objects, {exported.lines} lines; {exported.delivery_duplicates} rows exported twice, "
        f"{exported.send_duplicates} sent twice ({exported.corrections} with another amount), {exported.bad_lines} broken "
        f"lines, {exported.late_rows} late facts; {exported.lost_events} events never arrived"
    )
    first, last = SPEC.arrival_days[0], SPEC.arrival_days[-1]
    console.rule("2  daily_load")
    if not _tidemark(console, "regular", first, last):
        return 1
    before = _State.read()
    console.rule("3  the same again: nothing to do")
    if not _tidemark(console, "regular", first, last):
        return 1
    again = _State.read()
    console.rule(
        f"4  a recovery export of {RECOVERED[0]} to {RECOVERED[1]}, overlapping what was delivered: backfill_load"
    )
    recovered = write_recovery(SPEC, landing, *RECOVERED, corrected_share=0.05)
    console.print(f"{recovered.objects} objects, {recovered.lines} lines on the backfill prefix")
    if not _tidemark(console, "backfill", *RECOVERED):
        return 1
    after = _State.read()
    _tell(console, exported, recovered, before, again, after)
    console.print(
        f"\n{time.monotonic() - started:.0f} s. See it in Dagster: [bold]make dev[/], then http://127.0.0.1:3000"
    )
    return 0


def _tidemark(console: Console, source: str, first: date, last: date) -> bool:
    """Run the command as a person would; its table is long, so only its verdicts are counted here."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    environment |= {"DAGSTER_HOME": str(DATA / "dagster_home")}
    (DATA / "dagster_home").mkdir(exist_ok=True)
    command = [
        str(Path(sys.executable).parent / "tidemark"),
        "load",
        "--source",
        source,
        "--from",
        str(first),
        "--to",
        str(last),
    ]
    console.print(f"[bold]$ tidemark {' '.join(command[1:])}[/]", highlight=False)
    done = subprocess.run(command, cwd=PROJECT_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    verdicts = Counter(line.split()[2] for line in done.stdout.splitlines()[1:] if len(line.split()) > 2)
    console.print("days x tables: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    if done.returncode != 0:
        console.print(done.stdout)
    return done.returncode == 0


class _State:
    """What tables and ledger say at one moment."""

    def __init__(self) -> None:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{DATA}/catalog.db", warehouse=f"file://{DATA}/warehouse")
        self.rows: dict[str, int] = {}
        self.snapshots = 0
        for name in ("raw.regular_events", "raw.backfill_events", "raw.quarantine", "refined.events"):
            table = catalog.load_table(name)
            self.rows[name] = table.scan().count()
            self.snapshots += len(table.snapshots())
        revenue = catalog.load_table("aggregates.daily_revenue").scan().to_arrow().to_pylist()
        self.revenue: dict[str, Decimal] = {}
        for row in revenue:
            self.revenue[row["currency"]] = self.revenue.get(row["currency"], Decimal(0)) + row["revenue"]
        ledger = Ledger(f"sqlite:///{DATA}/catalog.db")
        slices = ledger.slices("refined/events", None)
        self.duplicates = Counter[str]()
        for record in slices.values():
            self.duplicates.update({reason: int(record.figures.get(reason, 0)) for reason in _REASONS})
        self.publications = len(ledger.publications())
        run = ledger.last_run()
        self.verdicts = Counter[str]()
        for name, count in (run["verdicts"] if run else {}).items():
            self.verdicts[name.split()[1]] += count
        ledger.close()

    @classmethod
    def read(cls) -> _State:
        """The state now."""
        return cls()


def _tell(
    console: Console, exported: ExportAccount, recovered: ExportAccount, before: _State, again: _State, after: _State
) -> None:
    console.rule("5  the account, from tables and ledger")
    table = Table("", "first load", "same again", "after recovery", box=None)
    states = (before, again, after)
    for name in before.rows:
        table.add_row(f"rows in {name}", *(f"{state.rows[name]:,}" for state in states))
    for reason in _REASONS:
        table.add_row(f"left out: {reason.replace('_', ' ')}", *(f"{state.duplicates[reason]:,}" for state in states))
    published = (before.publications, again.publications - before.publications, after.publications - again.publications)
    table.add_row("slices published by the run", *(f"{count:,}" for count in published))
    for verdict in ("unchanged", "refused"):
        table.add_row(f"slices {verdict} by the run", *(f"{state.verdicts[verdict]:,}" for state in states))
    table.add_row("publications on record", *(f"{state.publications:,}" for state in states))
    for currency in sorted(after.revenue):
        table.add_row(f"revenue {currency}", *(f"{state.revenue[currency]:,.2f}" for state in states))
    console.print(table)
    events = exported.events.total()
    console.print(
        f"Exported: {events:,} events; the recovery brought {recovered.events.total():,}, of which "
        f"{exported.lost_events} were new. In refined.events: {after.rows['refined.events']:,}."
    )
    expected = events + exported.lost_events
    verdict = "[green]Nothing is counted twice, nothing is lost.[/]"
    truth: dict[str, Decimal] = {}
    for (_, _, currency), amount in exported.revenue.items():
        truth[currency] = truth.get(currency, Decimal(0)) + amount
    console.print(
        f"Revenue exported, counted by the exporter: {', '.join(f'{c} {truth[c]:,.2f}' for c in sorted(truth))}."
    )
    if after.rows["refined.events"] != expected or truth != before.revenue:
        verdict = f"[red]Expected {expected:,} events: this is a defect, please report it.[/]"
    console.print(verdict)


if __name__ == "__main__":
    raise SystemExit(main())
