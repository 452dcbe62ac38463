"""Every bad delivery of intervals, as docs/bad-inputs.md shows it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest
from pipeline_assets.load.build.snapshot import judge_doubled, judge_history, judge_unread, with_trimmed
from pipeline_assets.load.build.validity import evaluate_overlaps
from pipeline_assets.load.staleness.as_of import news_of
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.transforms.snapshot_rows import HISTORY
from tests.support.bad_inputs import CORRECT, DAY, MAX_LINE_BYTES, NOTHING, Case, Fate, rows_of

SPANS = b"id,status,active_start_date,active_end_date\n"


def _history(body: bytes, suffix: str = ".csv") -> tuple[Fate, str, list[tuple[str, ...]]]:
    key = f"dimensions/item_validity/{DAY}{suffix}"
    rows, summary = rows_of(body, key, HISTORY)
    if summary["problem"] is not None:
        assert not rows, "what is refused has no rows"
        refused = judge_unread(key, summary["problem"], summary["detail"])
        assert not refused.is_passed
        return Fate.HISTORY_REFUSED, refused.reason or "", []
    staged = evaluate_overlaps(len(rows), 0)
    whole = with_trimmed(staged, key, summary["trimmed"], "intervals")
    told = [tuple(str(row[name]) for name in HISTORY.fields) for row in rows]
    return Fate.READ if whole.is_passed else Fate.HISTORY_REFUSED, whole.reason or "", sorted(told)


def _history_refused(name: str, lines: bytes, said: str, hint: str = CORRECT, head: bytes = SPANS) -> Case:
    return Case(name, Fate.HISTORY_REFUSED, said, hint, lambda _: _history(head + lines)[:2])


def _history_read(
    name: str, lines: bytes, keeps: str, *rows: tuple[str, ...], said: str = "", head: bytes = SPANS
) -> Case:
    def look(_: Path) -> tuple[Fate, str]:
        fate, told, found = _history(head + lines)
        assert found == sorted(rows)
        return fate, told

    return Case(name, Fate.READ, said, NOTHING, look, keeps)


def _counts_of_days(_: Path) -> tuple[Fate, str]:
    days = {date(2026, 2, 1): Digest(1000, 1, 1), DAY: Digest(1000, 1, 1)}
    found = judge_history("x.csv", {**days, DAY: Digest(480, 1, 1)}, days, Settings())
    assert judge_history("x.csv", days, days, Settings()) is None
    return Fate.READ if found is None else Fate.HISTORY_REFUSED, (found.reason or "") if found else ""


def _two_histories(_: Path) -> tuple[Fate, str]:
    found = judge_doubled("a.csv", "a.jsonl", DAY)
    return Fate.READ if found.is_passed else Fate.HISTORY_REFUSED, found.reason or ""


def _history_without_marker(_: Path) -> tuple[Fate, str]:
    settings = Settings(delivered_intervals=("item",))
    table, days = ITEM.validity, {DAY: SnapshotDelivery(f"dimensions/item_validity/{DAY}.csv", "v1", 9, False)}
    judged_by = judging(table, settings)
    due, waits = news_of(table, days, {}, judged_by, settings, datetime(2026, 2, 3, tzinfo=UTC))
    assert due is None
    assert news_of(table, days, {}, judged_by, settings, datetime(2026, 2, 20, tzinfo=UTC))[0] is not None, (
        "past its deadline no marker is awaited"
    )
    return Fate.HISTORY_WAITS, "; ".join(waits)


HISTORIES = [
    _history_refused("Zero bytes", b"", "is empty: not even a header is there", head=b""),
    _history_refused("A header and no interval", b"", "holds no interval"),
    _history_refused(
        "The header lacks `id`, `status`, `active_start_date` or `active_end_date`",
        b"1,A,2026-01-01\n",
        "the header names no column active_end_date",
        head=b"id,status,active_start_date\n",
    ),
    _history_refused("An id that is empty or blank", b" ,A,2026-01-01,\n", "line 2: id is empty"),
    _history_refused("A status that is empty or blank", b"1,,2026-01-01,\n", "line 2: status is empty or no text"),
    _history_refused("No first day", b"1,A,,\n", "active_start_date is empty"),
    _history_refused("A day that is none", b"1,A,2026-02-30,\n", "active_start_date '2026-02-30' is no day"),
    _history_refused(
        "A first day after the day of the delivery", b"1,A,2026-02-03,\n", "active_start_date 2026-02-03 lies after"
    ),
    _history_refused(
        "A last day before the first", b"1,A,2026-02-02,2026-02-01\n", "active_end_date 2026-02-01 lies before"
    ),
    _history_refused(
        "Two intervals of an id on one day",
        b"1,A,2026-01-01,2026-01-31\n1,B,2026-01-31,\n",
        "line 3: the interval of the id '1' overlaps with the one on line 2",
    ),
    _history_refused(
        "A line with more or fewer fields than the header", b"1,A,2026-01-01\n", "has 3 fields, and the header names 4"
    ),
    _history_refused("Invalid UTF-8", b"1,\xff,2026-01-01,\n", "line 2: is not UTF-8"),
    _history_refused(
        "A line, or a record of several, beyond `max_line_bytes`",
        b"1," + b"A" * MAX_LINE_BYTES + b",2026-01-01,\n",
        "TIDEMARK_MAX_LINE_BYTES allows",
        f"If it is genuine, raise `TIDEMARK_MAX_LINE_BYTES` and load the day again. {CORRECT}",
    ),
    _history_refused(
        "An object beyond `max_snapshot_bytes`",
        b"1,A,2026-01-01,2026-01-02\n" * 40_000,
        "TIDEMARK_MAX_SNAPSHOT_BYTES allows",
        f"If it is genuine, raise `TIDEMARK_MAX_SNAPSHOT_BYTES` and load the day again. {CORRECT}",
    ),
    Case(
        "Far fewer or far more items on a day than are published, or than on the day before",
        Fate.HISTORY_REFUSED,
        "52.0% fewer, and TIDEMARK_SNAPSHOT_MAX_SHRINK allows 10.0%",
        f"{CORRECT} Or accept the counts with a reason.",
        _counts_of_days,
    ),
    Case(
        "A `.csv` and a `.jsonl` as of one day",
        Fate.HISTORY_REFUSED,
        "are both the intervals as of 2026-02-02",
        "Remove one of them.",
        _two_histories,
    ),
    Case(
        "No marker yet, before the deadline",
        Fate.HISTORY_WAITS,
        "has no marker yet",
        "Nothing; the next load takes it up.",
        _history_without_marker,
    ),
    _history_read(
        "No last day, or one after the day of the delivery",
        b"1,A,2026-01-01,\n2,A,2026-01-01,9999-12-31\n",
        "up to the day of the delivery",
        ("1", "A", "2026-01-01", "2026-02-02", "None"),
        ("2", "A", "2026-01-01", "2026-02-02", "None"),
    ),
    _history_read(
        "Intervals that follow on each other and say the same",
        b"1,A,2026-02-01,\n1,A,2026-01-01,2026-01-31\n",
        "as one",
        ("1", "A", "2026-01-01", "2026-02-02", "None"),
    ),
    _history_read(
        "Days between two intervals of an id",
        b"1,A,2026-01-01,2026-01-30\n1,A,2026-02-01,\n",
        "there is no such item on them",
        ("1", "A", "2026-01-01", "2026-01-30", "None"),
        ("1", "A", "2026-02-01", "2026-02-02", "None"),
    ),
    _history_read(
        "White space around an id or a status",
        b" 1,A ,2026-01-01,\n",
        "without it, and the intervals are counted",
        ("1", "A", "2026-01-01", "2026-02-02", "None"),
        said="white space around id or status of 1 intervals is left out",
    ),
    _history_read(
        "Further columns",
        b"1,A,2026-01-01,,Bern\n",
        "in `attributes`",
        ("1", "A", "2026-01-01", "2026-02-02", '{"site":"Bern"}'),
        head=SPANS.replace(b"\n", b",site\n"),
    ),
]
