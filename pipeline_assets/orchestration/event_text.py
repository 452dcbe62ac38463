"""Text in Dagster's events: Markdown of limited length, with names and reasons escaped."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg

from pipeline_assets.domain.notices import Notice, measures_text
from pipeline_assets.domain.plain_text import as_markdown, bounded, fenced, shown
from pipeline_assets.domain.slices import EMPTY
from pipeline_assets.load.runtime import Outcome, TableReport
from pipeline_assets.tables.registry import downstream_of
from pipeline_assets.tables.table import Table

MOST_LINES = 100
"""Limit of a list or table: Dagster keeps each event forever, as one row of its database."""
LONGEST_DESCRIPTION = 10_000
"""Limit of a description in characters; Dagster shows it in full."""
LONGEST_TAG = 500


def markdown_list(items: Iterable[object], *, most: int = MOST_LINES) -> dg.MarkdownMetadataValue:
    """Return a list with one item per line."""
    return dg.MetadataValue.md(bounded("\n".join(_items(items, most)), 4 * LONGEST_DESCRIPTION))


def markdown_table(
    names: Sequence[str], rows: Iterable[Sequence[object]], *, lists: Mapping[str, Collection[object]] | None = None
) -> dg.MarkdownMetadataValue:
    """Return a table, followed by lists, each with its name and length."""
    rows = list(rows)
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(as_markdown(cell) for cell in row)} |" for row in rows[:MOST_LINES]]
    lines += [f"\n{len(rows) - MOST_LINES:,} more rows"] if len(rows) > MOST_LINES else []
    for name, items in (lists or {}).items():
        lines += [f"\n{name}: {len(items):,}", *_items(items, MOST_LINES // 5)] if items else []
    return dg.MetadataValue.md(bounded("\n".join(lines), 4 * LONGEST_DESCRIPTION))


def markdown_blocks(blocks: Iterable[Iterable[object]]) -> dg.MarkdownMetadataValue:
    """Return code blocks of verbatim lines."""
    return dg.MetadataValue.md("\n\n".join(fenced(lines) for lines in blocks))


def description(parts: Iterable[object], separator: str = "; ") -> str:
    """Join parts to plain text, each on one line; cuts what is too long and says how much."""
    parts = list(parts)
    more = [f"and {len(parts) - MOST_LINES:,} more"] if len(parts) > MOST_LINES else []
    return bounded(separator.join([*map(shown, parts[:MOST_LINES]), *more]), LONGEST_DESCRIPTION)


def markdown_text(parts: Iterable[object]) -> str:
    """Join parts to a description that Dagster shows as Markdown, as it does for check evaluations."""
    return bounded("; ".join(as_markdown(part) for part in list(parts)[:MOST_LINES]), LONGEST_DESCRIPTION)


def _items(items: Iterable[object], most: int) -> list[str]:
    items = list(items)
    more = [f"- and {len(items) - most:,} more"] if len(items) > most else []
    return [*(f"- {as_markdown(item)}" for item in items[:most]), *more]


CHANGED, REFRESH = "changed final day", "to refresh"
"""Metadata keys of a materialization that changed a final day."""


def data_version(outcomes: Sequence[Outcome]) -> str:
    """Return a version of the day's content in all projects, independent of which projects the run loaded."""
    whole = "+".join(str(outcome.digest) for outcome in outcomes if outcome.digest != EMPTY) or str(EMPTY)
    return whole if len(whole) <= LONGEST_TAG else hashlib.sha256(whole.encode()).hexdigest()


def metadata_of(outcomes: Sequence[Outcome], report: TableReport) -> dict[str, Any]:
    """Return verdict, rows, snapshots and figures of one day in all projects."""
    figures: dict[str, float] = {}
    for outcome in outcomes:
        for name, value in outcome.figures.items():
            is_largest = name.endswith(("_seconds", "_days")) and name in figures
            figures[name] = max(figures[name], value) if is_largest else figures.get(name, 0) + value
    rows = sum(outcome.digest.rows for outcome in outcomes)
    is_built = not {outcome.key for outcome in outcomes}.isdisjoint(report.built)
    pins = (f"{name} {snapshot_id}" for name, snapshot_id in sorted(report.pins.items()))
    return {
        "verdict": verdicts_text(outcomes),
        "dagster/partition_row_count": rows,
        "rows": rows,
        "snapshot_id": dg.MetadataValue.text(str(report.snapshot_id)),
        # The input snapshots of a day that this run built.
        **({"built_from": description(pins)} if report.pins and is_built else {}),
        **{name: value for name, value in figures.items() if name != "rows"},
    }


def changed_day(table: Table, day: date, changes: Sequence[Notice]) -> dict[str, Any]:
    """Return the changed measures of a final day, and the days that its consumers must refresh; empty where nothing changed."""
    here = [notice for notice in changes if notice.key.event_date == day]
    if not here:
        return {}
    told = markdown_list(f"{notice.key.project_id}: {measures_text(notice.measures)}" for notice in here)
    below = [f"{one.key} {day}" for one in downstream_of(table.key)]
    return {CHANGED: told, REFRESH: markdown_list([f"{table.key} {day}", *below])}


def verdicts_text(outcomes: Sequence[Outcome]) -> str:
    """`10001: published, provisional; 10002: refused`."""
    finality = {None: "", True: ", final", False: ", provisional"}
    return description(f"{o.key.project_id}: {o.verdict.value}{finality[o.is_final]}" for o in outcomes)
