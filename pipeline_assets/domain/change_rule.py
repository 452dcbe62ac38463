"""`change_is_explained`: how far a final slice may change before it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline_assets.domain.changes import KEYS_ADDED, KEYS_CHANGED, KEYS_REMOVED, Baseline, KeyChange
from pipeline_assets.domain.checks import ACCEPTED, Check, Evaluation
from pipeline_assets.domain.settings import Settings


def is_bounded(before: Mapping[str, float], after: Mapping[str, float], *, was_final: bool, settings: Settings) -> bool:
    """Whether a change of this slice has to stay within bounds.

    It has to if the slice was final and its largest count, before or after, exceeds `change_min_rows`: ratios of small
    numbers mean nothing. Counts are integers, money is not; a slice without counts is always bounded.
    """
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
    """Evaluate `change_is_explained`: bound every measure of a bounded slice, and its shares of added, removed and changed keys.

    Measures are compared with `before`, the slice when it became final or an operator last accepted a change, so that many
    small changes count together. Keys are bounded per publication as well. Filling an empty slice, or returning to the
    baseline's content (`content`: the digest now), is not a change. `brought`: what of each measure comes from objects that a
    recovery wrote since for hours on record as missing; it never counts as growth.
    """
    figures = {f"{name}_before": value for name, value in before.figures.items()}
    figures |= {f"{name}_after": value for name, value in after.items()}
    figures |= keys.figures if keys is not None else {}
    if before.is_again(content) or not is_bounded(before.figures, after, was_final=was_final, settings=settings):
        return Evaluation(Check.CHANGE_IS_EXPLAINED, True, figures=figures)
    beyond = [
        *_measures_beyond(table, before.figures, after, brought, settings),
        *_keys_beyond(table, before, keys, brought, settings),
    ]
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

    It is new where the slice becomes final, is filled, is accepted, or returns to the baseline's content. Otherwise it is
    `before` with the key changes added, and with what was `brought`, which lifts no bound again; a measure that it lacked was
    not compared, and is bounded from now on.
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
