"""Rows to objects: hourly files, shards, markers, bad and blank lines; the regular export and a recovery of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from sample_export.account import ExportAccount
from sample_export.events import BACKFILL, REGULAR, Copy, SampleEvent, events_of
from sample_export.recovery import recovered_copies
from sample_export.spec import ExportSpec, Recovery

_BAD_LINES = (b'{"$insert_id": "cut', b'{"event_type": "no time", "app": null}', b"[1, 2]")
_BLANK_LINES = (b"", b"   ", b"\t\r")
_RECOVERY_SHARDS = (5,)


@dataclass(frozen=True)
class ExportedObject:
    """One object to put into landing."""

    key: str
    body: bytes


def write_export(spec: ExportSpec, root: Path) -> ExportAccount:
    """Write the regular export below a local folder; returns what it holds."""
    account = ExportAccount()
    _write(iter_export(spec, account), root)
    return account


def write_recovery(
    spec: ExportSpec, root: Path, first_day: date, last_day: date, *, corrected_share: float = 0.0
) -> ExportAccount:
    """Write a recovery of some arrival days to the backfill prefix; returns what it holds on its own.

    What both exports hold together is told by `account_of`.
    """
    account = ExportAccount()
    recovery = Recovery(first_day=first_day, last_day=last_day, corrected_share=corrected_share)
    _write(_iter_recovery(spec, recovery, account), root)
    return account


def account_of(spec: ExportSpec, recovery: Recovery | None = None) -> ExportAccount:
    """What the regular export and a recovery of it hold together; nothing is written.

    Not the sum of two accounts: a recovered row is a copy of what the regular export may already hold.
    """
    account = ExportAccount()
    recovered = recovery.arrival_days(spec) if recovery is not None else ()

    def copies_of(event: SampleEvent) -> list[Copy]:
        copies = _regular_copies(event)
        return copies if recovery is None else [*copies, *recovered_copies(spec, recovery, event)]

    for project in spec.projects:
        for day, _ in _arrivals(spec, project, spec.arrival_days, copies_of, account):
            _count_odd_lines(spec, account, REGULAR, project, day)
            if day in recovered:
                _count_odd_lines(spec, account, BACKFILL, project, day)
    return account


def iter_export(spec: ExportSpec, account: ExportAccount) -> Iterator[ExportedObject]:
    """The objects of the regular export, project by project and day by day; `account` is filled on the way."""
    shards = [1 + 3 * number for number in range(spec.shards)]  # neither contiguous nor from 0
    for project in spec.projects:
        for day, copies in _arrivals(spec, project, spec.arrival_days, _regular_copies, account):
            yield from _objects(spec, project, day, copies, account, source=REGULAR, shards=shards)


def _iter_recovery(spec: ExportSpec, recovery: Recovery, account: ExportAccount) -> Iterator[ExportedObject]:
    def copies_of(event: SampleEvent) -> list[Copy]:
        return recovered_copies(spec, recovery, event)

    for project in spec.projects:
        for day, copies in _arrivals(spec, project, recovery.arrival_days(spec), copies_of, account):
            yield from _objects(spec, project, day, copies, account, source=BACKFILL, shards=_RECOVERY_SHARDS)


def _regular_copies(event: SampleEvent) -> list[Copy]:
    return [] if event.is_lost else event.copies


def _arrivals(
    spec: ExportSpec,
    project: str,
    days: Sequence[date],
    copies_of: Callable[[SampleEvent], list[Copy]],
    account: ExportAccount,
) -> Iterator[tuple[date, list[Copy]]]:
    """Each arrival day with the copies on it; counts the events of which any copy is on one of the days."""
    wanted = frozenset(days)
    carried: list[Copy] = []
    # The day before the first is no part of the export, but what arrives again after midnight is.
    for day in (days[0] - timedelta(days=1), *days) if days else ():
        today, tomorrow = carried, list[Copy]()
        for event in events_of(spec, project, day, only_next_day=day not in wanted):
            copies = [copy for copy in copies_of(event) if copy.day in wanted]
            account.add(project, event, copies)
            account.lost_events += day in wanted and not copies
            for copy in copies:
                (today if copy.day == day else tomorrow).append(copy)
        if day in wanted:
            yield day, today
        carried = tomorrow


def _objects(
    spec: ExportSpec,
    project: str,
    day: date,
    copies: Sequence[Copy],
    account: ExportAccount,
    *,
    source: str,
    shards: Sequence[int],
) -> Iterator[ExportedObject]:
    prefix = project if source == REGULAR else f"{project}-backfill"
    lines: dict[tuple[int, int], list[bytes]] = {(hour, shard): [] for hour in spec.hours for shard in shards}
    for copy in copies:
        shard = shards[copy.place % len(shards)]
        lines[copy.hour, shard].append(json.dumps(copy.send.row, ensure_ascii=False).encode())
    # An object without a whole line is no export, and would refuse its day.
    hours = [hour for hour in spec.hours if lines[hour, shards[0]]] or spec.hours
    for number in range(spec.bad_lines_per_day):
        target = lines[hours[number % len(hours)], shards[0]]
        target.insert(len(target) // 2, _BAD_LINES[number % len(_BAD_LINES)])
    for number in range(spec.blank_lines_per_day):
        target = lines[spec.hours[-1 - number % len(spec.hours)], shards[-1]]
        target.insert(len(target) // 2, _BLANK_LINES[number % len(_BLANK_LINES)])
    _count_odd_lines(spec, account, source, project, day)
    for (hour, shard), own in sorted(lines.items()):
        if not own and len(shards) > 1:
            continue  # the vendor writes no empty shards
        account.objects += 1
        body = gzip.compress(b"".join(line + b"\n" for line in own), spec.compression_level, mtime=0)
        yield ExportedObject(f"{prefix}/{prefix}_{day.isoformat()}_{hour}#{shard}.json.gz", body)
    if spec.has_markers:
        for hour in range(24):
            yield ExportedObject(f"{prefix}/{prefix}_{day.isoformat()}_{hour}_complete", b"")


def _count_odd_lines(spec: ExportSpec, account: ExportAccount, source: str, project: str, day: date) -> None:
    counts = account.arrivals[source, project, day]
    counts.quarantined += spec.bad_lines_per_day
    counts.blank += spec.blank_lines_per_day


def _write(objects: Iterator[ExportedObject], root: Path) -> None:
    for exported in objects:
        path = root / exported.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(exported.body)
