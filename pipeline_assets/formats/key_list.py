"""An external list of event keys: a CSV file whose header names the exporter's ids in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pipeline_assets.domain.days import day_in
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import csv_fields, shown
from pipeline_assets.formats.base import EVENT_TIME
from pipeline_assets.formats.registry import EXPORT_FORMAT

MOST_LINES = 1_000_000
"""Most lines of a list, which is held in memory; longer lists are compared in parts, by days."""
_MOST_FAULTS = 20
_IDENTITY = EXPORT_FORMAT.identity
_IDS = (_IDENTITY.send_id, _IDENTITY.row_id)
_PROJECT, _DAY = "project", "event_date"
_OF_PROJECT = "app"
_SENDER = tuple(name for name in _IDENTITY.sender if name != _OF_PROJECT)
_COLUMNS = (*_IDS, *_SENDER, _PROJECT, _DAY)
_ALIASES = {f"${name}": name for name in _IDS} | {_OF_PROJECT: _PROJECT, "day": _DAY, EVENT_TIME: _DAY}
_FORM = (
    f"Begin the file with a line that names its columns: {' or '.join(_IDS)}, and beside it {', '.join(_COLUMNS[2:])} "
    f"(or {EVENT_TIME}), where the list has them"
)


@dataclass
class KeyList:
    """The content of a list."""

    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    faulty_lines: int = 0

    @property
    def has_days(self) -> bool:
        """Whether the list has the event day."""
        return _DAY in self.columns

    @property
    def has_senders(self) -> bool:
        """Whether the list has the sender, without which a send id does not identify an event."""
        return any(name in self.columns for name in _SENDER)

    @property
    def has_projects(self) -> bool:
        """Whether the list has the project of an event."""
        return _PROJECT in self.columns


def read_key_list(name: str, lines: Iterable[str]) -> KeyList:
    """Read a list; raises UsageError if it has no valid header, a column twice, or too many lines."""
    rows = _rows(lines)
    _, header = next(rows, (0, []))
    columns = tuple(_ALIASES.get(text.strip().lower(), text.strip().lower()) for text in header)
    unknown = [text for text in columns if text not in _COLUMNS]
    if not set(_IDS) & set(columns) or unknown or len(set(columns)) != len(columns):
        said = shown(",".join(header), 60)
        raise UsageError(name, f"its first line ({said}) does not name the columns of a list of keys", _FORM)
    found = KeyList(columns)
    for number, fields in rows:
        if number > MOST_LINES:
            hint = "Compare it in parts: a file for some days each, with --from and --to"
            raise UsageError(name, f"has more than {MOST_LINES:,} lines", hint)
        fault = _fault(columns, fields)
        if fault is None:
            found.rows.append(tuple(_value(*pair) for pair in zip(columns, fields, strict=True)))
            continue
        found.faulty_lines += 1
        if len(found.faults) < _MOST_FAULTS:
            found.faults.append(f"{name} line {number}: {fault}")
    return found


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        text = line.removeprefix("\ufeff").rstrip("\r\n") if number == 1 else line.rstrip("\r\n")
        if text.strip():
            yield number, csv_fields(text) or []


def _fault(columns: Sequence[str], fields: Sequence[str]) -> str | None:
    if len(fields) != len(columns):
        return f"has not the {len(columns)} fields of the header"
    row = dict(zip(columns, fields, strict=True))
    if not any(row.get(name, "").strip() for name in _IDS):
        return "names no key"
    if _DAY in row and _day(row[_DAY]) is None:
        return f"day {shown(row[_DAY], 40)!r} is none; write it as YYYY-MM-DD"
    return None


def _value(column: str, text: str) -> str | None:
    value = _day(text) if column == _DAY else text.strip()
    return value or None


def _day(text: str) -> str | None:
    day = day_in(text.strip()[: len("2026-01-31")])
    return None if day is None else day.isoformat()
