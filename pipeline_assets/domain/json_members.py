"""Members of a JSON object as Spark's `get_json_object` reads them, so that tasks and queries agree."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

_MOST_DIGITS = 1_000
_MOST_NAME_CHARACTERS = 50_000
"""Bounds of Spark's JSON reader, beyond which it reads no object."""
_BLANKS = " \t\r\n"
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*")|('(?:[^'\\]|\\.)*')""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)|(\")", re.DOTALL)
_UNWRITABLE = re.compile('[\x00-\x1f"\\\\\ud800-\udfff\U00010000-\U0010ffff]')
_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class Members(list[tuple[str, Any]]):
    """Names and values of an object in their order; a name may occur twice."""


def members_of(text: str) -> Members | None:
    """The members of the object that a text begins with; None without a readable object.

    Single quotes and control characters are valid, as in Spark. Values: None, bool, int, float, str, lists, Members.
    """
    start = text.lstrip(_BLANKS)
    try:
        try:
            found, _ = _DECODER.raw_decode(start)
        except ValueError:
            if "'" not in start:
                return None
            found, _ = _DECODER.raw_decode(_QUOTED.sub(_in_double_quotes, start))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Members) else None


def member(members: Members, names: Sequence[str]) -> str | None:
    """The text of the first of these names that has a value; of a repeated name, its first value other than null."""
    for name in names:
        for own, value in members:
            if own == name and value is not None:
                text = _text(value)
                if text is not None:
                    return text
                break
    return None


def _text(value: Any) -> str | None:
    """A string itself, another value as Spark writes it, or None."""
    if isinstance(value, str):
        return value if is_encodable(value) else None
    try:
        return _written(value)
    except RecursionError:
        return None


def is_encodable(text: str) -> bool:
    """Whether a text has bytes: it holds no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _double(value)
    if isinstance(value, str):
        return f'"{_UNWRITABLE.sub(_escape, value)}"'
    if isinstance(value, Members):
        return "{" + ",".join(f"{_written(name)}:{_written(own)}" for name, own in value) + "}"
    return "[" + ",".join(map(_written, value)) + "]"


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    halves = (units[at : at + 2].hex().upper() for at in range(0, len(units), 2))
    return _SHORT_ESCAPES.get(found[0]) or "".join(f"\\u{half}" for half in halves)


def _double(value: float) -> str:
    if math.isinf(value):
        return '"-Infinity"' if value < 0 else '"Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def _in_double_quotes(found: re.Match[str]) -> str:
    return f'"{_ESCAPED.sub(_requoted, found[0][1:-1])}"'


def _requoted(found: re.Match[str]) -> str:
    if found[2]:
        return '\\"'
    return "'" if found[1] == "'" else found[0]


def _members(pairs: list[tuple[str, Any]]) -> Members:
    if any(len(name) > _MOST_NAME_CHARACTERS for name, _ in pairs):
        msg = "a name is too long"
        raise ValueError(msg)
    return Members(pairs)


def _few_digits(text: str) -> str:
    if len(text) <= _MOST_DIGITS:
        return text
    # Spark's reader counts one digit less where a number that begins with zero has no fraction, or no exponent.
    lacks = text.lstrip("-").startswith("0") and ("." not in text) + ("e" not in text.lower())
    if sum(map(str.isdigit, text)) - lacks > _MOST_DIGITS:
        msg = "a number is too long"
        raise ValueError(msg)
    return text


def no_constant(word: str) -> None:
    """As `parse_constant` of a decoder, refuse `NaN` and `Infinity` by ValueError."""
    msg = f"{word} is not JSON"
    raise ValueError(msg)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=lambda text: int(_few_digits(text)),
    parse_float=lambda text: float(_few_digits(text)),
    parse_constant=no_constant,
    strict=False,
)


def property_path(name: str) -> str:
    """`$['name']`, or `$.name` for a name with a quote; raises ValueError for a name that neither can express."""
    if not name or name[0] in " \t\n\x0b\f\r":
        # The path parser skips leading blanks, and would read another property.
        msg = f"property {name!r} is empty or begins with a blank, which a path cannot say"
        raise ValueError(msg)
    if name == "*":
        msg = "property '*' stands for all properties in a path"
        raise ValueError(msg)
    if "'" not in name:
        return f"$['{name}']"
    if "." in name or "[" in name:
        msg = f"property {name!r} holds a quote together with `.` or `[`, which no path can say"
        raise ValueError(msg)
    return f"$.{name}"
