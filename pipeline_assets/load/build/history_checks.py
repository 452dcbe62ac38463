"""Checks of delivered intervals: rules over the delivery and the records, without Spark and SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from pipeline_assets.domain.checks import UNREAD_OBJECTS, Check, Evaluation
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest
from pipeline_assets.load.build.snapshot_checks import UNREAD_HINTS, beyond, told_trimmed
from pipeline_assets.load.staleness.counts import ROWS_BEFORE, former_day

_CORRECT = "Deliver the intervals again, corrected; what is published stays until then"


def judge_unread(name: str, problem: str, detail: str) -> Evaluation:
    """The refusal of an object that is no valid history or cannot be read; `problem`, `detail`: from `read_histories`."""
    figures = {UNREAD_OBJECTS: int(problem in UNREAD_HINTS)}
    hint = UNREAD_HINTS.get(problem, _CORRECT)
    return Evaluation(Check.INTERVALS_ARE_WHOLE, False, f"{name}: {detail}", hint, figures)


def judge_doubled(name: str, other: str, day: date) -> Evaluation:
    """The refusal of a day with two objects, because it is unknown which one is meant."""
    reason = f"{name} and {other} are both the intervals as of {day}"
    return Evaluation(Check.INTERVALS_ARE_WHOLE, False, reason, "Remove one of them from landing")


def with_trimmed(whole: Evaluation, name: str, trimmed: int) -> Evaluation:
    """The check of staged intervals, with the number of intervals in the whole history whose white space was removed."""
    if not whole.is_passed or not trimmed:
        return whole
    reason = told_trimmed(name, trimmed, "intervals")
    return replace(whole, reason=reason, figures={**whole.figures, "trimmed_items": trimmed})


def judge_history(
    name: str, days: Mapping[date, Digest], recorded: Mapping[date, Digest], settings: Settings
) -> Evaluation | None:
    """The refusal of a history whose counts change too much; None if it passes. Acceptances are not considered here.

    `days`, `recorded`: day -> digest of its items, as delivered and as published. A published day is compared with its
    published count, a new day with the latest day before it. The first history is not compared.
    """
    counts = {day: digest.rows for day, digest in recorded.items()}
    told: list[tuple[date, date, str, int]] = []
    for day in sorted(days.keys() | counts.keys()):
        if day in recorded and days.get(day, EMPTY) == recorded[day]:
            continue
        former = day if day in counts else former_day(counts, day)
        rows = days[day].rows if day in days else 0
        is_beyond = beyond(counts[former], rows, settings) if former is not None and counts[former] else None
        if former is not None and is_beyond is not None:
            told.append((day, former, f"{rows:,} items, {counts[former]:,} {_when(day, former)}: {is_beyond}", rows))
    if not told:
        return None
    day, former, text, rows = told[0]
    more = f"; and so of {len(told) - 1:,} more days" if len(told) > 1 else ""
    figures = {ROWS_BEFORE: counts[former], "rows_after": rows, "days_beyond": len(told)}
    hint = f"{_CORRECT}; or accept the counts with a reason (--accept-changes, accept_changes in run config)"
    return Evaluation(Check.INTERVALS_ARE_WHOLE, False, f"{name}: of {day} {text}{more}", hint, figures)


def _when(day: date, former: date) -> str:
    return "are published" if day == former else f"of {former} are published"
