"""The path by which Spark's `get_json_object` reads one property of an event, or why it cannot read that name."""

from __future__ import annotations


def property_path(name: str) -> str:
    """`$['name']`, or `$.name` where the name holds a quote; raises ValueError for a name that neither form can express."""
    if not name or name[0] in " \t\n\x0b\f\r":
        # The path parser skips leading white space, and would read another property.
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
