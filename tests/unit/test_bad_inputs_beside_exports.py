"""Every bad snapshot, history of intervals and file of golden totals ends as docs/bad-inputs.md says."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from pipeline_assets.domain.golden import MOST_BYTES
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings
from pipeline_assets.domain.slices import EMPTY, Digest
from pipeline_assets.load.build.snapshot import judge_count, judge_whole
from pipeline_assets.load.deliveries.snapshots import list_snapshots
from pipeline_assets.load.golden import golden_names, read_landing
from pipeline_assets.load.staleness.decide import Todo
from pipeline_assets.transforms.snapshot_rows import SNAPSHOT
from resources.landing.store import LandingStore
from tests.support.bad_inputs import CORRECT, DAY, MAX_LINE_BYTES, NOTHING, Case, Fate, rows_of
from tests.support.bad_intervals import HISTORIES
from tests.support.builders import PROJECT
from tests.unit.load.test_dimension_days import EARLY, LATE, listed, of_snapshot

DOCUMENT = PROJECT_ROOT / "docs" / "bad-inputs.md"
HEAD, GOLDEN_HEAD = b"id,name,status\n", b"day,project,measure,value\n"
GOOD, GOOD_TOTAL = b"1,a,ACTIVE\n", f"{DAY},{PROJECT},rows,60\n".encode()
CORRECT_FILE = "Correct the file; the next load of the day, or `tidemark reconcile`, reads it again."


def _read(body: bytes, suffix: str) -> tuple[Fate, str]:
    key = f"dimensions/item/{DAY}{suffix}"
    rows, summary = rows_of(body, key, SNAPSHOT)
    whole = judge_whole(key, summary, len(rows), len({row["id"] for row in rows}))
    assert whole.is_passed is bool(rows), "what is refused has no rows, what is read has all"
    return Fate.READ if whole.is_passed else Fate.REFUSED, whole.reason or ""


def _read_as(name: str, body: bytes, keeps: str, said: str = "", suffix: str = ".csv") -> Case:
    return Case(name, Fate.READ, said, NOTHING, lambda _: _read(body, suffix), keeps)


def _refused(name: str, body: bytes, said: str, hint: str = CORRECT, suffix: str = ".csv") -> Case:
    return Case(name, Fate.REFUSED, said, hint, lambda _: _read(body, suffix))


def _count(_: Path) -> tuple[Fate, str]:
    counts = {date(2026, 2, 1): 1000}
    nothing = {"published": EMPTY, "accepted": None, "accepted_before": lambda: None}
    found = judge_count(DAY, Digest(480, 1, 1), counts, Settings(), **nothing)
    return Fate.READ if found.is_passed else Fate.REFUSED, found.reason or ""


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
        f"If it is genuine, raise `TIDEMARK_MAX_LINE_BYTES` and load the day again. {CORRECT}", suffix=".jsonl"),
    _refused("A CSV field of more than 131,072 characters", HEAD + b"1," + b"n" * 140_000 + b",ACTIVE\n",
        "a field has more than 131,072 characters, or a quote is not closed"),
    _refused("An object beyond `max_snapshot_bytes`", HEAD + b"1,a,ACTIVE\n" * 40_000,
        "TIDEMARK_MAX_SNAPSHOT_BYTES allows",
        f"If it is genuine, raise `TIDEMARK_MAX_SNAPSHOT_BYTES` and load the day again. {CORRECT}"),
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
