"""Revenue of an event, from its properties (for tables/aggregates.py)."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import NamedTuple

from pipeline_assets.domain.identity import named
from pipeline_assets.domain.json_members import member, members_of
from pipeline_assets.domain.settings import Settings

_MOST_CHARACTERS = 1_000
_NUMBER = re.compile(r"[+-]?(?=\.?\d)\d*\.?\d*(?:[eE][+-]?\d{1,10})?")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LONG = range(-(1 << 63), 1 << 63)
PLACES = 6
_MILLIONTH = Decimal(1).scaleb(-PLACES)
_EXACT = Context(prec=100)
_DIGITS, _FACTOR_DIGITS = 28, 18
"""An amount has ten digits less than a sum, so that absurd values cannot overflow it."""
UNKNOWN = "unknown"


class Money(NamedTuple):
    """Revenue of one event."""

    amount: Decimal | None
    """In millionths, half up; None without revenue, or if it is no number that fits."""
    currency: str | None
    """`unknown` if absent or blank; None without an amount."""
    is_claimed: bool
    """Whether revenue or a price is delivered, readable or not, or the properties are no JSON object."""


NO_MONEY = Money(None, None, False)
_UNREADABLE = Money(None, None, True)


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
            return _UNREADABLE
        revenue, price = member(members, self.revenue), member(members, self.price)
        if revenue is not None:
            amount = _number(revenue, _DIGITS)
        elif price is not None:
            quantity = member(members, self.quantity)
            one, count = (_number(text, _FACTOR_DIGITS) for text in (price, "1" if quantity is None else quantity))
            amount = None if one is None or count is None else _rounded(_EXACT.multiply(one, count), _DIGITS)
        else:
            return NO_MONEY
        if amount is None:
            return _UNREADABLE
        return Money(amount, named(member(members, self.currency)) or UNKNOWN, True)


def _number(text: str, digits: int) -> Decimal | None:
    """A text as decimal(digits, PLACES); None for no number that fits."""
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= _MOST_CHARACTERS else None
    return None if found is None else _rounded(Decimal(found[0]), digits)


def _rounded(number: Decimal, digits: int) -> Decimal | None:
    with suppress(InvalidOperation):
        return number.quantize(_MILLIONTH, ROUND_HALF_UP, Context(prec=digits))
    return None


def long_of(text: str) -> int | None:
    """A text as a 64-bit integer, or None."""
    found = _WHOLE.fullmatch(text.strip())
    if found is None or len(text) > _MOST_CHARACTERS or int(found[0]) not in _LONG:
        return None
    return int(found[0])
