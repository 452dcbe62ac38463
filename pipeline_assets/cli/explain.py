"""`tidemark explain`: where a row came from, and why competing rows lost."""

from __future__ import annotations

from typing import Any

from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.run import open_runtime
from pipeline_assets.cli.terminal import Parts, line, page, plainly, show, stacked, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.identity import KeyKind, RankPart, RawRow, RowFate
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import Explain
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection import explain as inspection
from pipeline_assets.inspection.event_rows import MAX_QUARANTINED, MAX_ROWS, QuarantinedLine
from pipeline_assets.inspection.explain import Delivered, Event, Explanation, Published, Standing, place, spelled


def explain(request: Explain) -> int:
    """Print all that is known of an event."""
    settings = load_settings()
    first, last = request.bounds()
    projects = tuple(request.projects)
    with terminal() as console, open_runtime(settings, plainly(console)) as runtime:
        found = inspection.explain(runtime, request.identifier, projects=projects, first=first, last=last)
    if request.as_json:
        write_json(_to_json(found))
    else:
        show(page(), *_explained(found))
    return EXIT_OK if found.is_found else EXIT_INCOMPLETE


def _to_json(explanation: Explanation) -> dict[str, Any]:
    """Snapshot ids are text: they exceed the integers that JSON readers hold exactly."""
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
    row, defeat = delivered.row, delivered.defeat
    return {
        "outcome": delivered.outcome.value,
        "reason": delivered.reason,
        **_row_json(row),
        "etag": delivered.etag,
        "arrival_date": delivered.arrival_date.isoformat(),
        EVENT_TIME: spelled(delivered.event_time) if delivered.event_time else None,
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


def _explained(found: Explanation) -> Parts:
    """A part per event; without events, the refused lines that hold the identifier, or where it was searched."""
    for event in found.events:
        yield from _event(event)
    if found.is_cut:
        yield styled(f"Only the {MAX_ROWS:,} rows of highest rank were read; narrow it with --from and --to.", "yellow")
    if found.quarantined:
        yield from _quarantined(found)
    if not found.is_found:
        yield line(styled(found.identifier, "bold"), ": found nowhere")
        yield f"  searched: {found.searched}"
    for batch in found.not_in_raw:
        yield f"  not searched, because it is not in raw: {batch.key} is {batch.verdict.value}, {batch.reason}"
    for exclusion in found.excluded:
        yield f"  not searched, because it is excluded: {exclusion.object_key}, {exclusion.reason}"


def _event(event: Event) -> Parts:
    yield styled(event.title, "bold")
    yield styled(f"  {event.verdict}", "" if event.agrees else "yellow")
    for standing in event.standings:
        if standing.reason is not None:
            told = f"  {standing.key.event_date}: refined/events {standing.reason}. {standing.hint or ''}"
            yield styled(told, "yellow")
    yield ""
    rows: list[tuple[object, ...]] = []
    for one in event.deliveries:
        row, style = one.row, "green" if one.outcome is RowFate.WINNER else ""
        where = stacked(f"{row.source.value} {place(row)}", f"etag {one.etag}")
        processed = f"unreadable: {row.unread}" if row.unread else spelled(row.processed_at)
        times = one.arrival_date, row.event_date, spelled(row.received_at), processed
        rows.append((where, *times, row.row_id or "none", styled(one.reason, style)))
    if rows:
        titles = ("delivered as", "arrived", "event day", _RECEIVED, _PROCESSED, _IDENTITY.row_id, "outcome")
        yield Table(titles, rows)
        yield ""
    if not event.publications:
        yield styled("not published yet: no publication of its days is on record", "dim")
    rows = []
    for publication in event.publications:
        record = publication.record
        accepted = f", accepted: {record.accepted_reason}" if record.accepted_reason else ""
        when = record.published_at[:19].replace("T", " "), record.key.event_date
        cause = publication.visible, f"{record.cause}{accepted}"
        rows.append((*when, *cause, record.run_id or "none", str(record.snapshot_id)))
    yield Table(("published", "event day", "visible", "cause", "run", "snapshot"), rows)
    yield ""


def _quarantined(found: Explanation) -> Parts:
    yield line(styled(found.identifier, "bold"), ": not in raw; refused lines hold it")
    rows = []
    for one in found.quarantined:
        where = "the whole object" if one.line_number is None else f"line {one.line_number}"
        batch = "loaded without it" if one.is_batch_accepted else "refused"
        rows.append((f"{one.source} {one.object_key} {where}", one.arrival_date, one.reason, one.detail, batch))
    yield Table(("line", "arrived", "reason", "detail", "batch"), rows)
    if len(found.quarantined) == MAX_QUARANTINED:
        yield styled(f"Only the newest {MAX_QUARANTINED} are shown.", "yellow")
