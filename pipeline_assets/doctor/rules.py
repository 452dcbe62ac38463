"""The rules of the checklist: each judges the evidence of one point, and reads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.days import Hour, hour_ranges
from pipeline_assets.domain.deliveries import RENAME
from pipeline_assets.domain.lateness import Lateness, advise, deciding, narrowness, percent
from pipeline_assets.domain.notices import SEND_AGAIN, SEND_NOW
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.skew import MOST_TIMES, part_weight, parts_of
from pipeline_assets.domain.slices import Slice, Verdict
from pipeline_assets.inspection.questions import ReceiverTrouble
from pipeline_assets.load.staleness.finality import HOURS_A_DAY
from resources.iceberg.lake_identity import Mark, catalog_place
from resources.ledger.history import BuiltAgain, FoundCommit, MarkedDay, ObjectSizes, ProcessOnRecord
from resources.ledger.outbox import Receiver
from resources.ledger.summaries import SliceFigures
from resources.publishing import Promise


class Light(StrEnum):
    """The result of a point, the most urgent first."""

    RED = "red"
    """The evidence shows that it does not hold."""
    YELLOW = "yellow"
    """The evidence shows neither that it holds nor that it does not."""
    GREEN = "green"
    """The evidence shows that it holds."""


class Answer(NamedTuple):
    """What a rule says of its evidence."""

    light: Light
    found: str
    """The evidence, with numbers."""
    fix: str | None = None
    """What to do; None where nothing needs to be done."""


class Point(NamedTuple):
    """One question of the checklist and, as in its `Answer`, what is so of this deployment."""

    name: str
    question: str
    light: Light
    found: str
    fix: str | None


green, yellow, red = (partial(Answer, light) for light in (Light.GREEN, Light.YELLOW, Light.RED))


def worst(lights: Iterable[Light]) -> Light:
    """The most urgent light; green for none."""
    return min(lights, key=list(Light).index, default=Light.GREEN)


MAINTENANCE_JOB = "maintenance"
_LOAD = "tidemark load --source regular --from DAY --to DAY"
_RESTS = timedelta(days=7)
"""The longest acceptable pause of maintenance, which is meant to run every night."""
_OVERDUE = timedelta(days=14)
"""No snapshot may be older than its retention plus this."""


class TableHead(NamedTuple):
    """A table's head in the catalog, and the snapshot that the ledger last agreed with."""

    table: str
    catalog: int | None
    """None where the catalog has no such table, or only Iceberg itself could tell."""
    ledger: int | None
    is_ours: bool = True
    """Whether a Tidemark run made the catalog's head."""
    branches: tuple[str, ...] = ()
    """Tidemark's branches with staged work."""
    snapshots: int = 0
    oldest_at: datetime | None = None
    history_days: int = 0
    """Number of days for which snapshots are kept."""
    is_listed: bool | None = True
    """Whether the catalog has the table; None where its database does not tell."""
    deletes: int = 0
    """Delete files of other programs, which hide rows from readers."""


def one_lake(mark: Mark | None, settings: Settings, *, is_certain: bool) -> Answer:
    """What is said where nothing contradicts that all parts are one lake."""
    if mark is None or mark.ledger is None or mark.place is None:
        told = "the warehouse has no mark that names its catalog, its place and its ledger"
        return yellow(told, "The next load writes it where all of them agree")
    if not is_certain:
        told = f"the warehouse names {mark.owner} and ledger {mark.ledger_url}; this is {catalog_place(settings)}"
        return yellow(f"{told}, of which only Spark can tell", "Compare the two; the next load looks closer")
    named = f"{settings.warehouse_url}, {mark.owner} and ledger {mark.ledger_url}"
    return green(f"{named} name each other, and every table lies in that warehouse")


def atomic(heads: Sequence[TableHead], working: Sequence[ProcessOnRecord], dead: Sequence[ProcessOnRecord]) -> Answer:
    """Whether tables and ledger agree, and no half-published work is left."""
    known = [one for one in heads if one.ledger is not None]
    if not known:
        return yellow("no table is on record", "Load days, then ask again")
    if lost := [one.table for one in known if one.is_listed is False]:
        hint = "Check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME; where the catalog was lost: tidemark attach"
        return red(f"the catalog does not show {few(lost)}, which the ledger knows", hint)
    if untold := [one.table for one in known if one.catalog is None]:
        hint = f"{_LOAD} asks Iceberg itself, and says what is wrong"
        return yellow(f"the catalog's database does not tell of {few(untold)} without Spark", hint)
    apart = [one.table for one in known if one.catalog != one.ledger]
    branches = [f"{one.table} {branch}" for one in known for branch in one.branches]
    hidden = [f"{one.table} ({one.deletes})" for one in known if one.deletes]
    agreeing = f"{len(known) - len(apart)} of {len(known)} tables are at the snapshot that the ledger knows"
    parts = [
        f"{agreeing}; {len(dead)} runs died in the last 30 days",
        f"{few(apart)} are not" if apart else "",
        f"{len(branches)} staged branches are left: {few(branches, 2)}" if branches else "",
        f"another program's delete files hide rows of {few(hidden)}" if hidden else "",
    ]
    state = "; ".join(filter(None, parts))
    if not (apart or branches or hidden):
        return green(state)
    if working:
        return yellow(f"{state}; {len(working)} runs are at work", "Ask again when they have ended")
    return yellow(state, f"The next load compares and takes it up: {_LOAD}, then ask again")


def files_are_there(lost: Mapping[str, Mapping[Slice, str]], untold: Sequence[str], since: date) -> Answer:
    """Whether any data file is gone that the catalog names; `untold`: tables that only Spark can tell of."""
    losses = [lost_file(table, key, path) for table, slices in lost.items() for key, path in sorted(slices.items())]
    if losses:
        told = f"{len(losses)} slices since {since} cannot be read: {few([one.reason or '' for one in losses], 2)}"
        return red(told, f"{losses[0].hint}; the other slices alike: docs/operations.md#a-file-is-gone")
    if untold:
        told = f"the catalog's database does not tell which files {few(untold)} has, without Spark"
        return yellow(told, "tidemark load and tidemark verify of a day tell that")
    return green(f"every file is there that the catalog names of the days since {since}")


def one_transaction(promise: Promise) -> Answer:
    """Whether readers of several tables always see them as one load left them."""
    if promise is not Promise.TABLE_BY_TABLE:
        return green(promise.sentence)
    hint = (
        "Leave TIDEMARK_LEDGER_URL unset, or let it name the catalog's database (TIDEMARK_CATALOG_URL); for a REST catalog that"
        " keeps transactions: TIDEMARK_CATALOG_TRANSACTIONS=true"
    )
    return yellow(promise.sentence, hint)


class PrefixEvidence(NamedTuple):
    """The objects below a project's regular prefix, judged by names and upload times."""

    project_id: str
    objects: int
    misnamed: tuple[str, ...]
    """Keys with a recovery's name."""
    late: tuple[str, ...]
    """Keys written long after their hour's marker, or after their day's deadline."""
    note: str | None = None
    """Why upload times prove nothing."""
    unplaced: tuple[str, ...] = ()
    """Keys of either prefix that no load reads, although their names begin as an hour's."""


_UNPLACED = (
    "objects are an hour's by their names but cannot be placed, so no load reads them and the hours are not complete"
)
_MISNAMED = "objects carry a recovery's name, and no load reads them there"
_LATE = "objects were written long after their hour, as a recovery is"


def separate_prefixes(prefixes: Sequence[PrefixEvidence], since: date) -> Answer:
    """Whether recoveries are stored apart from regular exports."""
    objects = sum(one.objects for one in prefixes)
    told = f"{objects:,} regular objects that arrived since {since} were looked at, by name and upload time"
    told += "".join(f"; {one.project_id}: {one.note}" for one in prefixes if one.note)
    mixed = next((one.project_id for one in prefixes if one.misnamed or one.late), None)
    hint = f"tidemark split-landing --project {mixed} shows what speaks for a recovery; --apply moves it below {mixed}-backfill/"
    for answer, what, fix, keys in (
        (red, _UNPLACED, RENAME, [key for one in prefixes for key in one.unplaced]),
        (red, _MISNAMED, hint, [key for one in prefixes for key in one.misnamed]),
        (yellow, _LATE, hint, [key for one in prefixes for key in one.late]),
    ):
        if keys:
            return answer(f"{len(keys)} {what}: {few(keys, 3)}; {told}", fix)
    return green(told) if objects else yellow(told, "Check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS")


def recovery_possible(
    lacking_keys: Sequence[str],
    recovered: Mapping[str, date],
    projects: Sequence[str],
    unfinished: Mapping[str, Sequence[Hour]],
) -> Answer:
    """Whether lost hours can be fetched from the vendor, and ever were. Keys only have to be set; no request is sent.

    `unfinished`: project -> hours whose recovery began long ago and that have no marker; loads skip their unknown objects.
    """
    tried = ", ".join(f"{project} last of {day}" for project, day in sorted(recovered.items()))
    told = f"recoveries were loaded: {tried}" if tried else "no recovery was ever loaded"
    lacks = f"no keys of the Export API are set for {few(lacking_keys)}"
    keys = lacks if lacking_keys else "keys are set for every project"
    begun = [(project, part) for project, hours in unfinished.items() for part in hour_ranges(hours, HOURS_A_DAY)]
    if begun:
        named = few([f"{project} {part}" for project, part in begun], 5)
        each = [f"tidemark recover --from {part.first} --to {part.last} --project {project}" for project, part in begun]
        first = [f"{_set_keys(project)}; then: " for project in unfinished if project in lacking_keys][:1]
        told = f"hours whose recovery began and has no marker: {named}; {keys}; {told}"
        return yellow(told, "".join((*first, few(each, 3, "; "))))
    if lacking_keys:
        return yellow(f"{keys}; {told}", f"{_set_keys(lacking_keys[0])} in the environment of this process")
    if untried := [project for project in projects if project not in recovered]:
        try_it = f"tidemark recover --from DAYT09 --to DAYT09 --project {untried[0]} --load"
        return yellow(f"{keys}; {told}; never for {few(untried)}", f"Try it on an hour that is whole: {try_it}")
    return green(f"{keys}; {told}")


def _set_keys(project: str) -> str:
    return f"Set TIDEMARK_EXPORT_KEY_{project} and TIDEMARK_EXPORT_SECRET_{project}"


def looked_after(
    processes: Sequence[ProcessOnRecord], heads: Sequence[TableHead], first_load: str | None, now: datetime
) -> Answer:
    """Whether maintenance runs, and its effect is visible."""
    runs = [one for one in processes if one.job == MAINTENANCE_JOB and one.ended_at and not one.lost_at]
    last = max((one.begun_at for one in runs if one.begun_at), default=None)
    snapshots = sum(one.snapshots for one in heads)
    told = f"maintenance ran last {last[:16]} UTC" if last else "no maintenance is on record of the last 30 days"
    told += f"; {snapshots:,} snapshots are kept"
    hint = "tidemark maintenance; every night by the schedule maintenance_nightly"
    overdue = [
        f"{one.table} ({one.oldest_at:%Y-%m-%d}, kept for {one.history_days} days)"
        for one in heads
        if one.oldest_at is not None and now - one.oldest_at > timedelta(days=one.history_days) + _OVERDUE
    ]
    if overdue:
        return red(f"{told}; snapshots are older than they are kept: {few(overdue, 3)}", hint)
    if last is not None and now - datetime.fromisoformat(last) <= _RESTS:
        return green(told)
    if first_load is None or now - datetime.fromisoformat(first_load) < _RESTS:
        return green(f"{told}; the first load is less than {_RESTS.days} days ago")
    return yellow(told, hint)


def decisions_kept(kept: int, unknown: int, lacking: int) -> Answer:
    """Whether operators' decisions would survive the loss of the ledger; the caller has read all of their objects."""
    state = f"{kept} decisions are kept beside the tables, and each can be read"
    state += f"; the ledger lacks {unknown} of them" if unknown else ""
    state += f"; {lacking} that it knows are not there" if lacking else ""
    if unknown or lacking:
        return yellow(state, f"The next load reads back what is lacking: {_LOAD}")
    return green(state)


def same_clock(theirs: datetime | None, ours: datetime) -> Answer:
    """Whether this machine's clock is close to the warehouse's."""
    if theirs is None:
        return green("the warehouse is a folder, which has this machine's clock")
    apart = abs((theirs - ours).total_seconds())
    told = f"the warehouse's clock is {apart:.0f} s from this machine's"
    if apart > 60 * 60:
        return red(told, "Correct this machine's clock: maintenance refuses to work, and finality is judged by it")
    if apart > 5 * 60:
        return yellow(told, "Correct this machine's clock: deadlines are judged by it")
    return green(told)


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
    uneven = [(_left(one.largest_bytes, by_day[one.day], tasks), one) for one in sizes]
    (times, parts), worst = max(uneven, key=lambda entry: entry[0][0])
    if times > MOST_TIMES:
        told += (
            f"; on {worst.day} {parts} of {tasks} tasks read an object of {_bytes(worst.largest_bytes)} "
            f"({worst.project_id}), and each has {times:.1f} times the work of an even task"
        )
        return yellow(told, "Ask the exporter for smaller objects")
    return green(told)


def _left(size: int, day_bytes: int, tasks: int) -> tuple[float, int]:
    """(times, parts): one part's work as a multiple of an even task's, 0 where nobody would wait for it; the object's parts."""
    parts = parts_of(size, day_bytes, tasks)
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
