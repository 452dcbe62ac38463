"""Audits staged slices of refined.events: measures them and reconciles them with raw."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline_assets.domain.checks import Check, Evaluation, number
from pipeline_assets.domain.identity import LOST_UNREAD, RowFate
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.load.build.builder import Audit
from pipeline_assets.load.file_tasks import FilesOfSlices, Place, each_of, each_range, files_of
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.raw_events import RAW_TABLES
from pipeline_assets.tables.refined_events import REFINED_EVENTS, event_hashes
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.keys import FIRST_HALF, KEY_TYPES, first_halves, keys_among, occurring_twice
from pipeline_assets.transforms.row_sums import RefinedSums, SummingRefined, Twice, keys_twice

_MOST_KEYS = 20_000_000
"""Up to this many rows of audited and nearby slices, the driver holds half a key of each, 8 bytes, and sorts them."""
_SECOND = 1_000_000
"""In microseconds."""
_TAMPERED = "Something else than Tidemark changed the file: docs/operations.md, A row that differs from its hash"
_DEFECT = "This is a defect of Tidemark: report it with the day's raw rows"


def raw_counts(runtime: Runtime, pins: Mapping[str, int], slices: Sequence[Slice]) -> dict[Slice, int]:
    """Rows per slice in both raw tables, from metadata, so that they do not depend on what the build read."""
    rows = dict.fromkeys(slices, 0)
    found = files_of(runtime, [Place(table, pins[table.key], frozenset(slices)) for table in RAW_TABLES.values()])
    for file in found.files:
        rows[file.key] += file.rows
    # Metadata does not tell which rows are hidden by another program's delete files.
    for key, count in each_of(runtime, replace(found, files=()), {"_line_number": "int"}, _row_count):
        rows[key] += count
    return rows


def _row_count(file: SliceFile, tables: Iterable[pa.Table]) -> tuple[Slice, int]:
    return file.key, sum(rows.num_rows for rows in tables)


def measure_refined(
    runtime: Runtime,
    snapshot_id: int,
    near: Mapping[int, Collection[Slice]],
    slices: Sequence[Slice],
    *,
    is_checked: bool,
) -> dict[Slice, Mapping[str, Any]]:
    """Slice -> its digest and figures, from the stored hashes of its rows, and its duplicate keys.

    `near`: snapshot -> the slices and neighbours whose present state it holds.
    `is_checked`: recompute every hash from its row. Tasks that write files themselves have already checked a sample.
    """
    audited = Place(REFINED_EVENTS, snapshot_id, frozenset(slices))
    others = [Place(REFINED_EVENTS, at, frozenset(keys) - audited.slices) for at, keys in near.items()]
    own = files_of(runtime, [audited])
    beside = files_of(runtime, [place for place in others if place.slices])
    are_few = own.rows + beside.rows <= _MOST_KEYS
    summing = SummingRefined(event_hashes() if is_checked else None, has_keys=are_few)
    measured = each_of(runtime, own, summing.types, summing)
    sums: dict[Slice, RefinedSums] = {}
    for one in measured:
        sums[one.key] = sums.get(one.key, RefinedSums()) + one.sums
    if are_few:
        halves = [*(one.keys for one in measured), *each_of(runtime, beside, FIRST_HALF, first_halves)]
        twice = _twice(runtime, [own, beside], halves)
    else:
        twice = _twice_by_ranges(runtime, [own, beside])
    return {key: _measures(one, twice.get(key, Twice())) for key, one in sums.items() if one.digest.rows}


def _measures(sums: RefinedSums, twice: Twice) -> dict[str, Any]:
    lag = None
    if sums.received is not None and sums.happened is not None:
        lag = sums.received // _SECOND - sums.happened // _SECOND
    return {**{field.name: getattr(sums, field.name) for field in fields(sums)}, **twice._asdict(), "lag": lag}


def _twice(runtime: Runtime, found: Sequence[FilesOfSlices], keys: Sequence[bytes]) -> dict[Slice, Twice]:
    """Rows that share a key, found by the first halves of all keys; second halves are read where one occurs twice."""
    suspected, _ = occurring_twice(keys)
    if not len(suspected):
        return {}
    among = partial(keys_among, suspected.tobytes())
    rows = [one for files in found for one in each_of(runtime, files, KEY_TYPES, among)]
    return keys_twice(rows, runtime.settings.dedupe_window_days)


def _twice_by_ranges(runtime: Runtime, found: Sequence[FilesOfSlices]) -> dict[Slice, Twice]:
    """The same, where one process should not hold all keys."""
    twice: dict[Slice, Twice] = {}
    window = runtime.settings.dedupe_window_days
    for part in each_range(runtime, found, lambda _, rows: keys_twice(rows, window)):
        for key, one in part.items():
            twice[key] = Twice(*map(sum, zip(twice.get(key, Twice()), one, strict=True)))
    return twice


def audit_of(
    row: Mapping[str, Any] | None, raw_rows: int, reasons: Mapping[str, int], competing_digests: str, wrong: str | None
) -> Audit:
    """The audit of one slice from its measurements.

    `row`: from `measure_refined`, None for a slice without rows; `reasons`: of `CompetingRows.reasons`; `wrong`: a mismatch
    that a task found in raw while it wrote the slice's files.
    """
    digest = row["digest"] if row is not None else EMPTY
    twice = row["keys_twice"] if row is not None else 0
    duplicates = {outcome.value: reasons.get(outcome.value, 0) for outcome in RowFate if outcome is not RowFate.WINNER}
    missing = raw_rows - digest.rows - sum(duplicates.values())
    others = row["false_hashes"] if row is not None else 0
    mismatches = [
        f"{raw_rows} raw rows but {digest.rows} rows and {sum(duplicates.values())} duplicates" if missing else None,
        f"{others} rows are not what raw holds: their hashes differ" if others else None,
        wrong,
    ]
    reason = "; ".join(filter(None, mismatches)) or None
    unique = Evaluation(
        Check.UNIQUE_EVENT_KEY,
        twice == 0,
        None if twice == 0 else f"{twice} rows share a key with another row",
        None if twice == 0 else "Recover the neighbouring day first; it still holds a row that moved here",
        {"duplicate_keys_per_1000": 1000 * twice / digest.rows if digest.rows else 0.0},
    )
    reconciles = Evaluation(
        Check.RECONCILES_WITH_RAW,
        reason is None,
        reason,
        reason and (_TAMPERED if wrong else _DEFECT),
        {"raw_rows": raw_rows, "mismatch_count": abs(missing) + others + (wrong is not None), **duplicates},
    )
    figures = {
        "rows": digest.rows,
        "raw_rows": raw_rows,
        **duplicates,
        **{
            name: row[name] if row is not None else 0 for name in ("rows_without_id", "rows_with_blank_id", "late_rows")
        },
        "watermark_lag_seconds": number(row["lag"]) if row is not None else 0,
        **{name: rows for name, rows in reasons.items() if name == LOST_UNREAD},
    }
    is_on_two_days = twice > 0 and row is not None and row["keys_twice_a_day"] == 0
    return Audit(digest, {"rows": digest.rows}, figures, (unique, reconciles), competing_digests, is_on_two_days)
