"""Output of rebuilds: their progress, and what each would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.terminal import line, styled
from pipeline_assets.domain.rebuilds import RebuildRecord, RebuildState, RebuiltSlice, measure_texts
from pipeline_assets.domain.slices import Slice

_STYLES = {
    RebuildState.BUILDING: "yellow",
    RebuildState.READY: "bold yellow",
    RebuildState.SWAPPING: "bold red",
    RebuildState.SWAPPED: "green",
    RebuildState.ABANDONED: "dim",
    RebuildState.UNDONE: "magenta",
}
_NEXT = {
    RebuildState.BUILDING: "go on with it: tidemark rebuild start, with the same tables and days",
    RebuildState.READY: "answer it: tidemark rebuild swap {0}, or tidemark rebuild abandon {0}",
    RebuildState.SWAPPING: "complete it: tidemark rebuild swap {0}; or take it back: tidemark rebuild undo {0}",
    RebuildState.SWAPPED: "take it back: tidemark rebuild undo {0}",
    RebuildState.ABANDONED: "main never saw it",
    RebuildState.UNDONE: "its days are held until somebody releases them: tidemark release",
}
GreenSlices = Mapping[str, Mapping[Slice, RebuiltSlice]]


def rebuild_lines(rebuilds: Sequence[RebuildRecord]) -> list[str]:
    """Return a line per rebuild, as `tidemark status` shows open ones."""
    return [f"{_title(one)}: {one.state.value}; {_NEXT[one.state].format(one.number)}" for one in rebuilds]


def print_rebuilds(console: Console, rebuilds: Sequence[RebuildRecord]) -> None:
    """Print one row per recorded rebuild, oldest first."""
    table = RichTable("id", "state", "tables", "days", "started", "by", "reason", box=None, pad_edge=False)
    for one in rebuilds:
        table.add_row(
            str(one.number),
            styled(one.state.value, _STYLES[one.state]),
            ", ".join(one.tables),
            f"{one.first} to {one.last}",
            one.started_at[:16],
            one.who,
            one.reason,
        )
    console.print(table)


def print_rebuild(console: Console, rebuild: RebuildRecord, green: GreenSlices) -> None:
    """Print the rebuild's state, the changes by day, and what is left out."""
    console.print(line(f"{_title(rebuild)}: ", styled(rebuild.state.value, _STYLES[rebuild.state])))
    console.print(f"reason: {rebuild.reason} ({rebuild.who}, {rebuild.started_at[:16]})")
    if rebuild.answered_by is not None:
        told = f": {rebuild.answer}" if rebuild.answer else ""
        console.print(f"answered by {rebuild.answered_by}{told}")
    columns = ("day", "table", "project", "rows", "measures", "keys only rebuilt", "only published", "different")
    report = RichTable(*columns, box=None, pad_edge=False)
    listed = [(key, name, one) for name, of_table in green.items() for key, one in of_table.items()]
    order = list(rebuild.tables)
    for key, name, one in sorted(listed, key=lambda entry: (entry[0], order.index(entry[1]))):
        if one.difference is not None and (one.is_changed or not one.goes):
            report.add_row(str(key.event_date), name, key.project_id, *_cells(one))
    if report.row_count:
        console.print(report)
    for name in rebuild.tables:
        console.print(_summary(name, green.get(name, {}), len(rebuild.slices)))
    for key, name, one in sorted(listed, key=lambda entry: (entry[0], order.index(entry[1]))):
        if not one.goes:
            console.print(line("left out: ", styled(f"{key} {name}", "bold red"), f": {one.why_not}"))
            if one.record.hint and not one.blocked_by:
                console.print(f"  fix: {one.record.hint}")
    console.print(_NEXT[rebuild.state].format(rebuild.number))


def rebuild_json(rebuild: RebuildRecord, green: GreenSlices) -> dict[str, Any]:
    """Return the report for `--json`, including unchanged slices."""
    return {
        "id": rebuild.number,
        "state": rebuild.state.value,
        "tables": list(rebuild.tables),
        "first": str(rebuild.first),
        "last": str(rebuild.last),
        "projects": list(rebuild.projects),
        "reason": rebuild.reason,
        "who": rebuild.who,
        "started_at": rebuild.started_at,
        "answered_by": rebuild.answered_by,
        "answer": rebuild.answer,
        "slices": [
            {
                "table": name,
                "day": str(key.event_date),
                "project": key.project_id,
                "goes": one.goes,
                "is_changed": one.is_changed,
                "why_not": one.why_not or None,
                "difference": None if one.difference is None else one.difference.to_json(),
            }
            for name, of_table in green.items()
            for key, one in sorted(of_table.items())
        ],
    }


def _title(rebuild: RebuildRecord) -> str:
    days = f"{rebuild.first} to {rebuild.last}"
    return f"rebuild {rebuild.number} of {', '.join(rebuild.tables)}, {days}"


def _cells(one: RebuiltSlice) -> tuple[str, ...]:
    assert one.difference is not None
    (old, new), keys = one.difference.rows, one.difference.keys
    totals = keys.totals if keys is not None else {}
    parts = (f"{totals.get(name, 0):,}" for name in ("keys_added", "keys_removed", "keys_changed"))
    return (f"{old:,} -> {new:,}", ", ".join(measure_texts(one)), *parts)


def _summary(name: str, of_table: Mapping[Slice, RebuiltSlice], asked: int) -> str:
    going = [one for one in of_table.values() if one.goes]
    changed = sum(one.is_changed for one in going)
    left_out = len(of_table) - len(going)
    parts = [f"{changed} slices change", f"{len(going) - changed} stay as they are"]
    parts += [f"{left_out} are left out"] if left_out else []
    parts += [f"{asked - len(of_table)} hold nothing or are not built yet"] if asked > len(of_table) else []
    return f"{name}: {', '.join(parts)}"
