"""`tidemark explain`: where a row came from, and why competing rows lost."""

from __future__ import annotations

from typing import Any

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.run import open_runtime
from pipeline_assets.config import load_settings
from pipeline_assets.domain.identity import KeyKind, RankPart, RawRow, RowFate
from pipeline_assets.domain.requests import Explain, Table
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection import explain as inspection
from pipeline_assets.inspection.explain import MAX_QUARANTINED, MAX_ROWS, Delivered, Event, Explanation, place, spelled


def explain(request: Explain) -> int:
    """Print all that is known of an event."""
    settings = load_settings()
    first, last = request.bounds()
    projects = tuple(request.projects)
    with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
        found = inspection.explain(runtime, request.identifier, projects=projects, first=first, last=last)
    ui.answer(request, _to_json(found), _explained(found))
    return EXIT_OK if found.is_found else EXIT_INCOMPLETE


_IDENTITY = EXPORT_FORMAT.identity
_KEY_NAMES = {KeyKind.SEND_ID: (*_IDENTITY.sender, _IDENTITY.send_id), KeyKind.ROW_ID: (_IDENTITY.row_id,)}
_RECEIVED, _PROCESSED = EXPORT_FORMAT.rank_columns
_RANK_COLUMNS = {RankPart.RECEIVED_AT: _RECEIVED, RankPart.PROCESSED_AT: _PROCESSED}


def _to_json(found: Explanation) -> dict[str, Any]:
    return {
        **ui.members(found, "identifier", "is_found", "searched", "is_cut"),
        "events": [_event_json(event) for event in found.events],
        "quarantined": [vars(one) for one in found.quarantined],
        "batches_not_in_raw": [batch.key for batch in found.not_in_raw],
        "deliveries_excluded": [exclusion.object_key for exclusion in found.excluded],
    }


def _event_json(event: Event) -> dict[str, Any]:
    """Snapshot ids are text: they exceed the integers that JSON readers hold exactly."""
    record = {"event_date": "key.event_date", "cause": "cause.text"}
    publications = [
        ui.members(one.record, "published_at", "accepted_reason", "run_id", **record)
        | {"snapshot_id": str(one.record.snapshot_id), "visible": one.visible}
        | {"rows": None if one.rows is None else [_row_json(row) for row in one.rows]}
        for one in event.publications
    ]
    standings = [
        ui.members(one, "agrees", "is_stale", "reason", event_date="key.event_date", cure="hint")
        | {"verdict": one.record and one.record.verdict}
        | {"expected": [_row_json(row) for row in one.expected], "live": [_row_json(row) for row in one.live]}
        for one in event.standings
    ]
    return ui.members(event, "project_id", "verdict", "agrees") | {
        "key": dict(zip(_KEY_NAMES[KeyKind(str(event.key[1]))], event.key[2:], strict=True)),
        "deliveries": [_delivered_json(delivered) for delivered in event.deliveries],
        "publications": publications,
        "standings": standings,
    }


def _delivered_json(one: Delivered) -> dict[str, Any]:
    row, defeat = one.row, one.defeat
    times = {EVENT_TIME: one.event_time, _RECEIVED: row.received_at, _PROCESSED: row.processed_at}
    return {
        **ui.members(one, "outcome", "reason", "etag", "arrival_date"),
        **_row_json(row),
        **{name: spelled(at) if at else None for name, at in times.items()},
        f"{_PROCESSED}_unread": row.unread,
        "beaten_by": defeat and _row_json(defeat.by),
        "decided_by": defeat and _RANK_COLUMNS.get(defeat.part, defeat.part),
    }


def _row_json(row: RawRow) -> dict[str, Any]:
    return ui.members(row, "source", "object_key", "line_number", "event_date") | {_IDENTITY.row_id: row.row_id}


def _explained(found: Explanation) -> ui.Parts:
    """A part per event; without events, the refused lines that hold the identifier, or where it was searched."""
    for event in found.events:
        yield from _event(event)
    if found.is_cut:
        yield ui.styled(
            f"Only the {MAX_ROWS:,} rows of highest rank were read; narrow it with --from and --to.", "yellow"
        )
    if found.quarantined:
        yield from _quarantined(found)
    if not found.is_found:
        yield ui.line(ui.styled(found.identifier, "bold"), ": found nowhere")
        yield f"  searched: {found.searched}"
    for batch in found.not_in_raw:
        yield f"  not searched, because it is not in raw: {batch.key} is {batch.verdict.value}, {batch.reason}"
    for exclusion in found.excluded:
        yield f"  not searched, because it is excluded: {exclusion.object_key}, {exclusion.reason}"


def _event(event: Event) -> ui.Parts:
    yield ui.styled(event.title, "bold")
    yield ui.styled(f"  {event.verdict}", "" if event.agrees else "yellow")
    for standing in event.standings:
        if standing.reason is not None:
            line = f"  {standing.key.event_date}: refined/events {standing.reason}. {standing.hint or ''}"
            yield ui.styled(line, "yellow")
    yield ""
    rows: list[tuple[object, ...]] = []
    for one in event.deliveries:
        row, style = one.row, "green" if one.outcome is RowFate.WINNER else ""
        where = ui.stacked(f"{row.source.value} {place(row)}", f"etag {one.etag}")
        processed = f"unreadable: {row.unread}" if row.unread else spelled(row.processed_at)
        times = one.arrival_date, row.event_date, spelled(row.received_at), processed
        rows.append((where, *times, row.row_id or "none", ui.styled(one.reason, style)))
    if rows:
        titles = ("delivered as", "arrived", "event day", _RECEIVED, _PROCESSED, _IDENTITY.row_id, "outcome")
        yield Table(titles, rows)
        yield ""
    if not event.publications:
        yield ui.styled("not published yet: no publication of its days is on record", "dim")
    rows = []
    for publication in event.publications:
        record = publication.record
        accepted = f", accepted: {record.accepted_reason}" if record.accepted_reason else ""
        when = record.published_at[:19].replace("T", " "), record.key.event_date
        cause = publication.visible, f"{record.cause}{accepted}"
        rows.append((*when, *cause, record.run_id or "none", str(record.snapshot_id)))
    yield Table(("published", "event day", "visible", "cause", "run", "snapshot"), rows)
    yield ""


def _quarantined(found: Explanation) -> ui.Parts:
    yield ui.line(ui.styled(found.identifier, "bold"), ": not in raw; refused lines hold it")
    rows = []
    for one in found.quarantined:
        where = "the whole object" if one.line_number is None else f"line {one.line_number}"
        batch = "loaded without it" if one.is_batch_accepted else "refused"
        rows.append((f"{one.source} {one.object_key} {where}", one.arrival_date, one.reason, one.detail, batch))
    yield Table(("line", "arrived", "reason", "detail", "batch"), rows)
    if len(found.quarantined) == MAX_QUARANTINED:
        yield ui.styled(f"Only the newest {MAX_QUARANTINED} are shown.", "yellow")
