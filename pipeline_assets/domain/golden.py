"""Golden totals: an outside system's control totals, from a CSV file a day or a query, against published figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import day_in, deadline
from pipeline_assets.domain.notices import Notice, NoticeKind, identity_of
from pipeline_assets.domain.plain_text import csv_fields, few, shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice

HINT = "`tidemark reconcile --repair` proposes what closes it"
REST = "_rest"
"""Suffix of the figure with the digits of an exact total beyond a double's."""
_EXACT = Context(prec=100)
"""Decimal sums have 28 digits by default; a total may have 38."""


class GoldenMeasure(NamedTuple):
    """A figure of a table that an outside system also reports."""

    table: str
    name: str

    def __str__(self) -> str:
        """Render as `aggregates/daily_revenue:revenue`."""
        return f"{self.table}:{self.name}"


class GoldenSource(StrEnum):
    """Where totals come from; both may cover the same day."""

    LANDING = "landing"
    QUERY = "query"


class GoldenTotal(NamedTuple):
    """An outside system's value of one measure, project and day."""

    source: GoldenSource
    key: Slice
    measure: GoldenMeasure
    value: Decimal
    origin: str
    """Object and line, or row of the query."""


class GoldenFault(NamedTuple):
    """A line that is no total, or a file without totals."""

    origin: str
    reason: str
    hint: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.origin}: {self.reason}. {self.hint}"


@dataclass(frozen=True)
class GoldenReading:
    """The result of reading one source."""

    source: GoldenSource
    days: frozenset[date] = frozenset()
    """Days that the source covered without a fault, so that its earlier totals of them are void."""
    totals: tuple[GoldenTotal, ...] = ()
    """A total of another day replaces only the earlier total of its measure."""
    faults: tuple[GoldenFault, ...] = ()
    asked: tuple[date, date] | None = None
    """First and last day that the source was asked for; earlier faults in this range are over."""


class Agreement(StrEnum):
    """How a published figure compares with its golden total."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_LOADED = "not loaded"
    NOT_MEASURED = "not measured"
    """The day was published by something other than a load."""


@dataclass(frozen=True)
class GoldenComparison:
    """One golden total and the published figure."""

    total: GoldenTotal
    published: Decimal | None
    agreement: Agreement

    @property
    def is_good(self) -> bool:
        """Whether the two agree."""
        return self.agreement is Agreement.AGREES

    @property
    def difference(self) -> Decimal | None:
        """The published figure minus the golden total; None without a figure."""
        return None if self.published is None else _EXACT.subtract(self.published, self.total.value)

    @property
    def relative(self) -> float | None:
        """The absolute difference as a share of the golden total; 1 where only that is zero."""
        if self.difference is None:
            return None
        if not self.total.value:
            return 1.0 if self.difference else 0.0
        return float(abs(self.difference) / abs(self.total.value))

    @property
    def is_lacking(self) -> bool:
        """Whether the published figure is too low, or the day is not loaded."""
        return self.agreement is Agreement.NOT_LOADED or (
            not self.is_good and self.difference is not None and self.difference < 0
        )

    def __str__(self) -> str:
        """`rows 363 published, 400 golden (-37, 9.25 %)`."""
        name = self.total.measure.name
        if self.difference is None:
            return f"{name} {self.agreement.value}, {plain(self.total.value)} golden"
        told = f"{plain(self.published)} published, {plain(self.total.value)} golden"
        return f"{name} {told} ({signed(self.difference)}, {self.relative or 0:.2%})"


def plain(value: Decimal | None) -> str:
    """A number without exponent and trailing zeros; empty for None."""
    text = "" if value is None else f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def signed(value: Decimal) -> str:
    """As `plain`, with a sign."""
    return f"{'+' if value > 0 else ''}{plain(value)}"


def figure_of(figures: Mapping[str, float], name: str) -> Decimal | None:
    """A recorded figure as the exact number that was measured; None where it is not on record."""
    if name not in figures:
        return None
    return _EXACT.add(_exact(figures[name]), _exact(figures.get(f"{name}{REST}", 0)))


def rest_of(name: str, value: Decimal | int) -> dict[str, float]:
    """The rest of an exact total that its double omits, as a figure; mostly empty."""
    rest = _EXACT.subtract(Decimal(value), _exact(float(value)))
    return {f"{name}{REST}": float(rest)} if rest else {}


def _exact(value: float) -> Decimal:
    # The shortest text of a double is the original decimal, if that had at most 15 digits.
    return Decimal(repr(value))


def compare(total: GoldenTotal, published: Decimal | None, settings: Settings, *, is_loaded: bool) -> GoldenComparison:
    """Compare exactly; the larger of the relative and the absolute tolerance applies."""
    if published is None:
        return GoldenComparison(total, None, Agreement.NOT_MEASURED if is_loaded else Agreement.NOT_LOADED)
    share = _EXACT.multiply(_exact(settings.golden_tolerance), total.value.copy_abs())
    tolerated = max(share, _exact(settings.golden_absolute_tolerance))
    is_good = abs(_EXACT.subtract(published, total.value)) <= tolerated
    return GoldenComparison(total, published, Agreement.AGREES if is_good else Agreement.DIFFERS)


def evaluation(comparisons: Sequence[GoldenComparison]) -> Evaluation:
    """Evaluate `reconciles_with_golden` for one day of a table."""
    bad = [one for one in comparisons if not one.is_good]
    relative: dict[str, float] = {}
    for one in comparisons:
        if one.relative is not None:
            name = f"{one.total.measure.name}_relative_difference"
            relative[name] = max(relative.get(name, 0.0), one.relative)
    return Evaluation(
        Check.RECONCILES_WITH_GOLDEN,
        not bad,
        few([f"{one.total.key.project_id}: {one}" for one in bad], 20) or None,
        HINT if bad else None,
        {"mismatch_count": len(bad), "golden_totals": len(comparisons), **relative},
    )


def mismatches_by_day(
    comparisons: Iterable[GoldenComparison], settings: Settings, now: datetime
) -> dict[tuple[str, Slice], str | None]:
    """Table and day -> totals that disagree, as text; None where all agree. An unloaded day counts from its deadline."""
    found: dict[tuple[str, Slice], list[str]] = {}
    for one in comparisons:
        if one.agreement is Agreement.NOT_LOADED and now <= deadline(one.total.key.event_date, settings):
            continue
        bad = found.setdefault((one.total.measure.table, one.total.key), [])
        if not one.is_good:
            bad.append(f"{one} by {one.total.origin}")
    return {place: few(bad, 5) or None for place, bad in sorted(found.items())}


def golden_notice(
    place: tuple[str, Slice], mismatch: str | None, last: Notice | None, at: str, run_id: str | None
) -> Notice | None:
    """The notice of a new, changed or ended mismatch, else None; `last`: the latest notice of this table and day."""
    before = last.reason if last is not None and last.kind is NoticeKind.GOLDEN_MISMATCH else None
    if mismatch == before:
        return None
    last_id = last.id if last is not None else None
    own: dict[str, Any]
    if mismatch is None:
        kind, own = NoticeKind.GOLDEN_AGREEMENT, {"refusal_id": last_id}
    else:
        kind, own = NoticeKind.GOLDEN_MISMATCH, {"reason": mismatch, "hint": HINT}
    return Notice(identity_of(kind, *place, mismatch or "", last_id or ""), kind, *place, at, run_id, **own)


PREFIX = "golden"
COLUMNS = ("day", "project", "measure", "value")
MOST_BYTES = 1024**2
"""About 20,000 totals; a day of a hundred projects needs 700."""
_NAME = re.compile(rf"{PREFIX}/(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})\.csv")
_NUMBER = re.compile(r"[+-]?[0-9]{1,32}(\.[0-9]{1,18})?")
_MOST_FAULTS = 20
_LINE = " line "
_BOM = b"\xef\xbb\xbf"
_FORM = (
    f"Write the header {','.join(COLUMNS)} and a line for each total, such as 2026-02-02,10001,refined/events:rows,1234"
)
_ALIASES = {"rows": GoldenMeasure("refined/events", "rows")}
"""Without a table's name, `rows` means those of refined events."""


class GoldenNames(NamedTuple):
    """The measures and projects that a line may name."""

    measures: frozenset[GoldenMeasure]
    projects: tuple[str, ...]

    def measure(self, text: str) -> GoldenMeasure | str:
        """The measure of `table:measure`, or of a `measure` that only one table has; otherwise the fault as text."""
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
    """The day of a golden file by its key or a line of it; otherwise None."""
    match = _NAME.fullmatch(origin.partition(_LINE)[0])
    return day_in(match["day"]) if match else None


def golden_key(day: date) -> str:
    """The inverse of `golden_day`."""
    return f"{PREFIX}/{day.isoformat()}.csv"


def is_origin_between(origin: str, first: date, last: date) -> bool:
    """Whether an object, or a line of one, belongs to the files of these days (both inclusive)."""
    key = origin.partition(_LINE)[0]
    return golden_key(first) <= key <= golden_key(last)


def read_file(key: str, day: date, content: bytes, names: GoldenNames) -> GoldenReading:
    """The totals of a file and a fault for each bad line; an empty or headless file has one fault."""
    lines = enumerate(content.removeprefix(_BOM).splitlines(), 1)
    placed = [(f"{key}{_LINE}{number}", line) for number, line in lines if line.strip()]
    if not placed:
        fault = GoldenFault(key, "is empty", f"{_FORM}; a file with the header alone says that there are no totals")
        return GoldenReading(GoldenSource.LANDING, faults=(fault,))
    (origin, first), *rest = placed
    header = _fields(first)
    if sorted(header) != sorted(COLUMNS):
        fault = GoldenFault(origin, f"is not the header ({shown(first[:60].decode('utf-8', 'replace'), 60)})", _FORM)
        return GoldenReading(GoldenSource.LANDING, faults=(fault,))
    listed = [(origin, _fields(line)) for origin, line in rest]
    rows = [
        (origin, dict(zip(header, one, strict=True)) if len(one) == len(header) else None) for origin, one in listed
    ]
    return read_rows(GoldenSource.LANDING, rows, names, day)


def read_rows(
    source: GoldenSource,
    rows: Iterable[tuple[str, Mapping[str, str] | None]],
    names: GoldenNames,
    day: date | None = None,
) -> GoldenReading:
    """Read rows (origin, texts by column; None for a line with other columns); with `day`, all are of that day."""
    totals: dict[tuple[Slice, GoldenMeasure], GoldenTotal] = {}
    faults: list[GoldenFault] = []
    for origin, row in rows:
        read = _total(source, origin, row, names, day)
        if isinstance(read, GoldenTotal):
            before = totals.setdefault((read.key, read.measure), read)
            if before is read:
                continue
            reason = f"tells of {read.measure} of {read.key} again, after {before.origin}"
            read = GoldenFault(origin, reason, "Leave one of the two; the first was compared")
        faults.append(read)
    if len(faults) > _MOST_FAULTS:
        reason = f"and {len(faults) - _MOST_FAULTS:,} lines in all are wrong as well"
        faults = [*faults[:_MOST_FAULTS], GoldenFault(faults[_MOST_FAULTS].origin, reason, _FORM)]
    # A bad line may be any measure of the day.
    days = frozenset() if faults or day is None else frozenset({day})
    return GoldenReading(source, days, tuple(totals.values()), tuple(faults))


def _total(
    source: GoldenSource, origin: str, row: Mapping[str, str] | None, names: GoldenNames, of_day: date | None
) -> GoldenTotal | GoldenFault:
    if row is None:
        return GoldenFault(origin, "has not the four fields of the header", _FORM)
    texts = {name: row[name].strip() for name in COLUMNS}
    day = day_in(texts["day"]) if len(texts["day"]) == len("2026-01-31") else None
    measure = names.measure(texts["measure"])
    if day is None:
        reason, hint = f"day {shown(texts['day'], 40)!r} is none", "Write it as YYYY-MM-DD"
    elif of_day is not None and day != of_day:
        reason, hint = f"is of {day}, in a file of {of_day}", f"Move it to {golden_key(day)}"
    elif texts["project"] not in names.projects:
        reason = f"project {shown(texts['project'], 40)!r} is none of the configured ({few(names.projects, 5)})"
        hint = "Correct it, or add it to TIDEMARK_PROJECTS"
    elif isinstance(measure, str):
        reason, hint = measure, "Write table:measure, such as aggregates/daily_revenue:revenue"
    elif not _NUMBER.fullmatch(texts["value"]):
        reason = f"value {shown(texts['value'], 40)!r} is not a number"
        hint = "Write digits, with a point before decimals"
    else:
        return GoldenTotal(source, Slice(day, texts["project"]), measure, Decimal(texts["value"]), origin)
    return GoldenFault(origin, reason, hint)


def _fields(line: bytes) -> list[str]:
    with suppress(UnicodeDecodeError):
        return [field.strip() for field in csv_fields(line.decode("utf-8")) or ()]
    return []
