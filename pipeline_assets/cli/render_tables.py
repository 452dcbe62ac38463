"""What the shell shows of days, slices and decisions.

Contains: one line per day and table, and the tables drawn of these, of exclusions, publications,
rollbacks and holds.
Add here: how something is shown.
Does not contain: commands (app.py, correct.py, inspect.py), exit codes (command.py).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipeline_assets.cli.terminal import line as joined
from pipeline_assets.cli.terminal import styled
from pipeline_assets.domain.arrival_days import told_strays
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import BatchRecord, Exclusion, PublicationRecord, SliceRecord
from pipeline_assets.domain.slices import Slice, Source, Verdict
from pipeline_assets.load.recorded import DAY_VERDICTS
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.registry import DERIVED
from resources.ledger.store import Ledger

if TYPE_CHECKING:
    from pipeline_assets.operations.release import Held
    from pipeline_assets.operations.rollback_plan import SliceRestore

NOT_LOADED = "not loaded"
_STYLES = {
    Verdict.PUBLISHED: "green",
    Verdict.UNCHANGED: "green",
    Verdict.REFUSED: "bold red",
    Verdict.WAITING: "yellow",
    Verdict.HELD: "magenta",
}
_WORST_FIRST = (Verdict.REFUSED, Verdict.HELD, Verdict.WAITING, Verdict.PUBLISHED, Verdict.UNCHANGED)


@dataclass(frozen=True)
class DayLine:
    """Where one day of one table stands, all projects together: the worst verdict, all reasons."""

    day: date
    table: str
    verdict: Verdict | None
    rows: int
    reasons: tuple[str, ...]
    is_final: bool

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "day": self.day.isoformat(),
            "table": self.table,
            "rows": self.rows,
            "is_final": self.is_final,
            "verdict": self.verdict.value if self.verdict else NOT_LOADED,
            "reasons": list(self.reasons),
        }


def day_lines(
    ledger: Ledger, projects: Sequence[str], days: Sequence[date], sources: Sequence[Source]
) -> list[DayLine]:
    """One line per day and table, days ascending, tables in the order of the graph."""
    wanted = {Slice(day, project) for day in days for project in projects}
    return _lines(ledger, wanted, sources)


def concerned_lines(ledger: Ledger, concerned: Set[Slice], sources: Sequence[Source]) -> list[DayLine]:
    """The same of these days and projects alone, as far as anything is on record of them."""
    found = _lines(ledger, concerned, sources, is_all_wanted=False)
    return [line for line in found if line.verdict is not None]


def _lines(
    ledger: Ledger, wanted: Set[Slice], sources: Sequence[Source], *, is_all_wanted: bool = True
) -> list[DayLine]:
    days = sorted({key.event_date for key in wanted})
    projects = sorted({key.project_id for key in wanted})
    batches = ledger.batches(projects, days[0], days[-1])
    lines: list[DayLine] = []
    keys = [*(RAW_TABLES[source].key for source in sources), *(table.key for table in DERIVED)]
    slices = {key: ledger.slices(key, projects, days) for key in keys}
    source_of = {RAW_TABLES[source].key: source for source in sources}
    for day in days:
        own = [project for project in projects if Slice(day, project) in wanted]
        for key in keys:
            found = [slices[key].get(Slice(day, project)) for project in own]
            if key in source_of:
                standing = [batches.get(BatchKey(source_of[key], project, day)) for project in own]
                known = [pair for pair in zip(found, standing, strict=True) if is_all_wanted or pair[1] is not None]
                lines.append(_raw_line(day, key, [record for record, _ in known], [batch for _, batch in known]))
            else:
                records = [record for record in found if record is not None]
                lines.append(_line(day, key, records, len(own) if is_all_wanted else len(records)))
    return lines


def _line(day: date, table: str, records: Sequence[SliceRecord], projects: int) -> DayLine:
    verdicts = [record.verdict for record in records]
    reasons = tuple(f"{record.key.project_id}: {_said(record)}" for record in records if record.reason is not None)
    is_whole = len(records) == projects
    return DayLine(
        day,
        table,
        _worst(verdicts) if is_whole else None,
        sum(record.digest.rows for record in records),
        reasons,
        is_whole and all(record.is_final for record in records),
    )


def _raw_line(
    day: date, table: str, records: Sequence[SliceRecord | None], batches: Sequence[BatchRecord | None]
) -> DayLine:
    known = [batch for batch in batches if batch is not None]
    verdicts = []
    for record, batch in zip(records, batches, strict=True):
        if batch is None:
            continue
        verdict = DAY_VERDICTS[batch.verdict]
        was_published = record is not None and record.verdict is Verdict.PUBLISHED
        verdicts.append(Verdict.PUBLISHED if verdict is Verdict.UNCHANGED and was_published else verdict)
    reasons = tuple(f"{batch.key.project_id}: {said}" for batch in known if (said := _said(batch) or _partial(batch)))
    rows = sum(record.digest.rows for record in records if record is not None)
    is_whole = len(known) == len(batches)
    is_final = all(batch.is_closed and batch.partial_hours is None for batch in known)
    return DayLine(day, table, _worst(verdicts) if is_whole else None, rows, reasons, is_final)


def _partial(batch: BatchRecord) -> str | None:
    """What a day lacks that only recoveries delivered."""
    told = (". ".join(filter(None, (e.reason, e.hint))) for e in batch.evaluations if not e.is_passed)
    return next(told, None) if batch.partial_hours is not None else None


def _said(record: SliceRecord | BatchRecord) -> str:
    return ". ".join(filter(None, (record.reason, record.hint)))


def _worst(verdicts: Sequence[Verdict]) -> Verdict | None:
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), None)


def _styled(verdict: Verdict | None) -> Text:
    return styled(verdict.value, _STYLES[verdict]) if verdict is not None else styled(NOT_LOADED, "dim")


def print_lines(console: Console, lines: Sequence[DayLine]) -> None:
    """One row per day and table: verdict, rows, reason."""
    table = RichTable("day", "table", "verdict", "rows", "reason", box=None, pad_edge=False)
    for line in lines:
        table.add_row(
            line.day.isoformat(), line.table, _styled(line.verdict), f"{line.rows:,}", "; ".join(line.reasons)
        )
    console.print(table)


def print_exclusions(console: Console, exclusions: Sequence[Exclusion]) -> None:
    """One row per excluded version of an object, standing ones first."""
    table = RichTable("object", "version", "excluded", "reason", "lifted", box=None, pad_edge=False)
    for one in sorted(exclusions, key=lambda one: one.lifted_at is not None):
        lifted = f"{one.lifted_at[:16]}: {one.lift_reason}" if one.lifted_at else styled("stands", "magenta")
        table.add_row(one.object_key, one.etag, one.excluded_at[:16], one.reason, lifted)
    console.print(table)


def print_moves(console: Console, moves: Sequence[SliceRestore]) -> None:
    """One row per slice that a rollback concerns: what it is and what it was."""
    table = RichTable("table", "day", "project", "rows now", "rows then", "published", "", box=None, pad_edge=False)
    for move in moves:
        target = move.target
        published = f"{target.published_at[:16]} (no. {target.number})" if target is not None else "never by then"
        what = styled("only held", "dim") if move.is_there else styled("rolled back", "magenta")
        rows = f"{move.present.digest.rows:,}", f"{move.digest.rows:,}"
        table.add_row(move.table, str(move.key.event_date), move.key.project_id, *rows, published, what)
    console.print(table)


def print_held(console: Console, held: Sequence[Held]) -> None:
    """One row per held slice: what it is, what it was before, what becomes of it."""
    table = RichTable(
        "table", "day", "project", "held for", "rows now", "before", "once released", box=None, pad_edge=False
    )
    for one in held:
        rows = f"{one.digest.rows:,}", f"{one.digest_before.rows:,}"
        table.add_row(one.table, str(one.key.event_date), one.key.project_id, one.reason, *rows, one.then)
    console.print(table)


def print_publications(console: Console, records: Sequence[PublicationRecord]) -> None:
    """One row per change on record, oldest first."""
    table = RichTable(
        "no.", "published", "table", "day", "rows before", "after", "cause", "run", box=None, pad_edge=False
    )
    for one in records:
        cause = f"{one.cause}: {one.accepted_reason}" if one.accepted_reason else one.cause.text
        rows = f"{one.digest_before.rows:,}", f"{one.digest_after.rows:,}"
        place = one.table, f"{one.key.event_date} {one.key.project_id}"
        table.add_row(str(one.number), one.published_at[:19], *place, *rows, cause, (one.run_id or "")[:8])
    console.print(table)


def print_status(console: Console, lines: Sequence[DayLine], strays: Sequence[str] = ()) -> None:
    """Days down, tables across; reasons and objects that no load will ask for below."""
    tables = list(dict.fromkeys(line.table for line in lines))
    table = RichTable("day", *(name.rsplit("/", 1)[1] for name in tables), box=None, pad_edge=False)
    by_day: dict[date, dict[str, DayLine]] = {}
    for line in lines:
        by_day.setdefault(line.day, {})[line.table] = line
    for day, found in by_day.items():
        cells = [
            joined(_styled(found[name].verdict), f" {found[name].rows:,}{'' if found[name].is_final else ' ~'}")
            for name in tables
        ]
        table.add_row(day.isoformat(), *cells)
    console.print(table)
    console.print(styled("~ = provisional: more deliveries are expected", "dim"))
    for line in lines:
        for reason in line.reasons:
            console.print(joined(f"{line.day} {line.table} ", _styled(line.verdict), f": {reason}"))
    if strays:
        console.print(f"landing: {told_strays(strays)}")
