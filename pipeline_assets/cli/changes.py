"""Commands about changes of published numbers: `changes` lists them for any period, `notify` sends notices now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK, JsonOption
from pipeline_assets.cli.inspect import TABLE_KEYS
from pipeline_assets.cli.terminal import page, styled, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_moment
from pipeline_assets.domain.errors import SettingsError, UsageError
from pipeline_assets.domain.notices import measures_text
from pipeline_assets.domain.slices import Slice
from pipeline_assets.inspection.changes import ChangesSince, changes_since
from pipeline_assets.inspection.questions import receiver_troubles
from resources.ledger.store import own_ledger


def changes(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="A day or a time, UTC unless it says otherwise: 2026-02-05T10:00.")
    ],
    table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="This table and what is built from it; and which days to refresh."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """List the changes of published final days since a time, and the refusals that began or ended. From the ledger alone."""
    settings = load_settings()
    if table is not None and table not in TABLE_KEYS:
        raise UsageError(table, "is not a table", f"There are {', '.join(TABLE_KEYS)}")
    moment = parse_moment("--since", since)
    with own_ledger(settings) as ledger:
        found = changes_since(ledger, moment, table)
    if as_json:
        write_json(found.to_json())
    else:
        _print_changes(page(), found)
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
    for one in (*sent, *troubles):
        page().print(str(one))
    # Unsigned notices are sent all the same: that trouble has no command.
    is_complete = not (any(one.left for one in sent) or any(one.command for one in troubles))
    if not sent and is_complete:
        page().print("everybody was told of everything")
    return EXIT_OK if is_complete else EXIT_INCOMPLETE


def _print_changes(console: Console, found: ChangesSince) -> None:
    """Print changes, then refusals, then what to refresh."""
    since = found.since.isoformat(timespec="minutes")
    changes = []
    for one in found.changes:
        cause = "; ".join(filter(None, (one.cause, one.reason)))
        row = one.at[:16], one.table, _day(one.key), measures_text(one.measures), cause, (one.run_id or "")[:8]
        changes.append(row)
    headings: tuple[str, ...] = "at", "table", "day", "what changed", "cause", "run"
    _print_part(console, headings, changes, f"changes of published final days since {since}")
    refusals = []
    for refusal in found.refusals:
        refused, ended, place = refusal.refused, refusal.ended, (refusal.notice.table, _day(refusal.notice.key))
        begun, reason = ("before", None) if refused is None else (refused.at[:16], refused.reason)
        end = styled("stands", "bold red") if ended is None else f"{ended.at[:16]} {ended.verdict}"
        refusals.append((begun, end, *place, reason or "not on record"))
    headings = "refused", "ended", "table", "day", "reason"
    _print_part(console, headings, refusals, f"refusals that began or ended since {since}")
    if found.refresh is not None:
        refresh = []
        for copy in found.refresh:
            rows = f"{copy.rows_then:,}", f"{copy.rows_now:,}"
            note = "was final" if copy.was_final else "was provisional"
            refresh.append((copy.table, _day(copy.key), *rows, note))
        headings = "to refresh", "day", "rows then", "now", ""
        _print_part(console, headings, refresh, f"days to refresh for a copy of {since}")


def _day(key: Slice) -> str:
    return f"{key.event_date} {key.project_id}"


def _print_part(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str | Text]], counted: str) -> None:
    if rows:
        table = RichTable(*headings, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(styled(f"{len(rows):,} {counted}", "dim"))
