"""What an event's properties tell of revenue (for tables/daily_revenue.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pipeline_assets.domain.identity import named
from pipeline_assets.domain.json_members import member, members_of
from pipeline_assets.domain.numerals import decimal_units, half_up
from pipeline_assets.domain.settings import Settings

PLACES = 6
"""Decimal places of amounts."""
_DIGITS, _FACTOR_DIGITS = 28, 18
"""An amount has ten digits less than a sum, so that absurd values cannot overflow a sum and fail the load."""
UNKNOWN = "unknown"


class Money(NamedTuple):
    """What one event tells of revenue."""

    units: int | None
    """The amount in millionths; None without revenue, or if it is no number that fits."""
    currency: str | None
    """`unknown` if absent or blank; None without an amount."""
    is_claimed: bool
    """Whether revenue or a price is delivered, readable or not, or the properties do not read as a JSON object."""


NO_MONEY = Money(None, None, False)


@dataclass(frozen=True)
class RevenueRule:
    """The names of properties that hold revenue, and the events that repeat the revenue of others."""

    revenue: tuple[str, ...]
    price: tuple[str, ...]
    quantity: tuple[str, ...]
    currency: tuple[str, ...]
    repeating_types: frozenset[str]
    """Event types such as those that the vendor computes beside a sale: it "doesn't count computed events separately"
    (amplitude.com/docs, Track revenue). Such an event has and claims no revenue."""

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
        """Texts one of which is in the properties of every event with revenue or a price: searching is cheaper than parsing.

        JSON may write a name with escapes, so any text with a backslash may contain it.
        """
        names = (*self.revenue, *self.price)
        return (*(name for name in names if not any(other != name and other in name for other in names)), "\\")

    def money_of(self, properties: str) -> Money:
        """The money of an event, from the text of its properties, which contains one of `traces`."""
        members = members_of(properties)
        if members is None:
            # A text that does not read counts as unreadable revenue and not as an event without revenue.
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
