"""Numbers in texts as Spark casts them to decimals and longs."""

from __future__ import annotations

import re

_MOST_BYTES = 1_000
_MOST_WHOLE_DIGITS = 38
_INT = range(-(1 << 31), 1 << 31)
_LONG = range(-(1 << 63), 1 << 63)
_JAVA_BLANKS = "".join(map(chr, range(33)))
_NUMBER = re.compile(r"([+-]?)(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_MOST_EXPONENT_DIGITS = 10


def decimal_units(text: str, precision: int, scale: int) -> int | None:
    """A text as decimal(precision, scale), half up, in units of its last place; None if it is no number, or does not fit.

    A text of more than 1000 bytes is no amount.
    """
    if len(text.encode()) > _MOST_BYTES:
        return None
    found = _NUMBER.fullmatch(text.strip(_JAVA_BLANKS))
    # A digit beyond the first plane is none to Java.
    if found is None or max(text) > "\uffff":
        return None
    sign, whole, part, power = found.groups()
    exponent = int(power or 0)
    digits = str(int(whole + part))
    places = len(part) - exponent
    if len(str(abs(exponent))) > _MOST_EXPONENT_DIGITS or places not in _INT:
        return None
    if digits == "0":
        return 0
    if len(digits) - places > _MOST_WHOLE_DIGITS:
        return None
    # A number below half of the last place is zero, however small.
    units = 0 if places - scale > len(digits) else half_up(int(digits), places - scale)
    if units >= 10**precision:
        return None
    return -units if sign == "-" else units


def half_up(number: int, places: int) -> int:
    """The number without its last decimal places, half away from zero; with zeros more for negative `places`."""
    if places <= 0:
        return number * int(10**-places)
    unit = int(10**places)
    rounded = (2 * abs(number) + unit) // (2 * unit)
    return -rounded if number < 0 else rounded


def long_of(text: str) -> int | None:
    """A text as a 64-bit integer; None if it is none."""
    found = _WHOLE.fullmatch(text.strip(f"{_JAVA_BLANKS}\x7f"))
    if found is None or len(found[0]) > _MOST_BYTES:
        return None
    number = int(found[0])
    return number if number in _LONG else None
