"""Tables of days, slices and decisions for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.config import dagster_home
from pipeline_assets.domain.days import describe_strays
from pipeline_assets.domain.golden import GoldenComparison, GoldenFault
from pipeline_assets.domain.processes import Life, Process, Sight
from pipeline_assets.domain.records import Exclusion, PublicationRecord
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.inspection.status import NOT_LOADED, DayStatus
from resources.ledger.processes import sight
from resources.ledger.store import Ledger

if TYPE_CHECKING:
    from pipeline_assets.operations.release import Held
    from pipeline_assets.operations.rollback import SliceRestore


_MOST_MISMATCHES = 20
_STYLES = {
    Verdict.PUBLISHED: "green",
    Verdict.UNCHANGED: "green",
    Verdict.REFUSED: "bold red",
    Verdict.WAITING: "yellow",
    Verdict.HELD: "magenta",
}


def _styled(verdict: Verdict | None) -> Text:
    return styled(verdict.value, _STYLES[verdict]) if verdict is not None else styled(NOT_LOADED, "dim")


def print_statuses(console: Console, statuses: Sequence[DayStatus]) -> None:
    """Print one row per day and table: verdict, rows, reason."""
    table = RichTable("day", "table", "verdict", "rows", "reason", box=None, pad_edge=False)
    for status in statuses:
        reasons = "; ".join(status.reasons)
        table.add_row(status.day.isoformat(), status.table, _styled(status.verdict), f"{status.rows:,}", reasons)
    console.print(table)


def print_exclusions(console: Console, exclusions: Sequence[Exclusion]) -> None:
    """Print one row per excluded version of an object, those in force first."""
    table = RichTable("object", "version", "excluded", "reason", "included again", box=None, pad_edge=False)
    for exclusion in sorted(exclusions, key=lambda exclusion: exclusion.lifted_at is not None):
        lifted = (
            f"{exclusion.lifted_at[:16]}: {exclusion.lift_reason}" if exclusion.lifted_at else styled("no", "magenta")
        )
        table.add_row(exclusion.object_key, exclusion.etag, exclusion.excluded_at[:16], exclusion.reason, lifted)
    console.print(table)


def print_restores(console: Console, restores: Sequence[SliceRestore]) -> None:
    """Print one row per slice of a rollback, with its state now and then."""
    table = RichTable("table", "day", "project", "rows now", "rows then", "published", "", box=None, pad_edge=False)
    for restore in restores:
        target = restore.target
        published = f"{target.published_at[:16]} (no. {target.number})" if target is not None else "never by then"
        what = styled("only held", "dim") if restore.is_there else styled("rolled back", "magenta")
        rows = f"{restore.present.digest.rows:,}", f"{restore.digest.rows:,}"
        table.add_row(restore.table, str(restore.key.event_date), restore.key.project_id, *rows, published, what)
    console.print(table)


def print_held(console: Console, held: Sequence[Held]) -> None:
    """Print one row per held slice: its state now, before the rollback, and after a release."""
    headings = ("table", "day", "project", "held for", "rows now", "before", "once released")
    table = RichTable(*headings, box=None, pad_edge=False)
    for hold in held:
        rows = f"{hold.digest.rows:,}", f"{hold.digest_before.rows:,}"
        table.add_row(hold.table, str(hold.key.event_date), hold.key.project_id, hold.reason, *rows, hold.then)
    console.print(table)


def print_publications(console: Console, records: Sequence[PublicationRecord]) -> None:
    """Print one row per recorded publication, oldest first."""
    headings = ("no.", "published", "table", "day", "rows before", "after", "cause", "run")
    table = RichTable(*headings, box=None, pad_edge=False)
    for record in records:
        cause = f"{record.cause}: {record.accepted_reason}" if record.accepted_reason else record.cause.text
        rows = f"{record.digest_before.rows:,}", f"{record.digest_after.rows:,}"
        place = record.table, f"{record.key.event_date} {record.key.project_id}"
        run = (record.run_id or "")[:8]
        table.add_row(str(record.number), record.published_at[:19], *place, *rows, cause, run)
    console.print(table)


def print_grid(console: Console, statuses: Sequence[DayStatus], strays: Sequence[str] = ()) -> None:
    """Print a grid of days and tables; below it reasons, and objects that no load will request."""
    tables = list(dict.fromkeys(status.table for status in statuses))
    grid = RichTable("day", *(name.rsplit("/", 1)[1] for name in tables), box=None, pad_edge=False)
    by_day: dict[date, dict[str, DayStatus]] = {}
    for status in statuses:
        by_day.setdefault(status.day, {})[status.table] = status
    for day, of_table in by_day.items():
        grid.add_row(day.isoformat(), *(_cell(of_table[name]) for name in tables))
    console.print(grid)
    console.print(styled("~ = provisional: more deliveries are expected", "dim"))
    for status in statuses:
        for reason in status.reasons:
            console.print(line(f"{status.day} {status.table} ", _styled(status.verdict), f": {reason}"))
    if strays:
        console.print(f"landing: {describe_strays(strays)}")


def mismatch_lines(mismatches: Sequence[GoldenComparison]) -> list[Text]:
    """Return one line per mismatch of a golden total, at most the first few; `tidemark reconcile` shows all."""
    lines = [
        line(
            f"{one.total.key.event_date} {one.total.measure.table} ",
            styled("golden", "yellow"),
            f": {one.total.key.project_id}: {one}",
        )
        for one in mismatches[:_MOST_MISMATCHES]
    ]
    more = len(mismatches) - _MOST_MISMATCHES
    return (
        [*lines, line(f"and {more:,} more golden totals that do not agree: tidemark reconcile")] if more > 0 else lines
    )


def fault_lines(faults: Sequence[GoldenFault]) -> list[Text]:
    """Return one line per invalid golden total, at most the first few; `tidemark reconcile` reads them again."""
    lines = [line(styled("not compared", "yellow"), f": {one}") for one in faults[:_MOST_MISMATCHES]]
    more = len(faults) - _MOST_MISMATCHES
    return [*lines, line(f"and {more:,} more that are no golden totals: tidemark reconcile")] if more > 0 else lines


def _cell(status: DayStatus) -> Text:
    return line(_styled(status.verdict), f" {status.rows:,}{'' if status.is_final else ' ~'}")


def process_lines(ledger: Ledger) -> list[str]:
    """Return a line per running run, and per run whose process is dead."""
    processes = [(process, sight(process.identity)) for process in ledger.processes.look([], {}).values()]
    lines = [
        _working(process, seen)
        for process, seen in processes
        if process.identity and process.life(seen) is not Life.DEAD
    ]
    if any(process.has_died_with_its_run(seen) for process, seen in processes):
        import dagster as dg  # noqa: PLC0415 - `status` starts without Dagster

        from pipeline_assets.orchestration.live_runs import report_dead_runs  # noqa: PLC0415 - `status` starts without Dagster

        dagster_home()
        with dg.DagsterInstance.get() as instance:
            lines += [str(dead) for dead in report_dead_runs(instance, ledger)]
    return lines


def _working(process: Process, seen: Sight) -> str:
    assert process.identity is not None
    who = f"process {process.identity.pid} on {process.identity.host}"
    line = f"run {process.run_id} ({process.job}) works: {who}, begun {(process.begun_at or '')[:19]} UTC"
    is_silent = seen is not Sight.THERE and process.watch.still > 0
    return f"{line}; not heard from since {(process.beat_at or '')[:19]} UTC" if is_silent else line
