"""Commands about changes of published numbers: `changes` lists them for any period, `notify` sends notices now."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK, JsonOption
from pipeline_assets.cli.terminal import page, styled, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_moment
from pipeline_assets.domain.errors import SettingsError, UsageError
from pipeline_assets.domain.masking import receiver_id
from pipeline_assets.domain.notices import measures_text
from pipeline_assets.inspection.changes import ChangesSince, changes_since
from pipeline_assets.inspection.receivers import receiver_troubles
from pipeline_assets.tables.registry import EVERY_TABLE
from resources.ledger.store import own_ledger


def changes(
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="TIME", help="A day or a time, UTC unless it says otherwise: 2026-02-05T10:00."
        ),
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="TABLE", help="This table and what is built from it; and which days to refresh."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """List the changes of published final days since a time, and the refusals that began or ended. From the ledger alone."""
    settings = load_settings()
    keys = [one.key for one in EVERY_TABLE]
    if table is not None and table not in keys:
        raise UsageError(table, "is not a table", f"There are {', '.join(keys)}")
    moment = parse_moment("--since", since)
    with own_ledger(settings) as ledger:
        found = changes_since(ledger, moment, table)
    if as_json:
        write_json(found.to_json())
    else:
        print_changes(page(), found)
    return EXIT_OK


def notify(
    again: Annotated[
        bool, typer.Option("--again", help="First send once more what a receiver refused for good and was set aside.")
    ] = False,
) -> int:
    """Send the notices that TIDEMARK_NOTIFY_URLS were not told yet, as every run does at its end.

    Exits 0 when everybody was told of everything, 1 when a receiver did not take all, 2 on bad usage.
    """
    from pipeline_assets.operations.notices import send_notices  # noqa: PLC0415 - other commands send nothing

    settings = load_settings()
    if not settings.notify_urls:
        raise SettingsError(
            "TIDEMARK_NOTIFY_URLS", "names nobody to tell", "Set it to the addresses of webhooks, a comma list"
        )
    with own_ledger(settings) as ledger:
        sent = send_notices(ledger, settings, is_again=again)
        troubles = receiver_troubles(ledger, settings)
        untold = ledger.outbox.waiting().keys() | {one.receiver_id for one in ledger.set_aside.all()}
    for one in sent:
        page().print(str(one))
    for trouble in troubles:
        page().print(str(trouble))
    is_complete = untold.isdisjoint(map(receiver_id, settings.notify_urls))
    if not sent and is_complete:
        page().print("everybody was told of everything")
    return EXIT_OK if is_complete else EXIT_INCOMPLETE


def print_changes(console: Console, found: ChangesSince) -> None:
    """Print changes, then refusals, then what to refresh."""
    since = f"since {found.since.isoformat(timespec='minutes')}"
    if found.changes:
        table = RichTable("at", "table", "day", "what changed", "cause", "run", box=None, pad_edge=False)
        for one in found.changes:
            cause = "; ".join(filter(None, (one.cause, one.reason)))
            place = one.at[:16], one.table, f"{one.key.event_date} {one.key.project_id}"
            table.add_row(*place, measures_text(one.measures), cause, (one.run_id or "")[:8])
        console.print(table)
    console.print(styled(f"{len(found.changes):,} changes of published final days {since}", "dim"))
    if found.refusals:
        table = RichTable("refused", "ended", "table", "day", "reason", box=None, pad_edge=False)
        for refusal in found.refusals:
            refused, ended = refusal.refused, refusal.ended
            end = f"{ended.at[:16]} {ended.verdict}" if ended is not None else styled("stands", "bold red")
            reason = (refused.reason if refused is not None else "") or "not on record"
            day = f"{refusal.notice.key.event_date} {refusal.notice.key.project_id}"
            begun = refused.at[:16] if refused is not None else "before"
            table.add_row(begun, end, refusal.notice.table, day, reason)
        console.print(table)
    console.print(styled(f"{len(found.refusals):,} refusals that began or ended {since}", "dim"))
    if found.refresh is not None:
        table = RichTable("to refresh", "day", "rows then", "now", "", box=None, pad_edge=False)
        for copy in found.refresh:
            rows = f"{copy.rows_then:,}", f"{copy.rows_now:,}"
            note = "was final" if copy.was_final else "was provisional"
            table.add_row(copy.table, f"{copy.key.event_date} {copy.key.project_id}", *rows, note)
        if found.refresh:
            console.print(table)
        console.print(
            styled(f"{len(found.refresh):,} days to refresh for a copy of {since.removeprefix('since ')}", "dim")
        )
