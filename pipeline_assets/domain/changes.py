"""Changes of slices: their cause, the changed keys, and the bounds for final slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from pipeline_assets.domain.checks import ACCEPTED, Check, Evaluation
from pipeline_assets.domain.settings import KEYS_ADDED, KEYS_CHANGED, KEYS_REMOVED, Settings

_CODE = ", code"
"""Suffix of the text of a cause when the code changed as well."""


class CauseKind(StrEnum):
    """Why a slice is built or was published; the value is the recorded text, or its beginning."""

    UNCHANGED = ""
    FIRST_BUILD = "first build"
    INPUTS = "changed "
    CROSS_DAY = "changed rows of its events on other days"
    CODE = "code"
    DELIVERY = "delivery"
    SAME_ROWS = "the same rows, in other objects or lines"
    FILES_GONE = "data files were gone"
    """An operator had a slice read again whose files were gone from the warehouse."""
    EXCLUSION = "exclusion"
    ROLLBACK = "rollback"
    REBUILD = "rebuild"
    UNRECORDED_RUN = "unrecorded run "
    """Found in the table: the named run published it and died before it recorded that."""
    FOREIGN = "foreign"
    """Found in the table: no Tidemark run published it."""
    UNDELETED = "delete files of another program removed, which are no way to erase; rows that came back: "
    """The recorded files were published again without delete files; the text ends with the number of rows."""
    UNKNOWN = "changed since it was recorded"
    """The tables changed and were not compared with the ledger yet."""
    OTHER = "other"


_KINDS = {kind.value: kind for kind in CauseKind}


@dataclass(frozen=True)
class Cause:
    """A kind of cause, and the text that is recorded and shown."""

    kind: CauseKind
    text: str

    @classmethod
    def of(cls, kind: CauseKind, detail: object = "", *, has_new_code: bool = False) -> Cause:
        """A cause with the detail that ends its text; `has_new_code`: the code changed as well."""
        return cls(kind, f"{kind.value}{detail}{_CODE if has_new_code else ''}")

    @classmethod
    def parse(cls, text: str) -> Cause:
        """The cause of a recorded text; an unknown text is `OTHER`."""
        begun = (kind for kind in CauseKind if kind.value.endswith(" ") and text.startswith(kind.value))
        return cls(_KINDS.get(text.removesuffix(_CODE), next(begun, CauseKind.OTHER)), text)

    @property
    def has_new_code(self) -> bool:
        """Whether the code changed."""
        return self.kind is CauseKind.CODE or self.text.endswith(_CODE)

    @property
    def is_found(self) -> bool:
        """Whether the cause was found in the table, not recorded by the publishing run."""
        return self.kind in (CauseKind.FOREIGN, CauseKind.UNRECORDED_RUN)

    def __str__(self) -> str:
        """The text."""
        return self.text


UNCHANGED = Cause.of(CauseKind.UNCHANGED)


@dataclass(frozen=True)
class KeyChange:
    """Kept, added, removed and changed keys of a slice, as cause -> number of keys."""

    kept: int = 0
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    @property
    def before(self) -> int:
        """Number of keys that the slice had before."""
        return self.kept + sum(self.removed.values()) + sum(self.changed.values())

    @property
    def _parts(self) -> dict[str, Mapping[str, int]]:
        return {KEYS_ADDED: self.added, KEYS_REMOVED: self.removed, KEYS_CHANGED: self.changed}

    @property
    def totals(self) -> dict[str, int]:
        """Measure -> number of keys, over all causes."""
        return {name: sum(causes.values()) for name, causes in self._parts.items()}

    @property
    def figures(self) -> dict[str, float]:
        """The totals, and a figure per cause such as `keys_removed_moved_day`."""
        parts = [(name, *entry) for name, causes in self._parts.items() for entry in causes.items()]
        by_cause = {f"{name}_{cause.replace(' ', '_')}": count for name, cause, count in parts}
        return {"keys_kept": self.kept, **self.totals, **by_cause}

    def causes(self, measure: str) -> str:
        """`withdrawn 12, moved day 3`."""
        parts = sorted(self._parts[measure].items(), key=lambda part: -part[1])
        return ", ".join(f"{cause} {count}" for cause, count in parts)


@dataclass(frozen=True)
class Baseline:
    """A slice when it became final or an operator last accepted a change, with its key changes since."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """Measure -> value; empty for an empty slice, so that filling it is no change."""
    keys: int = 0
    """Number of keys then; 0 = not compared since."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Key measure -> sum over all publications since."""
    content: str | None = None
    """Digest then; a slice that returns to it has not changed."""
    since: str | None = None
    """When the building run began: ISO text; None = when the slice became final."""

    def is_again(self, content: str) -> bool:
        """Whether this digest is the baseline's."""
        return self.content is not None and self.content == content

    def of(self, measures: Mapping[str, float]) -> Self:
        """The baseline with these measures only; a measure without a recorded value is not compared."""
        return replace(self, figures={name: self.figures[name] for name in measures if name in self.figures})

    def after(self, change: KeyChange | None) -> Self:
        """The baseline after a publication with these key changes."""
        if change is None:
            return self
        totals = {name: self.totals.get(name, 0) + count for name, count in change.totals.items()}
        return replace(self, keys=self.keys or change.before, totals=totals)

    def completed(self, measures: Mapping[str, float]) -> Self:
        """The baseline with these values for measures that it lacks."""
        return replace(self, figures={**measures, **self.figures})

    def grown(self, brought: Mapping[str, float], after: Mapping[str, float], now: str | None) -> Self:
        """The baseline, without digest, plus what recoveries brought by `now`, of which `after` may hold less."""
        figures = {
            name: min(value + brought.get(name, 0), max(value, after.get(name, value)))
            for name, value in self.figures.items()
        }
        added = min(self.totals.get(KEYS_ADDED, 0), int(brought.get("rows", 0)))
        totals = {name: count - added if name == KEYS_ADDED else count for name, count in self.totals.items()}
        return replace(self, figures=figures, keys=self.keys + added, totals=totals, content=None, since=now)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for the ledger."""
        return {**vars(self), "figures": dict(self.figures), "totals": dict(self.totals)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(row["figures"], row["keys"], row["totals"], row.get("content"), row.get("since"))


def is_bounded(before: Mapping[str, float], after: Mapping[str, float], *, was_final: bool, settings: Settings) -> bool:
    """Whether the slice was final, and its largest count, if it has counts, exceeds `change_min_rows`."""
    counts = [value for value in (*before.values(), *after.values()) if isinstance(value, int)]
    return was_final and (max(counts) > settings.change_min_rows if counts else bool(before or after))


def explain_change(
    table: str,
    before: Baseline,
    after: Mapping[str, float],
    keys: KeyChange | None,
    *,
    content: str,
    was_final: bool,
    accepted_reason: str | None,
    cause: str,
    settings: Settings,
    brought: Mapping[str, float] = {},
) -> Evaluation:
    """Evaluate `change_is_explained`: bounds on every measure, and on shares of added, removed and changed keys.

    Measures are compared with `before`, so that small changes add up; keys are bounded per publication as well.
    `content`: the digest now; returning to the baseline's is no change. `brought`: what of each measure a recovery of
    missing hours delivered since; it never counts as growth.
    """
    figures = {f"{name}_before": value for name, value in before.figures.items()}
    figures |= {f"{name}_after": value for name, value in after.items()}
    figures |= keys.figures if keys is not None else {}
    beyond: list[str] = []
    if not before.is_again(content) and is_bounded(before.figures, after, was_final=was_final, settings=settings):
        beyond += _measures_beyond(table, before.figures, after, brought, settings)
        beyond += _keys_beyond(table, before, keys, brought, settings)
    if not beyond:
        return Evaluation(Check.CHANGE_IS_EXPLAINED, True, figures=figures)
    if accepted_reason is not None:
        reason = f"{ACCEPTED}: {accepted_reason} ({'; '.join(beyond)}; cause: {cause})"
        return Evaluation(Check.CHANGE_IS_EXPLAINED, True, reason, figures=figures)
    return Evaluation(
        Check.CHANGE_IS_EXPLAINED,
        False,
        f"final slice {'; '.join(beyond)} (cause: {cause})",
        "Correct the delivery, or accept the change with a reason (--accept-changes, accept_changes in run config)",
        figures,
    )


def next_baseline(
    before: Baseline,
    after: Mapping[str, float],
    keys: KeyChange | None,
    change: Evaluation,
    *,
    content: str,
    was_final: bool,
    settings: Settings,
    now: str | None = None,
    brought: Mapping[str, float] = {},
) -> Baseline:
    """The baseline of a final slice that passed `change`.

    It is new where the slice becomes final, is filled, is accepted, or returns to the baseline's content. Otherwise
    it is `before` with the key changes and `brought` added; a measure that it lacked is bounded from now on.
    """
    was_bounded = is_bounded(before.figures, after, was_final=was_final, settings=settings)
    if not was_bounded or not before.figures or change.is_accepted_change or before.is_again(content):
        return Baseline(after, content=content, since=now)
    kept = before.after(keys)
    return (kept.grown(brought, after, now) if brought else kept).completed(after)


def _measures_beyond(
    table: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    brought: Mapping[str, float],
    settings: Settings,
) -> Iterator[str]:
    for name in sorted(before):
        old, new = before[name], after.get(name, 0.0)
        shrink, growth = settings.change_bound(table, name)
        change, own = _relative_change(old, new), _relative_change(old, new - brought.get(name, 0.0))
        if change < -shrink or own > growth:
            size = "from nothing" if old == 0 else f"by {abs(change):.1%}"
            yield f"{'shrinks' if change < 0 else 'grows'} {size}: {name} {old:g} -> {new:g}"


def _keys_beyond(
    table: str, baseline: Baseline, keys: KeyChange | None, brought: Mapping[str, float], settings: Settings
) -> Iterator[str]:
    if keys is None or not keys.before:
        return
    verbs = {KEYS_ADDED: "gains", KEYS_REMOVED: "loses", KEYS_CHANGED: "changes"}
    since = baseline.after(keys)
    for name, count in keys.totals.items():
        _, most = settings.change_bound(table, name)
        lifted = brought.get("rows", 0) if name == KEYS_ADDED else 0
        if (count - lifted) / keys.before > most:
            share = f"{count / keys.before:.1%} of its {keys.before} keys"
            yield f"{verbs[name]} {share}: {keys.causes(name)}"
        elif count and (since.totals[name] - lifted) / since.keys > most:
            share = f"{since.totals[name] / since.keys:.1%} of its {since.keys} keys"
            yield f"{verbs[name]} {share} since it was final or last accepted: now {keys.causes(name)}"


def _relative_change(old: float, new: float) -> float:
    if old == new:
        return 0.0
    return float("inf") if old == 0 else (new - old) / abs(old)
