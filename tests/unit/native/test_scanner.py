"""The native scanner gives the Python parser's columns, or declines the lines."""

from __future__ import annotations

import gc
import gzip
import io
import json
import pickle
import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_assets.formats.amplitude import line_blocks
from pipeline_assets.formats.amplitude.line_blocks import ColumnParser
from pipeline_assets.formats.gzip_lines import blocks
from pipeline_assets.native import Kind, ScannedColumn, Scanner, library
from sample_export.objects import write_export
from sample_export.spec import ExportSpec
from tests.support.builders import PROJECT, an_event
from tests.unit.formats.test_event_lines import REAL_OBJECTS, REFUSALS, members

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built: make setup, with cargo")
DAY = date(2026, 2, 2)
MAX_LINE_BYTES = 100_000
TIME = '"event_time":"2026-02-02 10:00:00.000000"'


def the_scan(project: str = PROJECT, day: date = DAY) -> line_blocks.Scan:
    scan = line_blocks.native_scan(project, day, MAX_LINE_BYTES)
    assert scan is not None
    return scan


def scanned(lines: list[bytes], project: str = PROJECT, day: date = DAY) -> dict[str, pa.Array] | None:
    """The scanner's columns, valid and equal to Python's; None where it declined."""
    text = b"".join(b"%b\n" % line for line in lines)
    columns = the_scan(project, day)(text, len(lines))
    if columns is not None:
        for column in columns.values():
            column.validate(full=True)
        assert columns == ColumnParser(project, day, MAX_LINE_BYTES).decode(text, len(lines))
    return columns


def a_line(*parts: str) -> bytes:
    return ("{" + ",".join((TIME, *parts)) + "}").encode("utf-8", "surrogatepass")


@settings(deadline=None, max_examples=600)
@given(st.lists(st.lists(members(), max_size=4), min_size=1, max_size=3))
@example([['"client_event_time":"0000-01-01 00:00:00.000000"']])
@example([['"city":"a"', '"city":null']])
@example([['"location_lat":-0'], ['"location_lat":9007199254740993']])
@example([['"event_id":-0'], ['"event_id":9223372036854775808']])
@example([['"data":{"a":"\\ud83d\\ude00"}'], ['"city":"\\ud83d\\ude00\\u0000\\/"']])
def test_what_the_scanner_takes_is_what_python_reads(lines: list[list[str]]) -> None:
    scanned([a_line(*line) for line in lines])


REAL_LINES = [line for path in REAL_OBJECTS for line in gzip.decompress(path.read_bytes()).splitlines()]
_PIECES = [
    *map(bytes, zip(b'"\\{}[],:\n\r \x00\xff')),
    *(rb'null true - 0 1e5 .5 "" {"a": \u00e9 \ud83d \ude00'.split()),
]
_PIECES += [b"\xed\xa0\x80", "é👍".encode()]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(st.sampled_from(REAL_LINES)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(line)))
        piece = draw(st.sampled_from(_PIECES) | st.binary(max_size=2))
        line[at : at + draw(st.integers(0, 3))] = piece
    return bytes(line)


@settings(deadline=None, max_examples=400)
@given(st.lists(damaged(), min_size=1, max_size=3))
def test_damaged_lines_of_real_exports_are_read_as_python_reads_them_or_left(lines: list[bytes]) -> None:
    scanned(lines, str(json.loads(REAL_LINES[0])["app"]), date(2030, 1, 1))


def test_real_events_and_usual_ones_are_taken() -> None:
    """Otherwise the agreement would be vacuous."""
    assert scanned(REAL_LINES, str(json.loads(REAL_LINES[0])["app"]), date(2030, 1, 1))
    bag = {"é": '\n\t"\\/👍', "deep": [[{}, []], None, True, 1.5e300]}
    events = [
        an_event(city=f'ü"{n}', event_properties=bag | {"n": n}, paying=[None, True, False][n % 3]) for n in range(50)
    ]
    for is_ascii in (True, False):
        assert scanned([json.dumps(event, ensure_ascii=is_ascii).encode() for event in events])


DOUBTFUL = rf"""
"app":{int(PROJECT) + 1}
"new":1
"cit\u0079":"a"
"event_id":1.0
"event_id":01
"event_id":1e3
"location_lat":1e-400
"city":5
"city":"\ud83d"
"data":{{"a":"\ude00"}}
"city":"{chr(9)}"
"city":"a
"event_time":null
"data":"{{}}"
"data":{{"a":1,}}
"data":{"[" * 65}{"]" * 65}
"paying":"true"
"processed_time":"2026-02-02T10:00:00Z"
"processed_time":"2026-02-30 10:00:00.000000"
"city":null,"city":null
"data":01
"data":1}}
"""


@pytest.mark.parametrize(
    "part", [*DOUBTFUL.split("\n")[1:-1], '"idfa":"\udc80"', f'"library":"{"x" * MAX_LINE_BYTES}"', '"city":"a"}\n{']
)
def test_a_block_with_one_doubtful_line_is_left(part: str) -> None:
    assert scanned([a_line()] * 3)
    assert scanned([a_line(), a_line(part), a_line()]) is None


def test_no_line_that_is_refused_is_taken() -> None:
    assert [line for line, _ in REFUSALS if scanned([line]) is not None] == []


@pytest.mark.parametrize(
    "text", ["1899-12-31 23:59:59.999999", "2026-02-04 00:00:00.000000", "", "2026-02-02 10:00:00"]
)
def test_a_time_out_of_bounds_is_left(text: str) -> None:
    assert scanned([b'{"event_time":"1900-01-01 00:00:00.000000"}', b'{"event_time":"2026-02-03 23:59:59.999999"}'])
    assert scanned([b'{"event_time":"%b"}' % text.encode()]) is None


def test_the_number_of_lines_is_what_was_said() -> None:
    scan = the_scan()
    text = (a_line() + b"\n") * 2
    assert scan(text, 2) is not None
    others = ((text, 1), (text, 3), (text, 0), (text[:-1], 2), (b"", 0), (b"\n", 1))
    assert [case for case in others if scan(*case) is not None] == []


def test_nearly_all_blocks_of_the_sample_export_are_scanned(tmp_path: Path) -> None:
    spec = ExportSpec(seed=5, projects=(PROJECT,), first_day=DAY, days=2, events_per_day=3000)
    write_export(spec, tmp_path)
    taken = []
    for path in sorted(tmp_path.rglob("*.json.gz")):
        with gzip.open(path) as text:
            day = date.fromisoformat(path.name.split("_")[1])
            parts = blocks(io.BytesIO(text.read()), 50, 1 << 20, 1 << 20)
            taken += [scanned([*block.lines], PROJECT, day) for block in parts]
    assert len(taken) > 100
    assert sum(columns is not None for columns in taken) >= 0.99 * len(taken)


def test_columns_outlive_their_block_and_free_it_with_the_last_of_them() -> None:
    """Scenario: 300 blocks of 2 MB, one column of each kept. Outcome: values stay, memory does not."""
    scan = the_scan()
    lines = [a_line(f'"city":"c{n}"', '"data":{"x":"' + "y" * 20_000 + '"}') for n in range(100)]
    text = b"".join(b"%b\n" % line for line in lines)
    kept: list[pa.Array] = []
    peaks = []
    for _ in range(300):
        columns = scan(text, len(lines))
        assert columns is not None
        kept = [*kept[-2:], columns["city"].slice(1)]
        del columns
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    gc.collect()
    assert all(column.to_pylist() == [f"c{n}" for n in range(1, 100)] for column in kept)
    assert pickle.loads(pickle.dumps(kept[0])) == kept[0]
    assert peaks[-1] - peaks[20] < 100_000


def test_threads_share_a_scanner() -> None:
    scan = the_scan()
    text = b"".join(a_line(f'"event_id":{n}') + b"\n" for n in range(2000))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: scan(text, 2000), range(40)))
    assert all(columns is not None and columns["event_id"].to_pylist() == [*range(2000)] for columns in found)


def test_lines_of_a_project_that_no_column_holds_are_left() -> None:
    for project in ((1 << 63), (1 << 64) + int(PROJECT)):
        assert line_blocks.native_scan(str(project), DAY, MAX_LINE_BYTES) is None
        assert ColumnParser(str(project), DAY, MAX_LINE_BYTES).parse(b"%b\n" % a_line(f'"app":{PROJECT}'), 1) is None
    assert line_blocks.native_scan(str((1 << 63) - 1), DAY, MAX_LINE_BYTES) is not None


def test_columns_that_the_library_cannot_scan_are_refused() -> None:
    found = library()
    assert found is not None
    for keys in (["a", "a"], ['a"'], []):
        with pytest.raises(ValueError, match="does not take these columns"):
            Scanner(found, [ScannedColumn(key, key, Kind.TEXT) for key in keys])
