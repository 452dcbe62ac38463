"""`make demo`: two weeks loaded, loaded again, a lost part recovered, and the account of it.

Contains: the story of the demo and how it is told.
Add here: another step a newcomer should see.
Does not contain: anything the pipeline does; the demo only calls `tidemark` and reads tables and
ledger.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from rich.table import Table

from pipeline_assets.cli.terminal import line, page, print_lines_of, styled
from pipeline_assets.domain.settings import PROJECT_ROOT
from resources.ledger.store import Ledger
from sample_export.account import REASONS, ExportAccount
from sample_export.objects import account_of, write_export, write_recovery
from sample_export.spec import ExportSpec, Recovery

DATA = PROJECT_ROOT / "data"
OURS = DATA / ".demo"
"""Marks a data folder that the demo may empty."""
SPEC = ExportSpec(
    days=14,
    events_per_day=400,
    bad_lines_per_day=2,
    blank_lines_per_day=1,
    lost_days=(date(2026, 1, 6),),
    lost_share=0.1,
)
RECOVERY = Recovery(first_day=date(2026, 1, 5), last_day=date(2026, 1, 7), corrected_share=0.05)
_RAW = {"regular": "raw.regular_events", "backfill": "raw.backfill_events"}


def main() -> int:
    """Tell the story; returns the exit code."""
    console = page()
    if DATA.exists() and any(DATA.iterdir()) and not OURS.exists():
        told = " holds data that the demo did not write. Move it away, then run `make demo` again."
        console.print(line(styled(DATA, "red"), told))
        return 1
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    OURS.touch()
    started = time.monotonic()
    landing = DATA / "landing"

    console.rule("1  an export lands: 2 projects, 14 days, hourly objects")
    exported = write_export(SPEC, landing)
    console.print(
        f"{exported.objects} objects, {exported.lines} lines, {exported.bad_lines} of them broken and "
        f"{exported.blank_lines} blank; {_duplicates(exported)} ({exported.corrections} with another amount); "
        f"{exported.late.total()} late facts; {exported.lost_events} events never arrived"
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
        f"4  a recovery export of {RECOVERY.first_day} to {RECOVERY.last_day}, overlapping what was delivered: backfill_load"
    )
    recovered = write_recovery(
        SPEC, landing, RECOVERY.first_day, RECOVERY.last_day, corrected_share=RECOVERY.corrected_share
    )
    console.print(f"{recovered.objects} objects, {recovered.lines} lines on the backfill prefix")
    if not _tidemark(console, "backfill", RECOVERY.first_day, RECOVERY.last_day):
        return 1
    after = _State.read()
    is_right = _tell(console, exported, recovered, before, again, after)
    console.print()
    seconds = f"{time.monotonic() - started:.0f} s. See it in Dagster: "
    console.print(line(seconds, styled("make dev", "bold"), ", then http://127.0.0.1:3000"))
    return 0 if is_right else 1


def _duplicates(account: ExportAccount) -> str:
    delivered, sent, moved = (account.duplicates_by_reason[reason] for reason in REASONS)
    return f"{delivered} rows exported twice, {sent + moved} events sent twice, {moved} of them onto another day"


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
    console.print(styled(f"$ tidemark {' '.join(command[1:])}", "bold"))
    done = subprocess.run(command, cwd=PROJECT_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    verdicts = Counter(line.split()[2] for line in done.stdout.splitlines()[1:] if len(line.split()) > 2)
    console.print("days x tables: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    if done.returncode != 0:
        print_lines_of(console, done.stdout.splitlines())
    return done.returncode == 0


class _State:
    """What tables and ledger say at one moment."""

    def __init__(self) -> None:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{DATA}/catalog.db", warehouse=f"file://{DATA}/warehouse")
        self.rows = {
            name: catalog.load_table(name).scan().count()
            for name in (*_RAW.values(), "raw.quarantine", "refined.events")
        }
        self.revenue = defaultdict[str, Decimal](Decimal)
        for row in catalog.load_table("aggregates.daily_revenue").scan().to_arrow().to_pylist():
            self.revenue[row["currency"]] += row["revenue"]
        ledger = Ledger(f"sqlite:///{DATA}/catalog.db")
        self.events = Counter[tuple[str, date]]()
        self.duplicates = Counter[tuple[str, date, str]]()
        for key, record in ledger.slices("refined/events", None).items():
            self.events[key.project_id, key.event_date] = record.digest.rows
            for reason in REASONS:
                self.duplicates[key.project_id, key.event_date, reason] = int(record.figures.get(reason, 0))
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

    def figures(self) -> dict[str, str]:
        """What a table and the ledger hold, to be compared with `_expected`."""
        return _figures(self.rows, self.duplicates, self.revenue)


def _expected(account: ExportAccount) -> dict[str, str]:
    """The exporter's own account in the form of `_State.figures`."""
    rows = dict.fromkeys(_RAW.values(), 0)
    for (source, _, _), counts in account.arrivals.items():
        rows[_RAW[source]] += counts.rows
    rows |= {"raw.quarantine": account.bad_lines, "refined.events": account.events.total()}
    revenue = defaultdict[str, Decimal](Decimal)
    for (_, _, currency), amount in account.revenue.items():
        revenue[currency] += amount
    return _figures(rows, account.duplicates, revenue)


def _figures(
    rows: Mapping[str, int], duplicates: Mapping[tuple[str, date, str], int], revenue: Mapping[str, Decimal]
) -> dict[str, str]:
    totals = dict.fromkeys(REASONS, 0)
    for (_, _, reason), count in duplicates.items():
        totals[reason] += count
    return (
        {f"rows in {name}": f"{count:,}" for name, count in rows.items()}
        | {f"left out: {reason.replace('_', ' ')}": f"{count:,}" for reason, count in totals.items()}
        | {f"revenue {currency}": f"{revenue[currency]:,.2f}" for currency in sorted(revenue)}
    )


def _tell(
    console: Console, exported: ExportAccount, recovered: ExportAccount, before: _State, again: _State, after: _State
) -> bool:
    """Show what was found beside what the exporter meant; returns whether it is the same."""
    console.rule("5  the account: tables and ledger beside the exporter's own count")
    both = account_of(SPEC, RECOVERY)
    table = Table("", "first load", "again", "expected", "recovered", "expected", box=None, pad_edge=False)
    columns = [before.figures(), again.figures(), _expected(exported), after.figures(), _expected(both)]
    for name in columns[-1]:
        table.add_row(name, *(column.get(name, "0") for column in columns))
    states = (before, again, after)
    published = (before.publications, again.publications - before.publications, after.publications - again.publications)
    told = {"published": published} | {
        verdict: tuple(state.verdicts[verdict] for state in states) for verdict in ("unchanged", "refused")
    }
    for verdict, (first, second, third) in told.items():
        table.add_row(f"slices {verdict} by the run", f"{first:,}", f"{second:,}", "", f"{third:,}")
    console.print(table)
    differing = [
        f"{project} {day}: {reason}"
        for state, account in ((before, exported), (again, exported), (after, both))
        for project, day, reason in _differing(state, account)
    ]
    console.print(
        f"The recovery brought {recovered.events.total():,} events, {exported.lost_events - both.lost_events} of them new. "
        f"{len(both.events)} event days of a project were compared one by one, with the reasons of what was left out: "
        f"{len(differing)} figures differ."
    )
    is_right = not differing and columns[0] == columns[1] == columns[2] and columns[3] == columns[4]
    if is_right:
        console.print(styled("Nothing is counted twice, nothing is lost.", "green"))
    else:
        broken = styled("Found and expected differ: this is a defect, please report it.", "red")
        console.print(line(broken, f" {'; '.join(differing[:5])}"))
    return is_right


def _differing(state: _State, account: ExportAccount) -> Iterator[tuple[str, date, str]]:
    for project, day in sorted(state.events.keys() | account.events.keys()):
        if state.events[project, day] != account.events[project, day]:
            yield project, day, "events"
    for project, day, reason in sorted(state.duplicates.keys() | account.duplicates.keys()):
        if state.duplicates[project, day, reason] != account.duplicates[project, day, reason]:
            yield project, day, reason


if __name__ == "__main__":
    raise SystemExit(main())
