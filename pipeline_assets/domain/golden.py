"""Golden totals: control totals of an outside system, and whether what is published agrees with them.

Contains: a total, what it is compared with, and the rule that compares.
Add here: another thing to tell of a comparison.
Does not contain: reading totals (formats/golden_csv.py, resources/golden_query.py), what is
published (load/golden.py), how far a measure may be off (golden_tolerance.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal
from enum import StrEnum

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.golden_tolerance import GoldenTolerance
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.slices import Slice

REST = "_rest"
"""Ends the name of the figure that holds what a number of the ledger cannot: digits behind the 16th of an exact total."""
_EXACT = Context(prec=100)
"""Python rounds sums of decimals at the 28th digit; a total may have 38."""


@dataclass(frozen=True, order=True)
class GoldenMeasure:
    """A figure of a table that an outside system tells as well."""

    table: str
    name: str

    def __str__(self) -> str:
        """Render as `aggregates/daily_revenue:revenue`."""
        return f"{self.table}:{self.name}"


class GoldenSource(StrEnum):
    """Where totals come from; both may tell of the same day."""

    LANDING = "landing"
    """`golden/{date}.csv` beside the exports."""
    QUERY = "query"
    """The query of the setting `golden_query`."""


@dataclass(frozen=True)
class GoldenTotal:
    """What an outside system says of one measure of one project's day."""

    source: GoldenSource
    key: Slice
    measure: GoldenMeasure
    value: Decimal
    origin: str
    """Object and line, or row."""


@dataclass(frozen=True)
class GoldenFault:
    """A line that is no total, or a file that holds none: its reason, and what to do."""

    origin: str
    reason: str
    hint: str

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.origin}: {self.reason}. {self.hint}"


@dataclass(frozen=True)
class GoldenReading:
    """What was read of one source."""

    source: GoldenSource
    days: frozenset[date] = frozenset()
    """Days that it told of: what it said of them before no longer counts."""
    totals: tuple[GoldenTotal, ...] = ()
    faults: tuple[GoldenFault, ...] = ()
    partial_days: frozenset[date] = frozenset()
    """Of `days` those of which some line is no total: what was said of a measure before counts until a good line tells it."""
    asked: tuple[date, date] | None = None
    """First and last day that the source was asked for: what was wrong there before no longer is. None where it was not asked."""

    @classmethod
    def of(cls, source: GoldenSource, parts: Iterable[GoldenReading]) -> GoldenReading:
        """Several readings as one."""
        listed = list(parts)
        return cls(
            source,
            frozenset(day for part in listed for day in part.days),
            tuple(total for part in listed for total in part.totals),
            tuple(fault for part in listed for fault in part.faults),
            frozenset(day for part in listed for day in part.partial_days),
        )


class Agreement(StrEnum):
    """How a published figure stands to its golden total."""

    AGREES = "agrees"
    """They differ by no more than the tolerance."""
    DIFFERS = "differs"
    """They differ by more."""
    NOT_LOADED = "not loaded"
    """Nothing is on record of the day."""
    NOT_MEASURED = "not measured"
    """The day was published by another hand than a load, which measured nothing."""


@dataclass(frozen=True)
class GoldenComparison:
    """One golden total beside what is published."""

    total: GoldenTotal
    published: Decimal | None
    agreement: Agreement

    @property
    def is_good(self) -> bool:
        """Whether they agree."""
        return self.agreement is Agreement.AGREES

    @property
    def difference(self) -> Decimal | None:
        """How much more is published than is golden; None where nothing is known of what is published."""
        return None if self.published is None else _EXACT.subtract(self.published, self.total.value)

    @property
    def relative(self) -> float | None:
        """The difference as a share of the golden total, without sign; 1 where that is zero and something is published."""
        if self.difference is None:
            return None
        if not self.total.value:
            return 1.0 if self.difference else 0.0
        return float(abs(self.difference) / abs(self.total.value))

    @property
    def is_lacking(self) -> bool:
        """Whether less is published than is golden, or nothing."""
        return self.agreement is Agreement.NOT_LOADED or (
            not self.is_good and self.difference is not None and self.difference < 0
        )

    def __str__(self) -> str:
        """`rows 363 published, 400 golden (-37, 9.25 %)`."""
        name = self.total.measure.name
        if self.difference is None:
            return f"{name} {self.agreement.value}, {plain(self.total.value)} golden"
        share = f"{self.relative or 0:.2%}"
        shown = f"{plain(self.published)} published, {plain(self.total.value)} golden"
        return f"{name} {shown} ({signed(self.difference)}, {share})"


def plain(value: Decimal | None) -> str:
    """A number in digits, without an exponent and without zeros at its end."""
    if value is None:
        return ""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def signed(value: Decimal) -> str:
    """The same, with its sign."""
    return plain(value) if value <= 0 else f"+{plain(value)}"


def figure_of(figures: Mapping[str, float], name: str) -> Decimal | None:
    """A recorded figure as the exact number that was measured; None where it is not on record."""
    if name not in figures:
        return None
    return _EXACT.add(_exact(figures[name]), _exact(figures.get(f"{name}{REST}", 0)))


def rest_of(name: str, value: Decimal | int) -> dict[str, float]:
    """What the ledger's number of an exact total leaves out, under a name of its own; mostly nothing."""
    rest = _EXACT.subtract(Decimal(value), _exact(float(value)))
    return {f"{name}{REST}": float(rest)} if rest else {}


def _exact(value: float) -> Decimal:
    # The shortest text that is this number: the decimal it was made from, where that has 15 digits or fewer.
    return Decimal(repr(value))


def compare(
    total: GoldenTotal, published: Decimal | None, *, is_loaded: bool, within: GoldenTolerance
) -> GoldenComparison:
    """Compare exactly; the tolerance is the larger of a share of the golden total and an amount."""
    if published is None:
        return GoldenComparison(total, None, Agreement.NOT_MEASURED if is_loaded else Agreement.NOT_LOADED)
    is_good = abs(_EXACT.subtract(published, total.value)) <= within.of(total.value)
    return GoldenComparison(total, published, Agreement.AGREES if is_good else Agreement.DIFFERS)


def evaluation(comparisons: Sequence[GoldenComparison]) -> Evaluation:
    """`reconciles_with_golden` of one day of a table: of every total that tells of it."""
    bad = [one for one in comparisons if not one.is_good]
    relative: dict[str, float] = {}
    for one in comparisons:
        if one.relative is not None:
            name = f"{one.total.measure.name}_relative_difference"
            relative[name] = max(relative.get(name, 0.0), one.relative)
    return Evaluation(
        Check.RECONCILES_WITH_GOLDEN,
        not bad,
        few([str(one) for one in bad], 5) or None,
        "`tidemark reconcile --repair` proposes what closes it" if bad else None,
        {"mismatch_count": len(bad), "golden_totals": len(comparisons), **relative},
    )
