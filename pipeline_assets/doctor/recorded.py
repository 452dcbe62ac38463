"""Points of the checklist that the ledger alone answers: rules over records, without any reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date

from pipeline_assets.doctor.point import Answer, green, red, yellow
from pipeline_assets.domain.causes import CauseKind
from pipeline_assets.domain.notices import SEND_AGAIN, SEND_NOW
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.skew import MOST_PARTS, part_weight, parts_of
from pipeline_assets.domain.slices import Verdict
from pipeline_assets.domain.window import Lateness, advise, deciding, narrowness, percent
from pipeline_assets.inspection.receivers import ReceiverTrouble
from pipeline_assets.load.staleness.finality import HOURS_A_DAY
from resources.ledger.checkup import BuiltAgain, FoundCommit, MarkedDay, ObjectSizes
from resources.ledger.outbox import Receiver
from resources.ledger.summaries import SliceFigures

NAMELESS_SHARE = 0.01
"""Tolerated share of rows without any id: a vendor's correction of such a row doubles it instead of replacing it."""
LARGE_BYTES = 64 * 1024**2
"""A day with fewer stored bytes is read in seconds, however it is divided."""
_LARGE_PART_BYTES = 8 * 1024**2
"""No load waits long for a task with fewer bytes."""
_LOAD_TWICE = "tidemark load --source regular --from DAY --to DAY, twice; or tidemark verify --from DAY --to DAY"


def idempotent(again: BuiltAgain, verdicts: Counter[str]) -> Answer:
    """Whether the same inputs gave the same content each time."""
    looked, published = verdicts[Verdict.UNCHANGED.value], verdicts[Verdict.PUBLISHED.value]
    seen = f"loads published {published:,} slices and found {looked:,} unchanged"
    if again.differing:
        told = f"{len(again.differing)} slices were built from the same inputs by the same code with other content"
        hint = "This is a defect: report it with tidemark history of these days"
        return red(f"{told}: {few(again.differing, 5)}; {seen}", hint)
    if not looked and not again.equal:
        return yellow(f"nothing was loaded twice yet; {seen}", _LOAD_TWICE)
    rebuilt = f"; {again.equal:,} slices were published again from the same inputs, each time with the same content"
    return green(f"{seen}{rebuilt if again.equal else ''}")


def one_load_path(found: Sequence[FoundCommit], strange: Sequence[str], unfinished: int, since: str) -> Answer:
    """Whether only Tidemark's loads write to the tables.

    `strange`: tables whose newest commit is foreign and not recorded yet; `since`: earlier findings make the point only yellow.
    """
    foreign = [one for one in found if one.kind is CauseKind.FOREIGN]
    dead = len(found) - len(foreign)
    also = f"; {dead} changes of runs that died before they were recorded were found and taken up" if dead else ""
    also += f"; {unfinished} publications are of runs that did not reach their end" if unfinished else ""
    if strange:
        told = f"the newest commit of {few(strange)} is of no run of ours{also}"
        hint = "Find who wrote it; the next load records it and builds these days again: tidemark load, then tidemark history"
        return red(told, hint)
    if not foreign:
        return green(f"no foreign commit is on record{also}")
    places = few([f"{one.table} {one.day}/{one.project_id}" for one in foreign], 3)
    recent = [one for one in foreign if one.published_at >= since]
    told = f"{len(foreign)} foreign changes of slices are on record, {len(recent)} of them of the last 30 days"
    told += f", last {foreign[0].published_at[:16]}: {places}{also}"
    hint = (
        "Find who writes to the tables (tidemark history TABLE DAY has the time) and take the right to write from them; "
        "loads built the days again"
    )
    return red(told, hint) if recent else yellow(told, hint)


def wide_enough(late: Mapping[str, Lateness], settings: Settings) -> Answer:
    """Whether the reprocessing window covers the observed lateness, for each project."""
    days, tolerated = settings.reprocessing_window_days, settings.tolerated_missed_share
    own = {project: one for project, one in sorted(late.items()) if project}
    known = deciding(late, tolerated)
    reasons = {project or "all projects": narrowness(late[project], days, tolerated) for project in known}
    if narrow := [f"{project}: {why}" for project, why in reasons.items() if why is not None]:
        needed = max(advice.days or 0 for advice in known.values())
        hint = f"Set TIDEMARK_REPROCESSING_WINDOW_DAYS={needed} (tidemark window shows what it costs)"
        return red("; ".join(narrow), hint)
    unknown = {project: advise(one, tolerated) for project, one in own.items()}
    lacking = [f"{project}: {advice.reason}" for project, advice in unknown.items() if advice.days is None]
    lacking += [f"{project}: nothing arrived" for project in settings.projects if project not in own]
    missed = ", ".join(f"{project} {percent(1 - one.caught_within(days))}" for project, one in own.items())
    told = f"{days} days miss {missed} (tolerated: {percent(tolerated)})" if missed else f"{days} days are set"
    if lacking:
        return yellow(f"{told}; {few(lacking, 3)}", "Ask again when more days have arrived: tidemark window")
    return green(told)


def stable_keys(
    slices: Sequence[SliceFigures],
    earlier: Sequence[SliceFigures],
    without_id: int,
    with_blank_id: int,
    twice: Sequence[str],
) -> Answer:
    """Whether ids identify repeated rows, and no key is published twice; `earlier`: the same number of days before."""
    rows = sum(one.rows for one in slices)
    if not rows:
        return yellow("no rows are published yet", "Load days, then ask again")
    told = (
        f"of {rows:,} rows {without_id:,} have neither insert_id nor uuid ({percent(without_id / rows)}), {with_blank_id:,} a "
        f"blank one; of 1,000 raw rows {_removed(slices):.3g} were removed as duplicates"
    )
    told += f" ({_removed(earlier):.3g} in the four weeks before)" if earlier else ""
    if twice:
        return red(f"keys are twice in {few(twice, 3)}; {told}", "Recover these days: tidemark status names the reason")
    if without_id > NAMELESS_SHARE * rows:
        hint = "Have the app send $insert_id: rows without an id are told apart by content, so a correction doubles the row"
        return red(told, hint)
    if without_id or with_blank_id:
        return yellow(told, "Have the app send $insert_id with every event")
    return green(told)


def _removed(slices: Sequence[SliceFigures]) -> float:
    rows, removed = sum(one.rows for one in slices), sum(one.removed for one in slices)
    return 1000 * removed / (rows + removed) if rows else 0.0


def not_skewed(sizes: Sequence[ObjectSizes], settings: Settings, tasks: int) -> Answer:
    """Whether a day's work divides evenly among `tasks`, after large objects are split between several tasks."""
    if not sizes:
        return yellow("no objects are on record of the last 28 days", "Load days, then ask again")
    by_day: Counter[date] = Counter()
    for one in sizes:
        by_day[one.day] += one.all_bytes
    largest = max(sizes, key=lambda one: one.largest_bytes)
    share = largest.largest_bytes / max(1, by_day[largest.day])
    objects = sum(one.objects for one in sizes)
    told = (
        f"{objects:,} objects of {len(by_day)} arrival days; the largest has {_bytes(largest.largest_bytes)}, {percent(share)} "
        f"of all that arrived on {largest.day} ({largest.project_id})"
    )
    if largest.largest_bytes > settings.max_object_bytes:
        hint = (
            "It is more than max_object_bytes as stored: raise TIDEMARK_MAX_OBJECT_BYTES, or have it exported in parts"
        )
        return red(told, hint)
    uneven = [(_left(one.largest_bytes, by_day[one.day], settings, tasks), one) for one in sizes]
    (times, parts), worst = max(uneven, key=lambda entry: entry[0][0])
    if times > settings.skew_warning_ratio:
        told += (
            f"; on {worst.day} {parts} of {tasks} tasks read an object of {_bytes(worst.largest_bytes)} "
            f"({worst.project_id}), and each has {times:.1f} times the work of an even task"
        )
        hint = "Ask the exporter for smaller objects"
        if parts < MOST_PARTS:
            hint += f", or lower TIDEMARK_SPLIT_OBJECT_BYTES ({settings.split_object_bytes}): up to {MOST_PARTS} tasks read one"
        return yellow(told, hint)
    return green(told)


def _left(size: int, day_bytes: int, settings: Settings, tasks: int) -> tuple[float, int]:
    """(times, parts): one part's work as a multiple of an even task's, 0 where nobody would wait for it; the object's parts."""
    parts = parts_of(size, day_bytes, tasks, settings.split_object_bytes)
    weight = part_weight(size, parts)
    is_slow = day_bytes >= LARGE_BYTES and weight >= _LARGE_PART_BYTES
    return weight * tasks / day_bytes if is_slow else 0.0, parts


def markers_on_time(days: Sequence[MarkedDay], settings: Settings) -> Answer:
    """Whether days close by their markers, instead of by the deadline."""
    if settings.hours_complete_by is Completeness.QUIET:
        return green(f"hours count as complete after {settings.quiet_minutes} quiet minutes; no markers are awaited")
    closed = [one for one in days if one.is_closed]
    if not closed:
        return yellow(f"none of {len(days)} days of the last 28 is closed", "Ask again when days have closed")
    whole = [one for one in closed if one.hours_marked == HOURS_A_DAY]
    told = f"{len(whole)} of {len(closed)} closed days of the last 28 have all 24 markers"
    if not any(one.hours_marked for one in closed):
        hint = "Correct TIDEMARK_MARKER_PATTERN to the exporter's names; where it writes none: TIDEMARK_HOURS_COMPLETE_BY=quiet"
        return red(f"{told}, and no marker was seen at all", hint)
    if len(whole) < len(closed):
        named = few([f"{one.day}/{one.project_id} ({one.hours_marked})" for one in closed if one not in whole], 3)
        hint = "Ask the vendor why hours have no marker: such a day is final without being known whole"
        return yellow(f"{told}; closed by their deadline: {named}", hint)
    return green(told)


def receivers_told(receivers: Sequence[Receiver], configured: int, refusing: Sequence[ReceiverTrouble] = ()) -> Answer:
    """Whether receivers get notices of changes; `refusing`: receivers whose notices are set aside, so that no run sends them."""
    if not configured:
        return green("no receiver is configured; tidemark changes --since TIME lists what changed")
    failing = {one.place: one for one in receivers if one.failures}
    told = f"{configured} receivers, {sum(one.waiting for one in receivers)} notices wait to be sent"
    if failing or refusing:
        each = [f"{place} failed {one.failures} times, last: {one.error}" for place, one in sorted(failing.items())]
        each += [f"{one.place} {one.reason}" for one in refusing]
        commands = [SEND_NOW] * bool(failing) + [SEND_AGAIN] * bool(refusing)
        hint = f"Correct the address or the receiver, then: {', then '.join(commands)}"
        return red(f"{told}; {few(each, 3)}", hint)
    if len(receivers) < configured:
        return yellow(f"{told}; {configured - len(receivers)} were never told of anything", "tidemark notify")
    return green(told)


def recomputed(slices: int, differing: Sequence[str], unproven: int, days: Sequence[date]) -> Answer:
    """Whether a replay of some days from landing gives the published content."""
    which = ", ".join(map(str, days))
    if not slices:
        return yellow("no final day holds rows that could be replayed", "Ask again when a day is final")
    told = f"{slices - len(differing) - unproven} of {slices} slices of {which} are equal"
    if differing:
        hint = f"tidemark verify --from {days[0]} --to {days[-1]} names each; load these days again"
        return red(f"{told}; others: {few(differing, 3)}", hint)
    if unproven:
        gone = f"{told}; {unproven} cannot be replayed: landing no longer holds what they are made of"
        return yellow(gone, "Keep objects in landing as long as days may have to be replayed")
    return green(told)


def _bytes(size: int) -> str:
    for unit, least in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size} B"
