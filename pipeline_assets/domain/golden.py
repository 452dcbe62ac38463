"""Golden totals: control totals of an outside system, compared with published figures; the check and notices of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from enum import StrEnum

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.notices import Notice, NoticeKind, identity_of
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice

HINT = "`tidemark reconcile --repair` proposes what closes it"
REST = "_rest"
"""Suffix of the figure that holds the digits of an exact total that a double cannot: those after about the 16th."""
_EXACT = Context(prec=100)
"""By default Python rounds decimal sums to 28 digits; a total may have 38."""


@dataclass(frozen=True, order=True)
class GoldenMeasure:
    """A figure of a table that an outside system also reports."""

    table: str
    name: str

    def __str__(self) -> str:
        """Render as `aggregates/daily_revenue:revenue`."""
        return f"{self.table}:{self.name}"


class GoldenSource(StrEnum):
    """Where totals come from; both sources may cover the same day."""

    LANDING = "landing"
    """`golden/{date}.csv` beside the exports."""
    QUERY = "query"
    """The query of the setting `golden_query`."""


@dataclass(frozen=True)
class GoldenTotal:
    """An outside system's value of one measure of one project's day."""

    source: GoldenSource
    key: Slice
    measure: GoldenMeasure
    value: Decimal
    origin: str
    """Where it was read: object and line, or row of the query."""


@dataclass(frozen=True)
class GoldenFault:
    """A line that is not a total, or a file without totals, with the reason and the fix."""

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
    """Days that the source covered without a fault: its earlier totals of these days no longer count."""
    totals: tuple[GoldenTotal, ...] = ()
    """Of other days too: each replaces the earlier total of its measure alone."""
    faults: tuple[GoldenFault, ...] = ()
    asked: tuple[date, date] | None = None
    """First and last day that the source was asked for; earlier faults in this range are over. None where it was not asked."""


class Agreement(StrEnum):
    """How a published figure compares with its golden total."""

    AGREES = "agrees"
    """They differ by no more than the tolerance."""
    DIFFERS = "differs"
    """They differ by more than the tolerance."""
    NOT_LOADED = "not loaded"
    """The ledger has no record of the day."""
    NOT_MEASURED = "not measured"
    """Something other than a load published the day, so it was not measured."""


@dataclass(frozen=True)
class GoldenComparison:
    """One golden total with the published figure."""

    total: GoldenTotal
    published: Decimal | None
    agreement: Agreement

    @property
    def is_good(self) -> bool:
        """Whether the two agree."""
        return self.agreement is Agreement.AGREES

    @property
    def difference(self) -> Decimal | None:
        """The published figure minus the golden total; None where no figure is known."""
        return None if self.published is None else _EXACT.subtract(self.published, self.total.value)

    @property
    def relative(self) -> float | None:
        """The absolute difference as a share of the golden total; 1 where that is zero and the published figure is not."""
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
        share = f"{self.relative or 0:.2%}"
        shown = f"{plain(self.published)} published, {plain(self.total.value)} golden"
        return f"{name} {shown} ({signed(self.difference)}, {share})"


def plain(value: Decimal | None) -> str:
    """A number in digits, without an exponent and trailing zeros; empty for None."""
    if value is None:
        return ""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def signed(value: Decimal) -> str:
    """The same with a sign, `+` for a positive number."""
    return plain(value) if value <= 0 else f"+{plain(value)}"


def figure_of(figures: Mapping[str, float], name: str) -> Decimal | None:
    """A recorded figure as the exact number that was measured; None where it is not on record."""
    if name not in figures:
        return None
    return _EXACT.add(_exact(figures[name]), _exact(figures.get(f"{name}{REST}", 0)))


def rest_of(name: str, value: Decimal | int) -> dict[str, float]:
    """The remainder of an exact total that its double leaves out, under a name of its own; mostly empty."""
    rest = _EXACT.subtract(Decimal(value), _exact(float(value)))
    return {f"{name}{REST}": float(rest)} if rest else {}


def _exact(value: float) -> Decimal:
    # repr gives the shortest text of a double: the original decimal, if that had 15 digits or fewer.
    return Decimal(repr(value))


def compare(total: GoldenTotal, published: Decimal | None, settings: Settings, *, is_loaded: bool) -> GoldenComparison:
    """Compare exactly; the larger of the settings' share of the golden total and their amount is tolerated."""
    if published is None:
        return GoldenComparison(total, None, Agreement.NOT_MEASURED if is_loaded else Agreement.NOT_LOADED)
    share = _EXACT.multiply(_exact(settings.golden_tolerance), total.value.copy_abs())
    tolerated = max(share, _exact(settings.golden_absolute_tolerance))
    is_good = abs(_EXACT.subtract(published, total.value)) <= tolerated
    return GoldenComparison(total, published, Agreement.AGREES if is_good else Agreement.DIFFERS)


def evaluation(comparisons: Sequence[GoldenComparison]) -> Evaluation:
    """Evaluate `reconciles_with_golden` for one day of a table, over all of its comparisons."""
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
    """Table and day -> the totals that do not agree, with both numbers; None where all agree.

    A day that is not loaded yet is left out before its deadline: its totals may arrive before its exports.
    """
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
    """The notice of a new or changed mismatch, or of the end of one; None where nothing changed.

    `last`: the latest notice of a mismatch, or of its end, for this table and day.
    """
    before = last.reason if last is not None and last.kind is NoticeKind.GOLDEN_MISMATCH else None
    if mismatch == before:
        return None
    kind = NoticeKind.GOLDEN_AGREEMENT if mismatch is None else NoticeKind.GOLDEN_MISMATCH
    last_id = last.id if last is not None else None
    identity = identity_of(kind, *place, mismatch or "", last_id or "")
    if mismatch is None:
        return Notice(identity, kind, *place, at, run_id, refusal_id=last_id)
    return Notice(identity, kind, *place, at, run_id, reason=mismatch, hint=HINT)
