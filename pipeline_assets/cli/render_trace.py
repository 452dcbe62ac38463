"""Output of `tidemark explain`: where a row came from, and why competing rows lost."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipeline_assets.cli.terminal import line as joined
from pipeline_assets.cli.terminal import stacked, styled
from pipeline_assets.domain.identity import KeyKind, RankPart, RawRow, RowFate
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.event_rows import MAX_QUARANTINED, MAX_ROWS, QuarantinedLine
from pipeline_assets.inspection.explain import (
    Delivered,
    Event,
    Explanation,
    Published,
    Standing,
    place,
    spelled,
)


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the answer for `--json`; snapshot ids are text, because they exceed the integers that JSON readers hold exactly."""
    return {
        "identifier": explanation.identifier,
        "is_found": explanation.is_found,
        "searched": explanation.searched,
        "is_cut": explanation.is_cut,
        "events": [_event_json(event) for event in explanation.events],
        "quarantined": [_quarantined_json(line) for line in explanation.quarantined],
        "batches_not_in_raw": [str(batch.key) for batch in explanation.not_in_raw],
        "deliveries_excluded": [exclusion.object_key for exclusion in explanation.excluded],
    }


def _event_json(event: Event) -> dict[str, Any]:
    return {
        "project_id": event.project_id,
        "key": dict(zip(_KEY_NAMES[KeyKind(str(event.key[1]))], event.key[2:], strict=True)),
        "verdict": event.verdict,
        "agrees": event.agrees,
        "deliveries": [_delivered_json(delivered) for delivered in event.deliveries],
        "publications": [_published_json(publication) for publication in event.publications],
        "standings": [_standing_json(standing) for standing in event.standings],
    }


_IDENTITY = EXPORT_FORMAT.identity
_KEY_NAMES = {KeyKind.SEND_ID: (*_IDENTITY.sender, _IDENTITY.send_id), KeyKind.ROW_ID: (_IDENTITY.row_id,)}
_RECEIVED, _PROCESSED = EXPORT_FORMAT.rank_columns
_RANK_COLUMNS = {RankPart.RECEIVED_AT: _RECEIVED, RankPart.PROCESSED_AT: _PROCESSED}


def _delivered_json(delivered: Delivered) -> dict[str, Any]:
    row, found_row, defeat = delivered.row, delivered.found, delivered.defeat
    return {
        "outcome": delivered.outcome.value,
        "reason": delivered.reason,
        **_row_json(row),
        "etag": found_row.etag,
        "arrival_date": found_row.arrival_date.isoformat(),
        EVENT_TIME: spelled(found_row.event_time) if found_row.event_time else None,
        _RECEIVED: spelled(row.received_at) if row.received_at else None,
        _PROCESSED: spelled(row.processed_at) if row.processed_at else None,
        f"{_PROCESSED}_unread": row.unread,
        "beaten_by": _row_json(defeat.by) if defeat else None,
        "decided_by": _RANK_COLUMNS.get(defeat.part, defeat.part.value) if defeat else None,
    }


def _row_json(row: RawRow) -> dict[str, Any]:
    return {
        "source": row.source.value,
        "object_key": row.object_key,
        "line_number": row.line_number,
        "event_date": row.event_date.isoformat(),
        _IDENTITY.row_id: row.row_id,
    }


def _published_json(publication: Published) -> dict[str, Any]:
    record = publication.record
    return {
        "event_date": record.key.event_date.isoformat(),
        "published_at": record.published_at,
        "cause": record.cause.text,
        "accepted_reason": record.accepted_reason,
        "run_id": record.run_id,
        "snapshot_id": str(record.snapshot_id),
        "visible": publication.visible,
        "rows": None if publication.rows is None else [_row_json(row) for row in publication.rows],
    }


def _standing_json(standing: Standing) -> dict[str, Any]:
    record = standing.record
    return {
        "event_date": standing.key.event_date.isoformat(),
        "agrees": standing.agrees,
        "is_stale": standing.is_stale,
        "verdict": record.verdict.value if record else None,
        "reason": standing.reason,
        "cure": standing.hint,
        "expected": [_row_json(row) for row in standing.expected],
        "live": [_row_json(row) for row in standing.live],
    }


def _quarantined_json(line: QuarantinedLine) -> dict[str, Any]:
    return vars(line) | {"arrival_date": line.arrival_date.isoformat()}


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print one block per event; without events the refused lines that hold the identifier, or what was searched."""
    for event in explanation.events:
        _print_event(console, event)
    if explanation.is_cut:
        console.print(
            styled(f"Only the {MAX_ROWS:,} rows of highest rank were read; narrow it with --from and --to.", "yellow")
        )
    if explanation.quarantined:
        _print_quarantined(console, explanation)
    if not explanation.is_found:
        console.print(joined(styled(explanation.identifier, "bold"), ": found nowhere"))
        console.print(f"  searched: {explanation.searched}")
    for batch in explanation.not_in_raw:
        console.print(f"  not searched, because it is not in raw: {batch.key} is {batch.verdict.value}, {batch.reason}")
    for exclusion in explanation.excluded:
        console.print(f"  not searched, because it is excluded: {exclusion.object_key}, {exclusion.reason}")


def _print_event(console: Console, event: Event) -> None:
    console.print(styled(event.title, "bold"))
    console.print(f"  {event.verdict}", style=None if event.agrees else "yellow")
    for standing in event.standings:
        if standing.reason is not None:
            text = f"  {standing.key.event_date}: refined/events {standing.reason}. {standing.hint or ''}"
            console.print(text, style="yellow")
    console.print()
    if event.deliveries:
        titles = ("delivered as", "arrived", "event day", _RECEIVED, _PROCESSED, _IDENTITY.row_id, "outcome")
        table = RichTable(*titles, box=None, pad_edge=False)
        for delivered in event.deliveries:
            table.add_row(*_delivered_cells(delivered), style="green" if delivered.outcome is RowFate.WINNER else None)
        console.print(table)
        console.print()
    _print_publications(console, event)


def _delivered_cells(delivered: Delivered) -> list[str | Text]:
    row, found_row = delivered.row, delivered.found
    return [
        stacked(f"{row.source.value} {place(row)}", f"etag {found_row.etag}"),
        found_row.arrival_date.isoformat(),
        row.event_date.isoformat(),
        spelled(row.received_at),
        f"unreadable: {row.unread}" if row.unread else spelled(row.processed_at),
        row.row_id or "none",
        delivered.reason,
    ]


def _print_publications(console: Console, event: Event) -> None:
    if not event.publications:
        console.print(styled("not published yet: no publication of its days is on record", "dim"))
        console.print()
        return
    table = RichTable("published", "event day", "visible", "cause", "run", "snapshot", box=None, pad_edge=False)
    for publication in event.publications:
        record = publication.record
        accepted = f", accepted: {record.accepted_reason}" if record.accepted_reason else ""
        table.add_row(
            record.published_at[:19].replace("T", " "),
            record.key.event_date.isoformat(),
            publication.visible,
            f"{record.cause}{accepted}",
            record.run_id or "none",
            str(record.snapshot_id),
        )
    console.print(table)
    console.print()


def _print_quarantined(console: Console, explanation: Explanation) -> None:
    console.print(joined(styled(explanation.identifier, "bold"), ": not in raw; refused lines hold it"))
    table = RichTable("line", "arrived", "reason", "detail", "batch", box=None, pad_edge=False)
    for line in explanation.quarantined:
        where = "the whole object" if line.line_number is None else f"line {line.line_number}"
        table.add_row(
            f"{line.source} {line.object_key} {where}",
            line.arrival_date.isoformat(),
            line.reason,
            line.detail or "",
            "loaded without it" if line.is_batch_accepted else "refused",
        )
    console.print(table)
    if len(explanation.quarantined) == MAX_QUARANTINED:
        console.print(styled(f"Only the newest {MAX_QUARANTINED} are shown.", "yellow"))
