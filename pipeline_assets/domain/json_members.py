"""Members of property bags, which are JSON objects, and the paths by which Spark finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def no_constant(word: str) -> None:
    """As `parse_constant` of a decoder, refuse `NaN` and `Infinity` by ValueError."""
    msg = f"{word} is not JSON"
    raise ValueError(msg)


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=no_constant, strict=False)


def members_of(text: str) -> dict[str, Any] | None:
    """The members of a JSON object, numbers as they are written; None for any other text. A name's last value counts."""
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def member(members: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these names that has a value, as text; what is neither a text nor a number as JSON."""
    values = (members[name] for name in names if members.get(name) is not None)
    texts = (value if isinstance(value, str) else json.dumps(value) for value in values)
    return next(filter(is_encodable, texts), None)


def is_encodable(text: str) -> bool:
    """Whether a text has bytes: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
