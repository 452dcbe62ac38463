"""A slice written as its difference equals the slice written whole, and reports its keys' changes."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.identity import Name, RawRow, shown
from pipeline_assets.domain.slices import Source
from pipeline_assets.tables.events import event_hashes
from pipeline_assets.transforms import refine_task
from pipeline_assets.transforms.file_rows import as_bytes
from pipeline_assets.transforms.refine_task import Input, Refined, Refining, SliceWork
from resources.iceberg.lake_objects import LakeObjects
from tests.support.builders import PROJECT
from tests.unit.transforms.test_refine_files import KEY, REFINED, _table, rewritten
from tests.unit.transforms.test_write_objects import DAY, Shelf, a_line, rows_of, run, zipped

LINES = 12
SOURCES = ("regular", "backfill")
SMALL_FILES = replace(REFINED, file_bytes=12_000, row_group_bytes=6_000)


@pytest.fixture(autouse=True, scope="module")
def _few_rows_are_divided() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refine_task, "_LEAST_ROWS", 4)
        yield


State = Mapping[str, int]
"""Object -> version of it."""
Lost = frozenset[tuple[str, int]]
"""(object, line)."""
_OBJECTS = [f"{source}/o{number}" for source in SOURCES for number in range(3)]
_STATE = st.dictionaries(st.sampled_from(_OBJECTS), st.integers(0, 2), min_size=1)
_LOST = st.frozensets(st.tuples(st.sampled_from(_OBJECTS), st.integers(1, LINES)), max_size=30)


def _a_body(name: str, version: int) -> bytes:
    """Lines with contents and ids by version, or none; two thirds equal other objects' lines, at places by version."""
    lines = []
    for line in range(LINES):
        at = (line + version) % LINES
        number = 100 * (_OBJECTS.index(name) if at % 3 == 0 else 0) + at
        more: dict[str, Any] = {"city": f"v{version}"} if at % 4 == 1 else {}
        more |= {"uuid": f"u{number}-{version}"} if at % 4 == 2 else {}
        more |= {"uuid": None, "city": f"{number}"} if at % 4 == 3 else {}
        more |= {"server_upload_time": f"{DAY + timedelta(days=at // 9)} 12:00:00"} if at % 5 else {}
        lines.append(a_line(number, DAY, **more))
    return zipped(*lines)


def _raw(state: State) -> dict[str, Shelf]:
    """Source -> the files of raw, one for each object."""
    shelves = {source: Shelf({}) for source in SOURCES}
    for name, version in sorted(state.items()):
        one = Shelf({name: _a_body(name, version)})
        run(one, PROJECT)
        source = shelves[name.split("/")[0]]
        source.objects |= one.files
        source.files |= one.files
    return shelves


def _refine(state: State, lost: Lost, held: Shelf | None, rows: int = 0) -> tuple[Shelf, Refined]:
    raw = _raw(state)
    losers = as_bytes(_table(sorted(lost)))
    inputs = [Input(source, sorted(shelf.files), losers) for source, shelf in raw.items() if shelf.files]
    target = Shelf(dict(held.files) if held is not None else {})
    told = _task(raw, target)([SliceWork(KEY, inputs, rows, sorted(held.files) if held is not None else ())])
    assert not told.wrong
    described = [json.loads(file)["file-path"].removeprefix("shelf://") for file in told.files]
    assert sorted(described) == sorted(target.files)
    (written,) = told.tasks
    assert written == len(rows_of(Shelf({}, files=target.files)))
    return target, told


def _held(*names: str, version: int = 0) -> Shelf:
    """The slice of these objects, written whole."""
    return _refine(dict.fromkeys(names, version), frozenset(), None)[0]


def _task(raw: Mapping[str, Shelf], target: Shelf) -> Refining:
    return Refining(raw, {source: source for source in SOURCES}, event_hashes(), SMALL_FILES, target)


def _as_counted(rows: Iterable[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(row.items()) for row in rows)


def _changes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Counter[str]:
    """By brute force; an event without any id is named by its content."""

    def by_key(rows: list[dict[str, Any]]) -> dict[Any, int]:
        return {(row["uuid"] or ("says", row["_meaning_hash"])): row["_meaning_hash"] for row in rows}

    was, now = by_key(before), by_key(after)
    both = was.keys() & now.keys()
    kept = sum(was[key] == now[key] for key in both)
    added, removed = len(now.keys() - was.keys()), len(was.keys() - now.keys())
    return +Counter({"kept": kept, "changed": len(both) - kept, "added": added, "removed": removed})


def _losing(state: State, drawn: Lost) -> Lost:
    """All rows of each event but the least of one content; a content with a drawn row loses as a whole."""
    rows = _raw_rows(state)
    lost = {row.content for row in rows if (row.object_key, row.line_number) in drawn}
    wins = {row.key: row.content for row in rows if row.content not in lost}
    stay = {shown([row for row in rows if row.content == content]) for content in wins.values()}
    return frozenset((row.object_key, row.line_number) for row in {*rows} - stay)


@cache
def _contents(name: str, version: int) -> list[dict[str, Any]]:
    return rows_of(_raw({name: version})[name.partition("/")[0]])


def _raw_rows(state: State) -> list[RawRow]:
    return [
        RawRow(PROJECT, DAY, Source(name.split("/")[0]), name, row["_line_number"], (), None, row["uuid"], None, None,
               (row["_hash_a"], row["_hash_b"]))
        for name, version in state.items() for row in _contents(name, version)
    ]  # fmt: skip


def _names(rows: list[dict[str, Any]]) -> set[Name]:
    return {
        (Source(row["_source"]), row["_object_key"], row["_line_number"], (row["_hash_a"], row["_hash_b"]))
        for row in rows
    }


def _expected(held: set[Name], state: State, lost: Lost) -> set[Name]:
    """Winners by the pure rule; and the held rows, where all of them are equal."""
    rows = _raw_rows(state)
    wins = {row.content for row in rows if (row.object_key, row.line_number) not in lost}
    if wins == {content for *_, content in held}:
        return held
    return {shown([row for row in rows if row.content == content], held).name for content in wins}


@settings(max_examples=25)
@given(_STATE, _LOST, _STATE, _LOST)
def test_the_difference_makes_the_same_slice(then: State, then_lost: Lost, now: State, now_lost: Lost) -> None:
    """Scenario: objects of both sources come, go and change, many with equal rows; losers change. Outcome: kept and new
    files equal the slice written whole; a held equal row and unchanged files stay; keys as by force."""
    then_lost, now_lost = _losing(then, then_lost), _losing(now, now_lost)
    held, _ = _refine(then, then_lost, None, LINES * len(then))
    whole, _ = _refine(now, now_lost, None, LINES * len(now))
    if not held.files:
        return

    written, told = _refine(now, now_lost, held)

    gone, keys = told.gone[KEY], told.keys[KEY]
    left = {path: body for path, body in held.files.items() if path not in gone}
    found = rows_of(Shelf({}, files=left | written.files))
    assert _as_counted(map(_content, found)) == _as_counted(map(_content, rows_of(whole)))
    wanted = _expected(_names(rows_of(held)), now, now_lost)
    assert (_names(found), len(found)) == (wanted, len(wanted))
    for path, body in held.files.items():
        assert (path in gone) == bool(_names(rows_of(Shelf({}, files={path: body}))) - wanted), path
    added = sum(keys.differing["is_added"].to_pylist())
    counts = {"kept": keys.kept, "changed": keys.changed, "added": added, "removed": keys.differing.num_rows - added}
    assert +Counter(counts) == _changes(rows_of(held), rows_of(whole))


def _content(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("_source", "_object_key", "_line_number")}


def test_rows_that_are_held_twice_are_all_replaced() -> None:
    """Scenario: a file of the slice is copied. Outcome: every file goes, and the slice is written whole."""
    held = _held("regular/o0", "regular/o1")
    path = sorted(held.files)[0]
    held.files["data/copy.parquet"] = held.files[path]
    written, told = _refine({"regular/o0": 0}, frozenset(), held)

    assert sorted(told.gone[KEY]) == sorted(held.files)
    assert not told.keys
    assert _as_counted(rows_of(written)) == _as_counted(rows_of(_held("regular/o0")))


@pytest.mark.parametrize("is_empty", [False, True], ids=["without a place", "without rows"])
def test_files_of_another_hand_break_nothing(is_empty: bool) -> None:
    """Scenario: a rewrite without lineage, or an empty file. Outcome: the slice gets its right content."""
    ((path, body),) = _held("regular/o0").files.items()
    nulls = dict.fromkeys(("_object_key", "_line_number"), lambda rows, of: pa.nulls(rows.num_rows, of.type))
    body = rewritten(body, nulls, 0 if is_empty else LINES)

    written, told = _refine({"regular/o0": 1}, frozenset(), Shelf({path: body}, files={path: body}))

    assert _as_counted(rows_of(written)) == _as_counted(rows_of(_held("regular/o0", version=1)))
    assert list(told.gone[KEY]) == ([] if is_empty else [path])


def test_a_row_that_stays_is_checked_where_its_file_is_written_again() -> None:
    """Scenario: a column changed under its hash; a load takes another row of that file. Outcome: the file is named."""
    ((path, body),) = _held("regular/o0").files.items()
    body = rewritten(body, {"language": lambda rows, _: pa.array(["xx"] * rows.num_rows)})
    raw = _raw({"regular/o0": 0})
    inputs = [Input("regular", sorted(raw["regular"].files), as_bytes(_table([("regular/o0", 3)])))]

    told = _task(raw, Shelf({path: body}))([SliceWork(KEY, inputs, LINES, [path])])

    assert told.wrong == {KEY: f"shelf://{path} holds line 1 of regular/o0 with another hash than its own"}


def test_a_slice_that_changes_much_tells_no_keys(monkeypatch: Any) -> None:
    """Scenario: more keys than the bound. Outcome: none is reported, and the rows are right; the driver asks the tables."""
    monkeypatch.setattr(refine_task, "_MOST_TOLD_KEYS", 5)
    states: list[State] = [{"regular/o0": 0}, {"regular/o0": 0, "regular/o1": 0}, {"backfill/o2": 0}]
    told = [_refine(state, frozenset(), _held("regular/o0"))[1] for state in states]
    assert [KEY in one.keys for one in told] == [True, False, False]


@dataclass
class _CountingShelf(Shelf):
    read: Counter[str] = field(default_factory=Counter)

    def open(self, key: str, etag: str = "") -> IO[bytes]:
        shelf, body = self, super().open(key, etag)

        class Body(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                got = super().read(size)
                shelf.read[key] += len(got)
                return got

        return Body(body.read())

    def shares(self) -> dict[str, float]:
        """File -> bytes read per byte of it."""
        return {key: self.read[key] / len(body) for key, body in self.objects.items()}


def _long_lines(first: int, count: int, received: date) -> bytes:
    more: dict[str, Any] = {"server_upload_time": f"{received} 12:00:00"}
    notes = ({"note": os.urandom(400).hex()} for _ in range(count))
    return zipped(*(a_line(first + at, DAY, user_properties=note, **more) for at, note in enumerate(notes)))


def test_ten_late_events_read_wide_only_what_loses_and_copy_only_late_rows() -> None:
    """Scenario: ten more events arrive in a slice of 2,000 rows in time and 200 late ones; one replaces a late row.
    Outcome: few columns are read of old raw files and of the timely file; only late rows are written anew."""
    raw, target = _CountingShelf({}), _CountingShelf({})

    def deliver(name: str, body: bytes) -> str:
        one = Shelf({name: body})
        run(one, PROJECT)
        raw.objects |= one.files
        return next(iter(one.files))

    def refine(lost: list[tuple[str, int]], held: list[str], rows: int) -> Refined:
        layout = replace(REFINED, row_group_bytes=1 << 20)
        task = Refining({"regular": raw}, {"regular": "regular"}, event_hashes(), layout, target)
        inputs = [Input("regular", sorted(raw.objects), as_bytes(_table(lost)))]
        told = task([SliceWork(KEY, inputs, rows, held)])
        target.objects |= target.files
        return told

    known = []
    for number in range(3):
        day, count = DAY + timedelta(days=max(0, number - 1)), 200 if number == 2 else 1000
        known.append(deliver(f"o{number}", _long_lines(1000 * number, count, day)))
    whole = [json.loads(file) for file in refine([], [], 2200).files]
    assert sorted(file["record-count"] for file in whole) == [200, 2000]
    paths = {file["record-count"]: file["file-path"].removeprefix("shelf://") for file in whole}
    deliver("o3", _long_lines(3000, 10, DAY + timedelta(days=2)))
    raw.read.clear()
    target.read.clear()

    told = refine([("o2", 7)], sorted(paths.values()), 2210)

    assert told.gone == {KEY: [paths[200]]}
    assert sum(told.tasks) == 199 + 10
    assert max(*(raw.shares()[path] for path in known[:2]), target.shares()[paths[2000]]) < 0.2
    assert target.shares()[paths[200]] > 1


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "of a broken page"])
@pytest.mark.parametrize("place", ["raw", "refined"])
def test_a_damaged_file_is_named_with_its_remedy(tmp_path: Path, damage: str, place: str) -> None:
    """Outcome: a cut, empty, missing or damaged file is named with reason and remedy; no new file stays."""
    files = {"raw": _raw({"regular/o0": 1})["regular"].files, "refined": _held("regular/o0").files}
    for name, path in ((name, path) for name, of_place in files.items() for path in of_place):
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).write_bytes(files[name][path])
    path = sorted(files[place])[0]
    broken, body = tmp_path / place / path, files[place][path]
    if damage == "gone":
        broken.unlink()
    else:
        kept = {"cut": body[:-100], "empty": b"", "of a broken page": body[:4] + b"\xff" * 3000 + body[3004:]}
        broken.write_bytes(kept[damage])
    before = {one for one in tmp_path.rglob("*") if one.is_file()}
    stores = {"regular": LakeObjects(str(tmp_path / "raw"))}
    target = LakeObjects(str(tmp_path / "refined"))
    task = Refining(stores, {"regular": "regular"}, event_hashes(), SMALL_FILES, target)

    with pytest.raises(LakehouseError) as error:
        task([SliceWork(KEY, [Input("regular", sorted(files["raw"]))], LINES, sorted(files["refined"]))])

    assert error.value.subject == f"{tmp_path}/{place}/{path}"
    assert ("is gone from the warehouse" if damage == "gone" else "cannot be read: ") in error.value.reason
    assert "tidemark load --source SOURCE --from DAY --to DAY --read-again" in str(error.value.hint)
    assert {one for one in tmp_path.rglob("*") if one.is_file()} == before
