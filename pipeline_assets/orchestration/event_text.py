"""Text in Dagster's events: Markdown in which names and reasons are data, and whose length has a bound.

Contains: lists, tables and blocks for metadata.
Add here: another form of it.
Does not contain: what is reported (events.py, jobs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import dagster as dg

from pipeline_assets.domain.plain_text import as_markdown, bounded, fenced, shown

MOST_LINES = 100
"""Of a list or a table; Dagster keeps events for good, in one row of its database each."""
LONGEST_DESCRIPTION = 10_000
"""Characters of a description, which Dagster shows whole."""
LONGEST_TAG = 500


def markdown_list(items: Iterable[object], *, most: int = MOST_LINES) -> dg.MarkdownMetadataValue:
    """One item a line."""
    return dg.MetadataValue.md(bounded("\n".join(_items(items, most)), 4 * LONGEST_DESCRIPTION))


def markdown_table(
    names: Sequence[str], rows: Iterable[Sequence[object]], *, lists: Mapping[str, Collection[object]] | None = None
) -> dg.MarkdownMetadataValue:
    """A table, and below it lists, each under its name and length."""
    listed = [f"| {' | '.join(as_markdown(cell) for cell in row)} |" for row in rows]
    left_out = [f"\n{len(listed) - MOST_LINES:,} more rows"] if len(listed) > MOST_LINES else []
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *listed[:MOST_LINES], *left_out]
    for name, items in (lists or {}).items():
        lines += [f"\n{name}: {len(items):,}", *_items(items, MOST_LINES // 5)] if items else []
    return dg.MetadataValue.md(bounded("\n".join(lines), 4 * LONGEST_DESCRIPTION))


def markdown_blocks(blocks: Iterable[Iterable[object]]) -> dg.MarkdownMetadataValue:
    """Blocks of lines as they are."""
    return dg.MetadataValue.md("\n\n".join(fenced(lines) for lines in blocks))


def description(parts: Iterable[object], separator: str = "; ") -> str:
    """Plain text of several parts, each on one line; what is too long is cut and counted."""
    listed = [shown(part) for part in parts]
    more = [f"and {len(listed) - MOST_LINES:,} more"] if len(listed) > MOST_LINES else []
    return bounded(separator.join([*listed[:MOST_LINES], *more]), LONGEST_DESCRIPTION)


def markdown_text(parts: Iterable[object]) -> str:
    """A description that Dagster's pages show as Markdown: of a check's evaluation."""
    return bounded("; ".join(as_markdown(part) for part in list(parts)[:MOST_LINES]), LONGEST_DESCRIPTION)


def _items(items: Iterable[object], most: int) -> list[str]:
    listed = [f"- {as_markdown(item)}" for item in items]
    return listed[:most] + ([f"- and {len(listed) - most:,} more"] if len(listed) > most else [])
