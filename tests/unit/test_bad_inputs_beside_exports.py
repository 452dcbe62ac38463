"""Every bad snapshot, history of intervals and file of golden totals ends as docs/bad-inputs.md says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline_assets.domain.checks import Evaluation
from pipeline_assets.domain.deliveries import SnapshotDelivery
from pipeline_assets.domain.golden import MOST_BYTES
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import EMPTY, Digest
from pipeline_assets.load.build import snapshot
from pipeline_assets.load.build.validity import evaluate_overlaps
from pipeline_assets.load.deliveries.snapshots import list_snapshots
from pipeline_assets.load.golden import golden_names, read_landing
from pipeline_assets.load.staleness.as_of import news_of
from pipeline_assets.load.staleness.decide import Todo
from pipeline_assets.load.staleness.facts import judging
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.transforms.snapshot_rows import HISTORY, SNAPSHOT, ObjectKind, SnapshotWork
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT
from tests.support.read_objects import Objects
from tests.unit.load.test_dimension_days import EARLY, LATE, listed, of_snapshot

DOCUMENT = PROJECT_ROOT / "docs" / "bad-inputs.md"
DAY = date(2026, 2, 2)
MAX_BYTES, MAX_LINE_BYTES = 400_000, 200_000
NOTHING = "Nothing."
CORRECT = "Put a corrected object on the same name; every load notices it."
RAISE_LINE = f"If it is genuine, raise `TIDEMARK_MAX_LINE_BYTES` and load the day again. {CORRECT}"
RAISE_SNAPSHOT = RAISE_LINE.replace("LINE_BYTES", "SNAPSHOT_BYTES")
HEAD, GOLDEN_HEAD = b"id,name,status\n", b"day,project,measure,value\n"
GOOD, GOOD_TOTAL = b"1,a,ACTIVE\n", f"{DAY},{PROJECT},rows,60\n".encode()
CORRECT_FILE = "Correct the file; the next load of the day, or `tidemark reconcile`, reads it again."


class Fate(StrEnum):
    READ = "read"
    REFUSED = "refused whole, the day keeps its old state"
    NOT_LOADED = "not loaded; the run's log names it"
    WAITS = "waits, the day keeps its old state"
    HISTORY_REFUSED = "refused whole, all that is published stays"
    HISTORY_WAITS = "waits, all that is published stays"
    COMPARED = "compared"
    PARTLY = "named; the lines beside it are compared, and it retracts nothing"
    NOT_COMPARED = "named; nothing of it is compared, and it retracts nothing"


@dataclass(frozen=True)
class Case:
    """One row; `look` gives the fate and its text."""

    name: str
    fate: Fate
    said: str
    """Part of the text; empty where there is none."""
    hint: str
    look: Callable[[Path], tuple[Fate, str]]
    keeps: str = ""

    @property
    def row(self) -> str:
        said = f"`{self.said}`" if self.said else "–"
        fate = f"{self.fate}: {self.keeps}" if self.keeps else self.fate
        return f"| {' | '.join((self.name, fate, said, self.hint))} |"


def rows_of(body: bytes, key: str, kind: ObjectKind) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of an object of `DAY`, and its summary."""
    place = {"day": DAY, "key": key, "etag": "v1", "size_bytes": len(body)}
    work = SnapshotWork(Objects({key: body}), kind, MAX_BYTES, MAX_LINE_BYTES)
    *rows, summary = [row for batch in work([pa.RecordBatch.from_pylist([place])]) for row in batch.to_pylist()]
    return rows, summary


def _ended(found: Evaluation, refused: Fate = Fate.REFUSED) -> tuple[Fate, str]:
    return Fate.READ if found.is_passed else refused, found.reason or ""


def _read(body: bytes, suffix: str) -> tuple[Fate, str]:
    key = f"dimensions/item/{DAY}{suffix}"
    rows, summary = rows_of(body, key, SNAPSHOT)
    whole = snapshot.judge_whole(key, summary, len(rows), len({row["id"] for row in rows}))
    assert whole.is_passed is bool(rows), "what is refused has no rows, what is read has all"
    return _ended(whole)


def _read_as(name: str, body: bytes, keeps: str, said: str = "", suffix: str = ".csv") -> Case:
    return Case(name, Fate.READ, said, NOTHING, lambda _: _read(body, suffix), keeps)


def _refused(name: str, body: bytes, said: str, hint: str = CORRECT, suffix: str = ".csv") -> Case:
    return Case(name, Fate.REFUSED, said, hint, lambda _: _read(body, suffix))


def _count(_: Path) -> tuple[Fate, str]:
    counts = {date(2026, 2, 1): 1000}
    nothing = {"published": EMPTY, "accepted": None, "accepted_before": lambda: None}
    found = snapshot.judge_count(DAY, Digest(480, 1, 1), counts, Settings(), **nothing)
    return _ended(found)


def _two_objects(_: Path) -> tuple[Fate, str]:
    plan = of_snapshot(None, listed(others=("dimensions/item/2026-02-04.jsonl v1",)), LATE)
    assert plan is not None
    return {Todo.REFUSE: Fate.REFUSED}[plan.todo], plan.reason or ""


def _no_marker(_: Path) -> tuple[Fate, str]:
    plan = of_snapshot(None, listed(is_marked=False), EARLY)
    assert plan is not None
    return {Todo.WAIT: Fate.WAITS}[plan.todo], plan.reason or ""


def _odd_name(home: Path) -> tuple[Fate, str]:
    (home / "dimensions" / "item").mkdir(parents=True)
    (home / "dimensions" / "item" / f"{DAY}.csv.gz").touch()
    found = list_snapshots(LandingStore.from_settings(Settings(landing_url=str(home))), "item")
    assert not found.days
    return Fate.NOT_LOADED, "; ".join(found.odd)


SNAPSHOTS = [
    _refused("Zero bytes", b"", "is empty: not even a header is there"),
    _refused("A header and no item", HEAD, "holds no item"),
    _refused("The header lacks `id`, `name` or `status`", b"id,name\n1,a\n", "the header names no column status"),
    _refused("A column twice in the header", b"id,name,status,id\n1,a,A,1\n", "the header names the column 'id' twice"),
    _refused("An id twice", HEAD + GOOD + GOOD, "the id '1' is already on line 2"),
    _refused("An id that is empty or blank", HEAD + GOOD + b" ,b,ACTIVE\n", "line 3: id is empty"),
    _refused("A status that is empty or blank", HEAD + GOOD + b"2,b,\n", "status is empty or no text"),
    _refused("A line with more or fewer fields than the header", HEAD + b"1,a\n",
        "has 2 fields, and the header names 3"),
    _refused("A quote that is not closed", HEAD + GOOD + b'2,"b,A\n', "line 3: a quote is not closed"),
    _refused("Invalid UTF-8", HEAD + b"1,\xff,ACTIVE\n", "line 2: is not UTF-8"),
    _refused("JSON that is cut off", b'{"id":1,"na', "line 1: is not whole JSON", suffix=".jsonl"),
    _refused("An id that is neither text nor a whole number", b'{"id":1.5,"name":"a","status":"A"}',
        "id is neither text nor a whole number", suffix=".jsonl"),
    _refused("A line, or a record of several, beyond `max_line_bytes`", b'{"id":1,"name":"' + b"n" * MAX_LINE_BYTES,
        "TIDEMARK_MAX_LINE_BYTES allows",
        RAISE_LINE, suffix=".jsonl"),
    _refused("A CSV field of more than 131,072 characters", HEAD + b"1," + b"n" * 140_000 + b",ACTIVE\n",
        "a field has more than 131,072 characters, or a quote is not closed"),
    _refused("An object beyond `max_snapshot_bytes`", HEAD + b"1,a,ACTIVE\n" * 40_000,
        "TIDEMARK_MAX_SNAPSHOT_BYTES allows", RAISE_SNAPSHOT),
    Case("Far fewer or far more items than before", Fate.REFUSED,
        "52.0% fewer, and TIDEMARK_SNAPSHOT_MAX_SHRINK allows 10.0%", f"{CORRECT} Or accept the count with a reason.",
        _count),
    Case("A `.csv` and a `.jsonl` of one day", Fate.REFUSED, "are both the snapshot of 2026-02-04",
        "Remove one of them.", _two_objects),
    Case("No marker yet, before the deadline", Fate.WAITS, "has no marker yet", "Nothing; the next load takes it up.",
        _no_marker),
    Case("Another name", Fate.NOT_LOADED, "is called neither DAY.csv, DAY.jsonl nor DAY_complete",
        "If it is a snapshot, give it the day's name.", _odd_name),
    _read_as("White space around an id or a status", HEAD + b" 1,a,ACTIVE \n", "without it, and the items are counted",
        "white space around id or status of 1 items is left out"),
    _read_as("White space around any other text", HEAD + b"1, a ,ACTIVE\n", "as it is spelled"),
    _read_as("Blank lines, CR LF, a byte order mark", b"\xef\xbb\xbf" + HEAD + b"\r\n1,a,ACTIVE\r\n\r\n",
        "without them"),
    _read_as("A name that is empty or null", b'{"id":1,"name":null,"status":"A"}\n', "as it is", suffix=".jsonl"),
    _read_as("A name that is no text", b'{"id":1,"name":7,"status":"A"}\n', "its JSON text", suffix=".jsonl"),
    _read_as("Further columns", b"id,name,status,city\n1,a,ACTIVE,Bern\n", "in `attributes`"),
]  # fmt: skip


SPANS = b"id,status,active_start_date,active_end_date\n"


def _history(body: bytes, suffix: str = ".csv") -> tuple[Fate, str, list[tuple[str, ...]]]:
    key = f"dimensions/item_validity/{DAY}{suffix}"
    rows, summary = rows_of(body, key, HISTORY)
    if summary["problem"] is not None:
        assert not rows, "what is refused has no rows"
        return *_ended(snapshot.judge_unread(key, summary["problem"], summary["detail"]), Fate.HISTORY_REFUSED), []
    staged = evaluate_overlaps(len(rows), 0)
    whole = snapshot.with_trimmed(staged, key, summary["trimmed"], "intervals")
    told = [tuple(str(row[name]) for name in HISTORY.fields) for row in rows]
    return *_ended(whole, Fate.HISTORY_REFUSED), sorted(told)


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
    found = snapshot.judge_history("x.csv", {**days, DAY: Digest(480, 1, 1)}, days, Settings())
    assert snapshot.judge_history("x.csv", days, days, Settings()) is None
    return Fate.READ if found is None else Fate.HISTORY_REFUSED, (found.reason or "") if found else ""


def _two_histories(_: Path) -> tuple[Fate, str]:
    return _ended(snapshot.judge_doubled("a.csv", "a.jsonl", DAY), Fate.HISTORY_REFUSED)


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
    _history_refused("The header lacks `id`, `status`, `active_start_date` or `active_end_date`", b"1,A,2026-01-01\n",
        "the header names no column active_end_date", head=b"id,status,active_start_date\n"),
    _history_refused("An id that is empty or blank", b" ,A,2026-01-01,\n", "line 2: id is empty"),
    _history_refused("A status that is empty or blank", b"1,,2026-01-01,\n", "line 2: status is empty or no text"),
    _history_refused("No first day", b"1,A,,\n", "active_start_date is empty"),
    _history_refused("A day that is none", b"1,A,2026-02-30,\n", "active_start_date '2026-02-30' is no day"),
    _history_refused("A first day after the day of the delivery", b"1,A,2026-02-03,\n",
        "active_start_date 2026-02-03 lies after"),
    _history_refused("A last day before the first", b"1,A,2026-02-02,2026-02-01\n",
        "active_end_date 2026-02-01 lies before"),
    _history_refused("Two intervals of an id on one day", b"1,A,2026-01-01,2026-01-31\n1,B,2026-01-31,\n",
        "line 3: the interval of the id '1' overlaps with the one on line 2"),
    _history_refused("A line with more or fewer fields than the header", b"1,A,2026-01-01\n",
        "has 3 fields, and the header names 4"),
    _history_refused("Invalid UTF-8", b"1,\xff,2026-01-01,\n", "line 2: is not UTF-8"),
    _history_refused("A line, or a record of several, beyond `max_line_bytes`",
        b"1," + b"A" * MAX_LINE_BYTES + b",2026-01-01,\n", "TIDEMARK_MAX_LINE_BYTES allows", RAISE_LINE),
    _history_refused("An object beyond `max_snapshot_bytes`", b"1,A,2026-01-01,2026-01-02\n" * 40_000,
        "TIDEMARK_MAX_SNAPSHOT_BYTES allows", RAISE_SNAPSHOT),
    Case("Far fewer or far more items on a day than are published, or than on the day before", Fate.HISTORY_REFUSED,
        "52.0% fewer, and TIDEMARK_SNAPSHOT_MAX_SHRINK allows 10.0%", f"{CORRECT} Or accept the counts with a reason.",
        _counts_of_days),
    Case("A `.csv` and a `.jsonl` as of one day", Fate.HISTORY_REFUSED, "are both the intervals as of 2026-02-02",
        "Remove one of them.", _two_histories),
    Case("No marker yet, before the deadline", Fate.HISTORY_WAITS, "has no marker yet",
        "Nothing; the next load takes it up.", _history_without_marker),
    _history_read("No last day, or one after the day of the delivery",
        b"1,A,2026-01-01,\n2,A,2026-01-01,9999-12-31\n", "up to the day of the delivery",
        ("1", "A", "2026-01-01", "2026-02-02", "None"), ("2", "A", "2026-01-01", "2026-02-02", "None")),
    _history_read("Intervals that follow on each other and say the same", b"1,A,2026-02-01,\n1,A,2026-01-01,2026-01-31\n",
        "as one", ("1", "A", "2026-01-01", "2026-02-02", "None")),
    _history_read("Days between two intervals of an id", b"1,A,2026-01-01,2026-01-30\n1,A,2026-02-01,\n",
        "there is no such item on them", ("1", "A", "2026-01-01", "2026-01-30", "None"),
        ("1", "A", "2026-02-01", "2026-02-02", "None")),
    _history_read("White space around an id or a status", b" 1,A ,2026-01-01,\n",
        "without it, and the intervals are counted", ("1", "A", "2026-01-01", "2026-02-02", "None"),
        said="white space around id or status of 1 intervals is left out"),
    _history_read("Further columns", b"1,A,2026-01-01,,Bern\n", "in `attributes`",
        ("1", "A", "2026-01-01", "2026-02-02", '{"site":"Bern"}'), head=SPANS.replace(b"\n", b",site\n")),
]  # fmt: skip


def _golden(body: bytes, name: str) -> Callable[[Path], tuple[Fate, str]]:
    def look(home: Path) -> tuple[Fate, str]:
        (home / "golden").mkdir(parents=True)
        (home / "golden" / name).write_bytes(body)
        settings = Settings(landing_url=str(home), projects=(PROJECT,))
        found = read_landing(LandingStore.from_settings(settings), golden_names(settings), DAY, date(2026, 2, 3))
        fate = Fate.PARTLY if found.totals else Fate.NOT_COMPARED
        return fate if found.faults else Fate.COMPARED, "; ".join(map(str, found.faults))

    return look


def _total(name: str, line: bytes, said: str, hint: str = CORRECT_FILE) -> Case:
    return Case(name, Fate.PARTLY, said, hint, _golden(GOLDEN_HEAD + GOOD_TOTAL + line, f"{DAY}.csv"))


def _file(name: str, body: bytes, said: str, hint: str = CORRECT_FILE, called: str = f"{DAY}.csv") -> Case:
    return Case(name, Fate.NOT_COMPARED, said, hint, _golden(body, called))


def _compared(name: str, body: bytes, keeps: str) -> Case:
    return Case(name, Fate.COMPARED, "", NOTHING, _golden(body, f"{DAY}.csv"), keeps)


TOTALS = [
    _file("Zero bytes", b"", "is empty"),
    _file("No header, or another one", GOOD_TOTAL, "is not the header"),
    _file("More than 1 MiB", GOLDEN_HEAD + b"x" * MOST_BYTES, "more than the 1,048,576 of a file of totals"),
    _file("A name that is no day", GOLDEN_HEAD + GOOD_TOTAL, "is not named after a day",
        "Name it after its day, or move it out of `golden/`.", f"{DAY}.csv.bak"),
    _total("A line with more or fewer than four fields", b"2026-02-02,10001,rows\n",
        "has not the four fields of the header"),
    _total("A line that is not UTF-8", b"2026-02-02,10001,rows,\xff\n", "has not the four fields of the header"),
    _total("A day that is none", b"02.02.2026,10001,rows,1\n", "day '02.02.2026' is none"),
    _total("A day of another file", b"2026-02-03,10001,rows,1\n", "is of 2026-02-03, in a file of 2026-02-02",
        "Move the line to the file of its day."),
    _total("A project that is not configured", b"2026-02-02,9,rows,1\n", "project '9' is none of the configured",
        f"{CORRECT_FILE} Or add the project to `TIDEMARK_PROJECTS`."),
    _total("An unknown measure", b"2026-02-02,10001,sales,1\n", "sales is no measure"),
    _total("A value that is no number", b"2026-02-02,10001,events,many\n", "value 'many' is not a number"),
    _total("A total twice", GOOD_TOTAL, "again, after golden/2026-02-02.csv line 2",
        "Leave one of the two; the first was compared."),
    _compared("White space around a field, CR LF, a byte order mark",
        b"\xef\xbb\xbf" + GOLDEN_HEAD + b" 2026-02-02 , 10001 , rows , 60 \r\n", "without them"),
    _compared("A header alone", GOLDEN_HEAD, "the totals of the day are retracted"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*SNAPSHOTS, *HISTORIES, *TOTALS], ids=lambda case: case.name)
def test_a_bad_input_ends_as_the_table_says(case: Case, tmp_path: Path) -> None:
    fate, said = case.look(tmp_path / "landing")
    assert fate is case.fate
    assert case.said in said
    assert bool(said) is bool(case.said)


def the_tables() -> list[str]:
    ways = (
        ("snapshot", "what becomes of it", SNAPSHOTS),
        ("delivered intervals", "what becomes of them", HISTORIES),
        ("golden totals", "what becomes of them", TOTALS),
    )
    return [
        "\n".join([f"| {name} | {fate} | it says | what you do |", "|---|---|---|---|", *(case.row for case in cases)])
        for name, fate, cases in ways
    ]


_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def test_the_document_shows_these_cases() -> None:
    _, *found = _TABLE.findall(DOCUMENT.read_text("utf-8"))
    expected = [f"{table}\n" for table in the_tables()]
    assert found == expected, "run python -m tests.unit.test_bad_inputs_beside_exports"


if __name__ == "__main__":
    text = DOCUMENT.read_text("utf-8")
    exports = _TABLE.findall(text)[0]
    tables = iter([exports, *(f"{table}\n" for table in the_tables())])
    DOCUMENT.write_text(_TABLE.sub(lambda _: next(tables), text), "utf-8")
