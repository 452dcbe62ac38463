"""Text in Dagster's events: Markdown of limited length, with names and reasons escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import dagster as dg

from pipeline_assets.domain.plain_text import as_markdown, bounded, fenced, shown

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
    listed = [f"| {' | '.join(as_markdown(cell) for cell in row)} |" for row in rows]
    left_out = [f"\n{len(listed) - MOST_LINES:,} more rows"] if len(listed) > MOST_LINES else []
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *listed[:MOST_LINES], *left_out]
    for name, items in (lists or {}).items():
        lines += [f"\n{name}: {len(items):,}", *_items(items, MOST_LINES // 5)] if items else []
    return dg.MetadataValue.md(bounded("\n".join(lines), 4 * LONGEST_DESCRIPTION))


def markdown_blocks(blocks: Iterable[Iterable[object]]) -> dg.MarkdownMetadataValue:
    """Return code blocks of verbatim lines."""
    return dg.MetadataValue.md("\n\n".join(fenced(lines) for lines in blocks))


def description(parts: Iterable[object], separator: str = "; ") -> str:
    """Join parts to plain text, each on one line; cuts what is too long and says how much."""
    listed = [shown(part) for part in parts]
    more = [f"and {len(listed) - MOST_LINES:,} more"] if len(listed) > MOST_LINES else []
    return bounded(separator.join([*listed[:MOST_LINES], *more]), LONGEST_DESCRIPTION)


def markdown_text(parts: Iterable[object]) -> str:
    """Join parts to a description that Dagster shows as Markdown, as it does for check evaluations."""
    return bounded("; ".join(as_markdown(part) for part in list(parts)[:MOST_LINES]), LONGEST_DESCRIPTION)


def _items(items: Iterable[object], most: int) -> list[str]:
    listed = [f"- {as_markdown(item)}" for item in items]
    return listed[:most] + ([f"- and {len(listed) - most:,} more"] if len(listed) > most else [])
