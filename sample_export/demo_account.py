"""The account at the end of the demo: what tables and ledger hold, beside what the exporter meant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from pipeline_assets.cli.terminal import line, styled
from resources.ledger.schema import RUNS
from resources.ledger.store import Ledger
from sample_export.account import REASONS, ExportAccount
from sample_export.demo_place import Deployment

_RAW = {"regular": "raw.regular_events", "backfill": "raw.backfill_events"}


class State:
    """What tables and ledger say at one moment."""

    def __init__(self, deployment: Deployment) -> None:
        catalog = deployment.catalog()
        self.rows = {
            name: catalog.load_table(name).scan().count()
            for name in (*_RAW.values(), "raw.quarantine", "refined.events")
        }
        self.revenue = defaultdict[str, Decimal](Decimal)
        for row in catalog.load_table("aggregates.daily_revenue").scan().to_arrow().to_pylist():
            self.revenue[row["currency"]] += row["revenue"]
        ledger = Ledger(deployment.ledger_url)
        self.events = Counter[tuple[str, date]]()
        self.duplicates = Counter[tuple[str, date, str]]()
        for key, record in ledger.slices("refined/events", None).items():
            self.events[key.project_id, key.event_date] = record.digest.rows
            for reason in REASONS:
                self.duplicates[key.project_id, key.event_date, reason] = int(record.figures.get(reason, 0))
        self.publications = len(ledger.publications())
        with ledger.transaction() as connection:
            of_last = sa.select(RUNS.c.verdicts).order_by(RUNS.c.finished_at.desc()).limit(1)
            verdicts = connection.execute(of_last).scalar() or {}
        self.verdicts = Counter[str]()
        for name, count in verdicts.items():
            self.verdicts[name.split()[1]] += count
        ledger.close()

    def figures(self) -> dict[str, str]:
        """What a table and the ledger hold, to be compared with `expected_figures`."""
        return _figures(self.rows, self.duplicates, self.revenue)


def expected_figures(account: ExportAccount) -> dict[str, str]:
    """The exporter's own account in the form of `State.figures`."""
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


def tell_account(
    console: Console,
    exported: ExportAccount,
    recovered: ExportAccount,
    before: State,
    again: State,
    after: State,
    both: ExportAccount,
) -> bool:
    """Show what was found beside what the exporter meant (`both`: with the recovery); returns whether it is the same."""
    console.rule("5  the account: tables and ledger beside the exporter's own count")
    table = Table("", "first load", "again", "expected", "recovered", "expected", box=None, pad_edge=False)
    columns = [before.figures(), again.figures(), expected_figures(exported), after.figures(), expected_figures(both)]
    for name in columns[-1]:
        table.add_row(name, *(column.get(name, "0") for column in columns))
    states = (before, again, after)
    published = (before.publications, again.publications - before.publications, after.publications - again.publications)
    shown = {"published": published} | {
        verdict: tuple(state.verdicts[verdict] for state in states) for verdict in ("unchanged", "refused")
    }
    for verdict, (first, second, third) in shown.items():
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


def _differing(state: State, account: ExportAccount) -> Iterator[tuple[str, date, str]]:
    for project, day in sorted(state.events.keys() | account.events.keys()):
        if state.events[project, day] != account.events[project, day]:
            yield project, day, "events"
    for project, day, reason in sorted(state.duplicates.keys() | account.duplicates.keys()):
        if state.duplicates[project, day, reason] != account.duplicates[project, day, reason]:
            yield project, day, reason
