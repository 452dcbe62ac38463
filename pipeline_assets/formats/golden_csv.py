"""Reads golden totals from text: a small CSV file per day, or rows of a query; each line is a total or a fault."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial

from pipeline_assets.domain.days import day_in
from pipeline_assets.domain.golden import GoldenFault, GoldenMeasure, GoldenReading, GoldenSource, GoldenTotal
from pipeline_assets.domain.plain_text import few, shown
from pipeline_assets.domain.slices import Slice

PREFIX = "golden"
"""The folder of landing with the files."""
COLUMNS = ("day", "project", "measure", "value")
MOST_BYTES = 1024**2
"""Most bytes of a file: about 20,000 totals, while a day of a hundred projects needs 700."""
_NAME = re.compile(rf"{PREFIX}/(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})\.csv")
_NUMBER = re.compile(r"[+-]?[0-9]{1,32}(\.[0-9]{1,18})?")
_MOST_FAULTS = 20
_LINE = " line "
"""Separates an object's key from a line number in the origin of a line."""
_BOM = b"\xef\xbb\xbf"
_FORM = (
    f"Write the header {','.join(COLUMNS)} and a line for each total, such as 2026-02-02,10001,refined/events:rows,1234"
)
_ALIASES = {"rows": GoldenMeasure("refined/events", "rows")}
"""Every table has rows; without a table's name, the rows of refined events are meant."""


@dataclass(frozen=True)
class GoldenNames:
    """The measures and projects that a line may name."""

    measures: frozenset[GoldenMeasure]
    projects: tuple[str, ...]
    """The configured projects."""

    def measure(self, text: str) -> GoldenMeasure | str:
        """The measure of a name (`table:measure`, or `measure` if only one table has it), or else the fault as a text."""
        table, colon, name = text.rpartition(":")
        if not colon and text in _ALIASES:
            return _ALIASES[text]
        found = sorted(one for one in self.measures if one.name == name and (one.table == table or not colon))
        if len(found) == 1:
            return found[0]
        if found:
            return f"{shown(text, 60)} is a measure of several tables ({few(found)})"
        return f"{shown(text, 60)} is no measure ({few(sorted(self.measures), 40)})"


def golden_day(origin: str) -> date | None:
    """The day of a golden file by its key or a line of it; None for any other name."""
    match = _NAME.fullmatch(origin.partition(_LINE)[0])
    return day_in(match["day"]) if match else None


def golden_key(day: date) -> str:
    """The key of the golden file of a day; the inverse of `golden_day`."""
    return f"{PREFIX}/{day.isoformat()}.csv"


def is_origin_between(origin: str, first: date, last: date) -> bool:
    """Whether an origin, an object or a line of one, belongs to the files of these days (both inclusive)."""
    key = origin.partition(_LINE)[0]
    return golden_key(first) <= key <= golden_key(last)


def read_file(key: str, day: date, content: bytes, names: GoldenNames) -> GoldenReading:
    """The totals of a file, and a fault for each bad line; a file that is empty or lacks the header has a single fault."""
    lines = content.removeprefix(_BOM).splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        fault = GoldenFault(key, "is empty", f"{_FORM}; a file with the header alone says that there are no totals")
        return GoldenReading(GoldenSource.LANDING, faults=(fault,))
    (at, first), *rest = numbered
    header = _fields(first)
    if header is None or sorted(header) != sorted(COLUMNS):
        said = shown(first[:60].decode("utf-8", "replace"), 60)
        fault = GoldenFault(f"{key}{_LINE}{at}", f"is not the header ({said})", _FORM)
        return GoldenReading(GoldenSource.LANDING, faults=(fault,))

    def rows() -> Iterator[tuple[str, Mapping[str, str] | None]]:
        for number, line in rest:
            fields = _fields(line)
            is_whole = fields is not None and len(fields) == len(header)
            yield f"{key}{_LINE}{number}", dict(zip(header, fields, strict=True)) if is_whole and fields else None

    return read_rows(GoldenSource.LANDING, rows(), names, day)


def read_rows(
    source: GoldenSource,
    rows: Iterable[tuple[str, Mapping[str, str] | None]],
    names: GoldenNames,
    day: date | None = None,
) -> GoldenReading:
    """Read rows: origin, and texts by column (None for a line with other columns); with `day`, all must be of that day."""
    totals: dict[tuple[Slice, GoldenMeasure], GoldenTotal] = {}
    faults: list[GoldenFault] = []
    for origin, row in rows:
        read = _total(source, origin, row, names, day)
        if isinstance(read, GoldenFault):
            faults.append(read)
            continue
        before = totals.setdefault((read.key, read.measure), read)
        if before is not read:
            reason = f"tells of {read.measure} of {read.key} again, after {before.origin}"
            faults.append(GoldenFault(origin, reason, "Leave one of the two; the first was compared"))
    if len(faults) > _MOST_FAULTS:
        reason = f"and {len(faults) - _MOST_FAULTS:,} lines in all are wrong as well"
        faults = [*faults[:_MOST_FAULTS], GoldenFault(faults[_MOST_FAULTS].origin, reason, _FORM)]
    # A bad line may stand for any measure of the day.
    days = frozenset() if faults or day is None else frozenset({day})
    return GoldenReading(source, days, tuple(totals.values()), tuple(faults))


def _total(
    source: GoldenSource, origin: str, row: Mapping[str, str] | None, names: GoldenNames, of_day: date | None
) -> GoldenTotal | GoldenFault:
    fault = partial(GoldenFault, origin)
    if row is None:
        return fault("has not the four fields of the header", _FORM)
    texts = {name: row[name].strip() for name in COLUMNS}
    day = day_in(texts["day"]) if len(texts["day"]) == len("2026-01-31") else None
    if day is None:
        return fault(f"day {shown(texts['day'], 40)!r} is none", "Write it as YYYY-MM-DD")
    if of_day is not None and day != of_day:
        return fault(f"is of {day}, in a file of {of_day}", f"Move it to {golden_key(day)}")
    if texts["project"] not in names.projects:
        hint = "Correct it, or add it to TIDEMARK_PROJECTS"
        known = few(names.projects, 5)
        return fault(f"project {shown(texts['project'], 40)!r} is none of the configured ({known})", hint)
    measure = names.measure(texts["measure"])
    if isinstance(measure, str):
        return fault(measure, "Write table:measure, such as aggregates/daily_revenue:revenue")
    if not _NUMBER.fullmatch(texts["value"]):
        hint = "Write digits, with a point before decimals"
        return fault(f"value {shown(texts['value'], 40)!r} is not a number", hint)
    return GoldenTotal(source, Slice(day, texts["project"]), measure, Decimal(texts["value"]), origin)


def _fields(line: bytes) -> Sequence[str] | None:
    """The fields of one line; None if it is not UTF-8 or not CSV."""
    try:
        (fields,) = csv.reader([line.decode("utf-8")], strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError):
        return None
    return [field.strip() for field in fields]
