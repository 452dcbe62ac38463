"""Checks: names, results, the rule for batches, and operators' acceptances of refusals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pipeline_assets.domain.days import day_in
from pipeline_assets.domain.deliveries import UNREADABLE, describe_quarantined
from pipeline_assets.domain.errors import SettingsError, UsageError, read_again
from pipeline_assets.domain.plain_text import LONGEST_REASON, recordable
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice


@dataclass(frozen=True)
class CheckRule:
    """A check that tables list; rules with the same name are equal."""

    name: str
    description: str = field(default="", compare=False)
    is_blocking: bool = field(default=True, compare=False)
    settings_read: tuple[str, ...] = field(default=(), compare=False)
    """Settings that hold its bounds: when one changes, a refusal is tried again."""
    evaluate: Callable[[Totals], Evaluation] | None = field(default=None, compare=False)
    """For checks that need only totals; load/ evaluates the others."""


@dataclass(frozen=True)
class Totals:
    """The audit's measurements of a staged slice of an aggregate."""

    found: Mapping[str, Any]
    """Measure -> total over the slice's rows: an int or an exact decimal."""
    control: Mapping[str, Any]
    """Measure -> the same total computed independently from refined.events, and further results of the controls."""
    settings: Settings


def _reconcile_with_refined(totals: Totals) -> Evaluation:
    differing = [name for name, value in totals.found.items() if value != totals.control.get(name, 0)]
    reason = ", ".join(
        f"{name} {totals.found[name]} here, {totals.control.get(name, 0)} in refined/events" for name in differing
    )
    return Evaluation(
        Check.RECONCILES_WITH_REFINED,
        not differing,
        reason or None,
        "This is a defect of Tidemark: report it with the day's refined rows" if differing else None,
        {
            "mismatch_count": len(differing),
            **{f"{name}_in_refined": number(totals.control.get(name)) for name in totals.found},
        },
    )


class Check:
    """The checks of the built-in tables."""

    DELIVERY_RECONCILES = CheckRule(
        "delivery_reconciles",
        "Every line of every object is accounted for, and what should be there is.",
        settings_read=("max_unreadable_objects", "max_quarantined_share"),
    )
    DELIVERY_COMPLETE = CheckRule("delivery_complete", "Every hour has its marker.", is_blocking=False)
    UNIQUE_EVENT_KEY = CheckRule(
        "unique_event_key", "No key twice in the slice or across the dedupe window, none null."
    )
    RECONCILES_WITH_RAW = CheckRule("reconciles_with_raw", "Rows in raw = rows out + duplicates by reason.")
    CHANGE_IS_EXPLAINED = CheckRule(
        "change_is_explained",
        "A final slice does not shrink or grow beyond bounds unless an operator accepts it.",
        settings_read=("change_min_rows", "change_max_shrink", "change_max_growth", "change_bounds"),
    )
    RECONCILES_WITH_REFINED = CheckRule(
        "reconciles_with_refined", "Totals equal those of the refined slice.", evaluate=_reconcile_with_refined
    )
    RECONCILES_WITH_GOLDEN = CheckRule(
        "reconciles_with_golden",
        "Figures agree with the totals of an outside system (golden/{date}.csv, golden_query), where there are any.",
        is_blocking=False,
    )
    SNAPSHOT_IS_WHOLE = CheckRule(
        "snapshot_is_whole",
        "The object is a snapshot, each of its lines is an item, and no id is empty or there twice.",
        settings_read=("max_snapshot_bytes", "max_line_bytes"),
    )
    COUNT_IS_EXPECTED = CheckRule(
        "count_is_expected",
        "The items are about as many as in the snapshot before, unless an operator accepts it.",
        settings_read=("snapshot_max_shrink", "snapshot_max_growth"),
    )
    RECONCILES_WITH_SNAPSHOTS = CheckRule(
        "reconciles_with_snapshots",
        "Each item of each snapshot, or of each day of a delivered history, lies in exactly one interval, and nothing else does.",
    )
    INTERVALS_ARE_WHOLE = CheckRule(
        "intervals_are_whole",
        "No id has two intervals on one day; a delivered history is whole, and tells of about as many items on each day as the "
        "one before it, unless an operator accepts it.",
        settings_read=("max_snapshot_bytes", "max_line_bytes", "snapshot_max_shrink", "snapshot_max_growth"),
    )
    ITEMS_ARE_KNOWN = CheckRule(
        "items_are_known", "The items are those of the day of the events, or the check names whose they are."
    )
    FILES_ARE_THERE = CheckRule("files_are_there")
    """No table lists it: the refusal of a slice while a data file of it is gone."""
    METHODS_AGREE = CheckRule("methods_agree", "Joined with snapshots and with intervals, the rows are the same.")


_BUILT_IN = {rule.name: rule for rule in vars(Check).values() if isinstance(rule, CheckRule)}


def number(value: Any) -> float:
    """A figure as a number that the ledger and Dagster can hold; 0 for None."""
    if value is None:
        return 0
    return float(value) if isinstance(value, (Decimal, float)) else int(value)


def lost_file(table: str, key: Slice, path: str) -> Evaluation:
    """The refusal of a slice of which a data file is gone; the message names the file without its folder."""
    reason = f"its data file {path.rpartition('/')[2]} is gone from the warehouse"
    return Evaluation(
        Check.FILES_ARE_THERE, False, reason, f"Put it back and load the day, or: {read_again(table, key)}"
    )


class BoundTexts:
    """A frozen record with bounded reason and hint, so that a new one equals its ledger row."""

    def __post_init__(self) -> None:
        """Bound both."""
        for name in ("reason", "hint"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, recordable(text))


UNREAD_OBJECTS = "unread_objects"
"""Figure of a refusal of unreadable objects, which every load tries again."""
ACCEPTED = "accepted"


@dataclass(frozen=True)
class Evaluation(BoundTexts):
    """The result of one check for one slice or batch."""

    check: CheckRule
    is_passed: bool
    reason: str | None = None
    hint: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    is_evaluated: bool = True
    """False where the table lists the check but nothing evaluated it; it never counts as passed."""

    @property
    def is_accepted_change(self) -> bool:
        """Whether it passes only because an operator accepted the change."""
        is_change = self.check == Check.CHANGE_IS_EXPLAINED
        return is_change and self.is_passed and (self.reason or "").startswith(f"{ACCEPTED}: ")

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for the ledger."""
        return {
            "check": self.check.name,
            "is_passed": self.is_passed,
            "reason": self.reason,
            "cure": self.hint,
            "figures": dict(self.figures),
            **({} if self.is_evaluated else {"is_evaluated": False}),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Evaluation:
        """The inverse of `to_json`."""
        rule = _BUILT_IN.get(row["check"], CheckRule(row["check"]))
        is_evaluated = row.get("is_evaluated", True)
        return cls(rule, row["is_passed"], row["reason"], row["cure"], row["figures"], is_evaluated)


def not_evaluated(rule: CheckRule) -> Evaluation:
    """A failed evaluation of a check that the table lists but nothing evaluated."""
    hint = "Evaluate it where the table is audited, or take it from the table's checks: docs/extending.md"
    return Evaluation(rule, False, "was not evaluated", hint, is_evaluated=False)


def complete(rules: Sequence[CheckRule], evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """One evaluation for each check that the table lists, in its order."""
    by_rule = {evaluation.check: evaluation for evaluation in evaluations}
    return tuple(by_rule.get(rule) or not_evaluated(rule) for rule in rules)


@dataclass(frozen=True)
class BatchFigures:
    """Sums over the deliveries of one batch in landing."""

    objects: int
    unreadable: tuple[str, ...]
    """`key: reason` of each object that could not be read."""
    lines: int
    rows: int
    quarantined: int
    blank: int
    line_reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason with its column -> quarantined lines; UNREADABLE + column -> values that are null in kept rows."""
    quarantined_in: tuple[str, ...] = ()

    @property
    def told_quarantined(self) -> str | None:
        """The quarantined lines and their reasons; None without any."""
        if not self.quarantined:
            return None
        first, *more = self.quarantined_in or ("its objects",)
        where = f"{len(more) + 1} objects, first {first}" if more else first
        return describe_quarantined(self.quarantined, where, self.line_reasons)


_FEW_LINES = 10
"""This many quarantined lines never refuse a batch, whatever their share."""
MISSING_HINT = (
    "A rewrite under way ends by itself: load again later. Else check TIDEMARK_LANDING_URL, credentials and "
    "lifecycle rules, have the vendor export the day again, or accept that they are gone, with a reason "
    "(--accept-missing, accept_missing in run config)"
)


def reconcile_batch(figures: BatchFigures, settings: Settings, missing: tuple[str, ...] = ()) -> Evaluation:
    """Evaluate `delivery_reconciles` for a batch with deliveries; `missing`: recorded but unlisted objects."""
    numbers = {
        "objects": figures.objects,
        "unreadable_objects": len(figures.unreadable),
        "lines": figures.lines,
        "rows": figures.rows,
        "quarantined_lines": figures.quarantined,
        "blank_lines": figures.blank,
        "missing_objects": len(missing),
        "mismatch_count": abs(figures.lines - figures.rows - figures.quarantined - figures.blank),
    }
    for reason, lines in sorted(figures.line_reasons.items()):
        name = reason if reason.startswith(UNREADABLE) else f"quarantined_{reason.partition(':')[0]}"
        numbers[name] = numbers.get(name, 0) + lines

    def refuse(reason: str, hint: str) -> Evaluation:
        return Evaluation(Check.DELIVERY_RECONCILES, False, reason, hint, numbers)

    if missing:
        return refuse(f"deliveries missing from landing: {len(missing)}, first {missing[0]}", MISSING_HINT)
    if len(figures.unreadable) > settings.max_unreadable_objects:
        return refuse(
            f"unreadable objects: {len(figures.unreadable)}, first {figures.unreadable[0]}",
            "Have the vendor export that hour again, or put its own object back under this name",
        )
    if numbers["mismatch_count"]:
        return refuse(
            f"{figures.lines} lines but {figures.rows} rows, {figures.quarantined} quarantined, {figures.blank} blank",
            "This is a defect of Tidemark: report it with the batch's objects",
        )
    share = figures.quarantined / figures.lines if figures.lines else 0.0
    if figures.quarantined > _FEW_LINES and share > settings.max_quarantined_share:
        return refuse(
            f"{figures.quarantined} of {figures.lines} lines are quarantined ({share:.2%}): {figures.told_quarantined}",
            "Look at raw.quarantine for the lines; have the export corrected, or raise TIDEMARK_MAX_QUARANTINED_SHARE",
        )
    return Evaluation(Check.DELIVERY_RECONCILES, True, figures.told_quarantined, figures=numbers)


def a_reason(subject: str, text: str) -> str:
    """The reason as the ledger keeps it; raises UsageError for a blank or overlong one."""
    if not text.strip():
        raise UsageError(subject, "needs a reason", "Say why it is right; it stays on record")
    if len(text) > LONGEST_REASON:
        raise UsageError(
            subject,
            f"has a reason of {len(text):,} characters",
            f"Say why in {LONGEST_REASON:,} at most; it stays on record",
        )
    return recordable(text)


class AcceptanceKind(StrEnum):
    """Kinds of acceptance of a table's day; the value is the name in run config."""

    CHANGE = "accept_changes"
    MISSING = "accept_missing"


Acceptances = Mapping[tuple[str, Slice], str]
"""Table and slice -> why an operator accepts what a check would refuse."""


def read_acceptances(
    config: Mapping[AcceptanceKind, Mapping[str, str]],
    kinds: Mapping[str, AcceptanceKind],
    projects: Sequence[str],
    shared: Collection[str] = (),
) -> Acceptances:
    """Parse run config: for each kind, `table:day/project` -> reason.

    `kinds`: table -> the kind that it allows, also for an entry of another kind; `shared`: tables without projects.
    Of two entries for the same day the first counts.
    Raises SettingsError for an unknown table or day, or a lacking project; UsageError for a bad reason.
    """
    found: dict[tuple[str, Slice], str] = {}
    for kind, entries in config.items():
        for name, reason in entries.items():
            named = [ALL_PROJECTS] if name.partition(":")[0] in shared else projects
            found.setdefault(_named(kind, name, kinds, named), a_reason(f"{kind.value} {name}", reason))
    return found


def _named(
    kind: AcceptanceKind, name: str, kinds: Mapping[str, AcceptanceKind], projects: Sequence[str]
) -> tuple[str, Slice]:
    table, _, rest = name.partition(":")
    day, _, project = rest.partition("/")
    subject = f"{kind.value} {name!r}"
    parsed = day_in(day)
    if table not in kinds or parsed is None:
        example = next(name for name, of in kinds.items() if of is kind)
        raise SettingsError(
            subject, "is not `table:day/project` with a reason", f'Example: {{"{example}:2026-02-02/10001": "why"}}'
        )
    if kind is AcceptanceKind.MISSING and kinds[table] is not kind:
        allowed = ", ".join(name for name, of in kinds.items() if of is kind)
        raise SettingsError(subject, f"{table} has no deliveries that could be missing", f"Name one of {allowed}")
    if not project and len(projects) > 1:
        raise SettingsError(
            subject,
            f"names no project, and this run loads {', '.join(projects)}: it would apply to all of them",
            f'Name the one that is meant: "{name}/{projects[0]}"; an entry for each, or load one project alone',
        )
    if project and project not in projects:
        raise SettingsError(
            subject,
            f"names a project that this run does not load ({', '.join(projects)})",
            "Correct it, or load that project",
        )
    return table, Slice(parsed, project or projects[0])
