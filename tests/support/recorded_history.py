"""A ledger with history, written through its own code: good days, and one of each other kind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.records import (
    BatchDay,
    BatchRecord,
    DeliveryRecord,
    InputDay,
    InputState,
    PublicationRecord,
    SliceRecord,
)
from pipeline_assets.domain.slices import EMPTY, BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.tables.events import RAW_TABLES, REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES, DERIVED
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from resources.ledger.writing import LedgerWriting


def record_run(ledger: Ledger, run_id: str, **values: Any) -> None:
    """The row of a run, as its publish writes it."""
    with ledger.transaction() as connection:
        LedgerWriting(connection).record_run(run_id, values)


ROWS = 4_000
LATE_BY_DAYS = {0: 0.955, 1: 0.03, 2: 0.009, 3: 0.0035, 5: 0.0015, 9: 0.0007, 16: 0.0003}
"""Days from event to arrival -> share of rows: 99 % within two days, 99.9 % within nine."""
UNREADABLE = "unreadable objects: 1, first 10002/10002_x_11#1.json.gz: truncated_gzip"
UNREADABLE_HINT = "Have the vendor export that hour again"
SHRINKS = (
    "change_is_explained: final slice loses 25.0% of its 4000 keys: withdrawn 1000 (cause: changed raw/regular_events)"
)
SHRINKS_HINT = (
    "Correct the delivery, or accept the change with a reason (--accept-changes, accept_changes in run config)"
)
GONE = "deliveries missing from landing: 24, first 10001/10001_x_0#1.json.gz"
GONE_HINT = "A rewrite under way ends by itself: load again later. Else have the vendor export the day again"
HELD = "held: release 4.2 doubled purchases"


@dataclass(frozen=True)
class Incidents:
    """Days that are not good, counted back from the last one."""

    unreadable: tuple[int, ...] = (3,)
    """The second project's batch is refused, and its readers wait."""
    shrinks: tuple[int, ...] = (12,)
    """refined.events of the first project is refused."""
    gone: tuple[int, ...] = (21, 20)
    """Landing lost the first project's day."""
    held: tuple[int, ...] = (36, 35, 34)
    """All derived tables of the last project are held."""
    revised: tuple[int, ...] = (50, 49)
    """A recovery of the first project added rows long after the day was final."""


@dataclass
class _History:
    ledger: Ledger
    projects: Sequence[str]
    last: date
    objects: int
    random: random.Random
    incidents: Incidents
    snapshot: int = 0
    rows: dict[tuple[str, date], int] = field(default_factory=dict)


def record_history(
    ledger: Ledger,
    projects: Sequence[str],
    last: date,
    days: int,
    *,
    objects: int = 3,
    incidents: Incidents | None = None,
) -> None:
    """Record so many days up to `last`, one load a day, deterministic; `objects` a day and project."""
    history = _History(ledger, projects, last, objects, random.Random(7), incidents or Incidents())
    changes = Changes()
    for shift in reversed(range(days)):
        _add_day(history, changes, shift)
        if shift % 7 == 0:
            # A transaction for each day would take most of the time.
            ledger.record(changes, "history")
            changes = Changes()
    for shift in history.incidents.revised:
        if shift < days:
            _record_recovery(history, last - timedelta(days=shift))


def _add_day(history: _History, changes: Changes, shift: int) -> None:
    day = history.last - timedelta(days=shift)
    run, at = f"daily-{day}", datetime(day.year, day.month, day.day, 4, tzinfo=UTC) + timedelta(days=1)
    weekly = 0.7 if day.weekday() >= 5 else 1.0
    for number, project in enumerate(history.projects):
        rows = int(ROWS * weekly * (1 + 0.3 * number) * history.random.uniform(0.9, 1.1))
        history.rows[project, day] = rows
        _add_batch(history, changes, project, day, rows, shift)
        _add_slices(history, changes, project, day, rows, shift, at, run)
    _record_run(history, run, Source.REGULAR, day, at, history.random.uniform(40, 120))
    if shift % 9 == 4:
        seconds = history.random.choice((90, 110, 150, 240, 700)) * history.random.uniform(0.9, 1.1)
        _record_run(history, f"backfill-{day}", Source.BACKFILL, day, at + timedelta(hours=2), seconds)


def _record_run(history: _History, run: str, source: Source, day: date, at: datetime, seconds: float) -> None:
    tables = sorted([RAW_TABLES[source].key, *(table.key for table in DERIVED)])
    record_run(
        history.ledger, run, tables=tables, first_day=day, last_day=day, verdicts={}, snapshots={},
        started_at=at.isoformat(),
        finished_at=(at + timedelta(seconds=seconds)).isoformat(),
    )  # fmt: skip


def _add_batch(history: _History, changes: Changes, project: str, day: date, rows: int, shift: int) -> None:
    incidents, key = history.incidents, BatchKey(Source.REGULAR, project, day)
    is_unreadable = shift in incidents.unreadable and project == history.projects[min(1, len(history.projects) - 1)]
    is_gone = shift in incidents.gone and project == history.projects[0]
    refused = history.random.choice((0, 0, 0, 1, 4)) if shift % 5 else history.random.randint(0, 9)
    for number in range(history.objects):
        is_cut = is_unreadable and number == 0
        changes.deliveries.append(
            DeliveryRecord(
                key, f"{project}/{project}_{day}_{number % 24}#{number // 24 + 1}.json.gz", f"etag-{project}-{day}-{number}",
                18_000, "0" * 64, rows // history.objects, rows // history.objects, refused if number == 1 else 0, 0,
                "truncated_gzip" if is_cut else None, is_accepted=not is_cut, code_version="1-5ff16d3d",
            )
        )  # fmt: skip
    figures: dict[str, float] = {
        "objects": history.objects, "unreadable_objects": int(is_unreadable), "lines": rows, "rows": rows,
        "quarantined_lines": refused, "blank_lines": 0, "missing_objects": 24 if is_gone else 0, "mismatch_count": 0,
    }  # fmt: skip
    reason, hint = (UNREADABLE, UNREADABLE_HINT) if is_unreadable else (GONE, GONE_HINT) if is_gone else (None, None)
    verdict = BatchVerdict.REFUSED if reason else BatchVerdict.ACCEPTED
    reconciles = Evaluation(Check.DELIVERY_RECONCILES, reason is None, reason, hint, figures)
    complete = Evaluation(Check.DELIVERY_COMPLETE, True, figures={"hours_marked": 24, "hours_delivered": 24})
    changes.batches.append(
        BatchRecord(
            key, verdict, reason, hint, f"state-{day}", history.objects, 24, 24, is_closed=True,
            evaluations=(reconciles, complete), hours=tuple(range(24)),
        )
    )  # fmt: skip
    changes.batch_days[key] = {
        day - timedelta(days=late): BatchDay(Digest(max(1, int(rows * share)), late + 1, 5), None)
        for late, share in LATE_BY_DAYS.items()
    }


def _add_slices(
    history: _History, changes: Changes, project: str, day: date, rows: int, shift: int, at: datetime, run: str
) -> None:
    key, incidents, raw = Slice(day, project), history.incidents, RAW_TABLES[Source.REGULAR].key
    digest = Digest(rows, 31 * day.toordinal() + int(project), 17)
    changes.slices.append(
        SliceRecord(raw, key, Verdict.PUBLISHED, digest=digest, file_hash="f", figures={"rows": rows})
    )
    for table in DERIVED:
        record = _good_slice(history, table.key, key, digest, at)
        changes.slices.append(_with_incident(history, record, project, shift, incidents))
        history.snapshot += 1
        changes.publications.append(
            PublicationRecord(
                table.key, key, history.snapshot, history.snapshot - 1, EMPTY, record.digest,
                Cause.of(CauseKind.FIRST_BUILD), run,
                input_state=record.input_state, code_version="2-44136fa3", figures=record.figures, seconds=2.5,
                published_at=at.isoformat(),
            )
        )  # fmt: skip


def _good_slice(history: _History, table: str, key: Slice, digest: Digest, at: datetime) -> SliceRecord:
    rows, is_refined = digest.rows, table == REFINED_EVENTS.key
    figures: dict[str, float] = {"rows": rows, "events": rows}
    checks = [Evaluation(Check.RECONCILES_WITH_REFINED, True, figures={"mismatch_count": 0, "events_in_refined": rows})]
    if is_refined:
        removed = int(rows * history.random.uniform(0.01, 0.02))
        figures = {
            "rows": rows, "raw_rows": rows + removed, "delivery_duplicate": removed, "send_duplicate": 0,
            "superseded_by_other_day": 0, "rows_without_id": 0, "rows_with_blank_id": 0,
            "late_rows": int(rows * history.random.uniform(0.03, 0.06)),
            "watermark_lag_seconds": history.random.uniform(20, 60) * 3600,
        }  # fmt: skip
        checks = [
            Evaluation(Check.UNIQUE_EVENT_KEY, True, figures={"duplicate_keys_per_1000": 0.0}),
            Evaluation(Check.RECONCILES_WITH_RAW, True, figures={"raw_rows": rows + removed, "mismatch_count": 0}),
        ]
    content = digest if is_refined else replace(digest, rows=7)
    explained = Evaluation(Check.CHANGE_IS_EXPLAINED, True, figures={"rows_after": rows})
    return SliceRecord(
        table, key, Verdict.PUBLISHED, is_final=True, final_at=at.isoformat(), digest=content, file_hash="f",
        input_state=InputState({InputDay(RAW_TABLES[Source.REGULAR].key, key.event_date): digest}), code_version="2-44136fa3",
        figures=figures, evaluations=(*checks, explained),
    )  # fmt: skip


def _with_incident(
    history: _History, record: SliceRecord, project: str, shift: int, incidents: Incidents
) -> SliceRecord:
    first, second, last = history.projects[0], history.projects[min(1, len(history.projects) - 1)], history.projects[-1]
    if shift in incidents.held and project == last:
        return replace(
            record, verdict=Verdict.HELD, reason=HELD, hint="Release it when the rollback has served its purpose"
        )
    waits = "It follows as soon as what it waits for is published; recover that first"
    if shift in incidents.unreadable and project == second:
        return replace(
            record, verdict=Verdict.WAITING, reason=f"raw/regular_events {record.key} is refused", hint=waits
        )
    if shift in incidents.shrinks and project == first:
        if record.table != REFINED_EVENTS.key:
            return replace(
                record, verdict=Verdict.WAITING, reason=f"refined/events {record.key} is refused", hint=waits
            )
        change = Evaluation(Check.CHANGE_IS_EXPLAINED, False, SHRINKS.partition(": ")[2], SHRINKS_HINT)
        return replace(
            record, verdict=Verdict.REFUSED, reason=SHRINKS, hint=SHRINKS_HINT, refused_evaluations=(change,)
        )
    return record


def _record_recovery(history: _History, day: date) -> None:
    project = history.projects[0]
    at = datetime(history.last.year, history.last.month, history.last.day, 9, tzinfo=UTC) - timedelta(days=15)
    key, run, changes = Slice(day, project), f"recovery-{day}", Changes()
    rows = history.rows[project, day]
    for table in DERIVED:
        prior = history.ledger.slices(table.key, [project], [day])[key]
        is_aggregate = table in AGGREGATES
        digest = replace(prior.digest, sum_b=99) if is_aggregate else Digest(rows + 40, 5, 99)
        figures = {**prior.figures, "events": rows + 40} if is_aggregate else {**prior.figures, "rows": rows + 40}
        changes.slices.append(replace(prior, digest=digest, figures=figures))
        history.snapshot += 1
        changes.publications.append(
            PublicationRecord(
                table.key, key, history.snapshot, history.snapshot - 1, prior.digest, digest,
                Cause.of(CauseKind.INPUTS, "refined/events" if is_aggregate else "raw/backfill_events"), run,
                accepted_reason=None if is_aggregate else "the vendor exported hour 17 again", figures=figures,
                published_at=at.isoformat(),
            )
        )  # fmt: skip
    history.ledger.record(changes, run)
    _record_run(history, run, Source.BACKFILL, day, at, 95)
