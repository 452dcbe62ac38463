"""Revenue of an event, from its properties (for tables/aggregates.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from pipeline_assets.domain.identity import named
from pipeline_assets.domain.json_members import member, members_of
from pipeline_assets.domain.settings import Settings

_MOST_BYTES = 1_000
_MOST_WHOLE_DIGITS = 38
_INT = range(-(1 << 31), 1 << 31)
_LONG = range(-(1 << 63), 1 << 63)
_JAVA_BLANKS = "".join(map(chr, range(33)))
_NUMBER = re.compile(r"([+-]?)(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_MOST_EXPONENT_DIGITS = 10


def decimal_units(text: str, precision: int, scale: int) -> int | None:
    """A text as decimal(precision, scale), half up, in units of its last place; None for no number that fits."""
    if len(text.encode()) > _MOST_BYTES:
        return None
    found = _NUMBER.fullmatch(text.strip(_JAVA_BLANKS))
    # Java reads digits of the first plane only.
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
    units = 0 if places - scale > len(digits) else half_up(int(digits), places - scale)
    if units >= 10**precision:
        return None
    return -units if sign == "-" else units


def half_up(number: int, places: int) -> int:
    """The number without its last decimal places, half away from zero; with zeros added for negative `places`."""
    if places <= 0:
        return number * int(10**-places)
    unit = int(10**places)
    rounded = (2 * abs(number) + unit) // (2 * unit)
    return -rounded if number < 0 else rounded


def long_of(text: str) -> int | None:
    """A text as a 64-bit integer, or None."""
    found = _WHOLE.fullmatch(text.strip(f"{_JAVA_BLANKS}\x7f"))
    if found is None or len(found[0]) > _MOST_BYTES:
        return None
    number = int(found[0])
    return number if number in _LONG else None


PLACES = 6
_DIGITS, _FACTOR_DIGITS = 28, 18
"""An amount has ten digits less than a sum, so that absurd values cannot overflow it."""
UNKNOWN = "unknown"


class Money(NamedTuple):
    """Revenue of one event."""

    units: int | None
    """The amount in millionths; None without revenue, or if it is no number that fits."""
    currency: str | None
    """`unknown` if absent or blank; None without an amount."""
    is_claimed: bool
    """Whether revenue or a price is delivered, readable or not, or the properties are no JSON object."""


NO_MONEY = Money(None, None, False)


@dataclass(frozen=True)
class RevenueRule:
    """The properties that hold revenue, and the events that repeat the revenue of others."""

    revenue: tuple[str, ...]
    price: tuple[str, ...]
    quantity: tuple[str, ...]
    currency: tuple[str, ...]
    repeating_types: frozenset[str]
    """Types without revenue: the vendor "doesn't count computed events separately" (its docs, Track revenue)."""

    @classmethod
    def of(cls, settings: Settings) -> RevenueRule:
        """The rule that the settings define."""
        return cls(
            settings.revenue_properties,
            settings.price_properties,
            settings.quantity_properties,
            settings.currency_properties,
            frozenset(settings.event_types_without_revenue),
        )

    @property
    def traces(self) -> tuple[str, ...]:
        """Texts of which every event's properties with revenue hold one; escapes may spell a name, so a backslash is one."""
        names = (*self.revenue, *self.price)
        return (*(name for name in names if not any(other != name and other in name for other in names)), "\\")

    def money_of(self, properties: str) -> Money:
        """The money of an event, from the text of its properties."""
        members = members_of(properties)
        if members is None:
            # Unreadable properties count as unreadable revenue, not as none.
            return Money(None, None, True)
        revenue, price = member(members, self.revenue), member(members, self.price)
        if revenue is not None:
            units = decimal_units(revenue, _DIGITS, PLACES)
        elif price is not None:
            units = _product(price, member(members, self.quantity))
        else:
            return NO_MONEY if properties.startswith("{") else Money(None, None, True)
        if units is None:
            return Money(None, None, True)
        return Money(units, named(member(members, self.currency)) or UNKNOWN, True)


def _product(price: str, quantity: str | None) -> int | None:
    """Price times quantity, or the price alone, in millionths."""
    one = decimal_units(price, _FACTOR_DIGITS, PLACES)
    count = 10**PLACES if quantity is None else decimal_units(quantity, _FACTOR_DIGITS, PLACES)
    if one is None or count is None:
        return None
    units = half_up(one * count, PLACES)
    return units if abs(units) < 10**_DIGITS else None
