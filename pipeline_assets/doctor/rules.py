"""The rules of the checklist: each judges the evidence of one point, and reads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.days import Hour, hour_ranges
from pipeline_assets.domain.deliveries import RENAME
from pipeline_assets.domain.lateness import Lateness, advise, deciding, percent
from pipeline_assets.domain.notices import SEND_AGAIN, SEND_NOW
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.processes import Process
from pipeline_assets.domain.settings import Completeness, Settings
from pipeline_assets.domain.skew import MOST_TIMES, part_weight, parts_of
from pipeline_assets.domain.slices import Slice, Verdict
from pipeline_assets.inspection.questions import ReceiverTrouble
from pipeline_assets.load.staleness.finality import HOURS_A_DAY, warnings_of
from pipeline_assets.operations.recover import size_text
from resources.iceberg.lake_identity import Mark, catalog_place
from resources.ledger.history import FoundCommit, MarkedDay
from resources.ledger.outbox import Receiver
from resources.ledger.summaries import ArrivedOn, SliceFigures
from resources.publishing import Promise


class Light(StrEnum):
    """The result of a point, the most urgent first."""

    RED = "red"
    """The evidence shows that it does not hold."""
    YELLOW = "yellow"
    """The evidence shows neither."""
    GREEN = "green"


class Answer(NamedTuple):
    """A rule's judgement of its evidence."""

    light: Light
    found: str
    fix: str | None = None


class Point(NamedTuple):
    """One question of the checklist with its answer."""

    name: str
    question: str
    light: Light
    found: str
    fix: str | None


Figures = Sequence[SliceFigures]
RED, YELLOW, GREEN = Light.RED, Light.YELLOW, Light.GREEN
NAMELESS_SHARE = 0.01
"""Tolerated share of rows without any id: a correction of such a row doubles it."""
LARGE_BYTES = 64 * 1024**2
"""A day with fewer stored bytes is read in seconds, however it is divided."""
_LARGE_PART_BYTES = 8 * 1024**2
_LOAD = "tidemark load --source regular --from DAY --to DAY"
MAINTENANCE_JOB = "maintenance"
_RESTS = timedelta(days=7)
"""Longest pause of maintenance, which is meant to run every night."""
_OVERDUE = timedelta(days=14)
"""No snapshot may be older than its retention plus this."""


def worst(lights: Iterable[Light]) -> Light:
    """The most urgent light; green for none."""
    return min(lights, key=list(Light).index, default=GREEN)


def judge(told: str, *faults: tuple[object, Light, str, str]) -> Answer:
    """Green with this evidence, or the first true one of `faults`: condition, light, finding in front, fix."""
    for is_there, light, fault, fix in faults:
        if is_there:
            return Answer(light, f"{fault}; {told}" if fault else told, fix)
    return Answer(GREEN, told)


class TableHead(NamedTuple):
    """A table's head in the catalog, and the snapshot that the ledger last agreed with."""

    table: str
    catalog: int | None
    """None where the catalog has no such table, or only Iceberg can read it."""
    ledger: int | None
    is_ours: bool = True
    branches: tuple[str, ...] = ()
    snapshots: int = 0
    oldest_at: datetime | None = None
    history_days: int = 0
    is_listed: bool | None = True
    """Whether the catalog has the table; None if unknown."""
    deletes: int = 0
    """Delete files of other programs, which hide rows from readers."""


def one_lake(mark: Mark | None, settings: Settings, *, is_certain: bool) -> Answer:
    """The answer where nothing contradicts that all parts are one lake."""
    if mark is None or mark.ledger is None or mark.place is None:
        told = "the warehouse has no mark that names its catalog, its place and its ledger"
        return Answer(YELLOW, told, "The next load writes it where all of them agree")
    if not is_certain:
        told = f"the warehouse names {mark.owner} and ledger {mark.ledger_url}; this is {catalog_place(settings)}"
        return Answer(YELLOW, f"{told}, of which only Spark can tell", "Compare the two; the next load looks closer")
    named = f"{settings.warehouse_url}, {mark.owner} and ledger {mark.ledger_url}"
    return Answer(GREEN, f"{named} name each other, and every table lies in that warehouse")


def idempotent(equal: int, differing: Sequence[str], verdicts: Counter[str]) -> Answer:
    """Whether the same inputs gave the same content each time."""
    looked, published = verdicts[Verdict.UNCHANGED.value], verdicts[Verdict.PUBLISHED.value]
    told = f"loads published {published:,} slices and found {looked:,} unchanged"
    if equal and not differing:
        told += f"; {equal:,} slices were published again from the same inputs, each time with the same content"
    defects = f"{len(differing)} slices were built from the same inputs by the same code with other content"
    defect = "This is a defect: report it with tidemark history of these days"
    twice = f"{_LOAD}, twice; or tidemark verify --from DAY --to DAY"
    return judge(
        told,
        (differing, RED, f"{defects}: {few(differing, 5)}", defect),
        (not looked and not equal, YELLOW, "nothing was loaded twice yet", twice),
    )


def atomic(heads: Sequence[TableHead], working: Sequence[Process], dead: Sequence[Process]) -> Answer:
    """Whether tables and ledger agree, and no half-published work is left."""
    known = [one for one in heads if one.ledger is not None]
    if not known:
        return Answer(YELLOW, "no table is on record", "Load days, then ask again")
    if lost := [one.table for one in known if one.is_listed is False]:
        hint = "Check TIDEMARK_CATALOG_URL and TIDEMARK_CATALOG_NAME; where the catalog was lost: tidemark attach"
        return Answer(RED, f"the catalog does not show {few(lost)}, which the ledger knows", hint)
    if untold := [one.table for one in known if one.catalog is None]:
        told = f"the catalog's database does not tell of {few(untold)} without Spark"
        return Answer(YELLOW, told, f"{_LOAD} asks Iceberg itself, and says what is wrong")
    apart = [one.table for one in known if one.catalog != one.ledger]
    branches = [f"{one.table} {branch}" for one in known for branch in one.branches]
    hidden = [f"{one.table} ({one.deletes})" for one in known if one.deletes]
    told = f"{len(known) - len(apart)} of {len(known)} tables are at the snapshot that the ledger knows"
    told += f"; {len(dead)} runs died in the last 30 days"
    told += f"; {few(apart)} are not" if apart else ""
    told += f"; {len(branches)} staged branches are left: {few(branches, 2)}" if branches else ""
    told += f"; another program's delete files hide rows of {few(hidden)}" if hidden else ""
    if not (apart or branches or hidden):
        return Answer(GREEN, told)
    if working:
        return Answer(YELLOW, f"{told}; {len(working)} runs are at work", "Ask again when they have ended")
    return Answer(YELLOW, told, f"The next load compares and takes it up: {_LOAD}, then ask again")


def files_are_there(lost: Mapping[str, Mapping[Slice, str]], untold: Sequence[str], since: date) -> Answer:
    """Whether all data files that the catalog names are there; `untold`: tables that only Spark can read."""
    losses = [lost_file(table, key, path) for table, slices in lost.items() for key, path in sorted(slices.items())]
    if losses:
        told = f"{len(losses)} slices since {since} cannot be read: {few([one.reason or '' for one in losses], 2)}"
        return Answer(RED, told, f"{losses[0].hint}; the other slices alike: docs/operations.md#a-file-is-gone")
    if untold:
        told = f"the catalog's database does not tell which files {few(untold)} has, without Spark"
        return Answer(YELLOW, told, "tidemark load and tidemark verify of a day tell that")
    return Answer(GREEN, f"every file is there that the catalog names of the days since {since}")


def one_transaction(promise: Promise) -> Answer:
    """Whether readers of several tables always see them as one load left them."""
    hint = "Leave TIDEMARK_LEDGER_URL unset; for a REST catalog that keeps transactions: TIDEMARK_CATALOG_TRANSACTIONS=true"
    return judge(promise.sentence, (promise is Promise.TABLE_BY_TABLE, YELLOW, "", hint))


def one_load_path(found: Sequence[FoundCommit], strange: Sequence[str], unfinished: int, since: str) -> Answer:
    """Whether only loads write to the tables; `strange`: foreign head, unrecorded; findings before `since` are yellow."""
    foreign = [one for one in found if one.kind is CauseKind.FOREIGN]
    dead = len(found) - len(foreign)
    also = f"; {dead} changes of runs that died before they were recorded were found and taken up" if dead else ""
    also += f"; {unfinished} publications are of runs that did not reach their end" if unfinished else ""
    if strange:
        hint = "Find who wrote it; the next load records it and builds these days again: tidemark load, then tidemark history"
        return Answer(RED, f"the newest commit of {few(strange)} is of no run of ours{also}", hint)
    if not foreign:
        return Answer(GREEN, f"no foreign commit is on record{also}")
    places = few([f"{one.table} {one.day}/{one.project_id}" for one in foreign], 3)
    recent = [one for one in foreign if one.published_at >= since]
    told = f"{len(foreign)} foreign changes of slices are on record, {len(recent)} of them of the last 30 days"
    hint = (
        "Find who writes to the tables (tidemark history TABLE DAY has the time) and take the right to write from them; "
        "loads built the days again"
    )
    return Answer(RED if recent else YELLOW, f"{told}, last {foreign[0].published_at[:16]}: {places}{also}", hint)


class Prefixes(NamedTuple):
    """The objects below the projects' prefixes, by names and upload times: (project, key)."""

    objects: int
    misnamed: Sequence[tuple[str, str]] = ()
    late: Sequence[tuple[str, str]] = ()
    """Written long after their hour's marker, or after their day's deadline."""
    unplaced: Sequence[tuple[str, str]] = ()
    """Under names that begin as an hour's, but that no load reads; of either prefix."""
    notes: Sequence[str] = ()
    """Why upload times prove nothing."""


def separate_prefixes(found: Prefixes, since: date) -> Answer:
    """Whether recoveries are stored apart from regular exports."""
    told = f"{found.objects:,} regular objects that arrived since {since} were looked at, by name and upload time"
    told = "; ".join((told, *found.notes))
    mixed = next((project for project, _ in (*found.misnamed, *found.late)), None)
    hint = f"tidemark split-landing --project {mixed} shows what speaks for a recovery; --apply moves it below {mixed}-backfill/"
    unplaced = "are an hour's by their names but cannot be placed, so no load reads them and the hours are not complete"
    faults: list[tuple[object, Light, str, str]] = []
    for keys, light, what, fix in (
        (found.unplaced, RED, unplaced, RENAME),
        (found.misnamed, RED, "carry a recovery's name, and no load reads them there", hint),
        (found.late, YELLOW, "were written long after their hour, as a recovery is", hint),
    ):
        faults.append((keys, light, f"{len(keys)} objects {what}: {few([key for _, key in keys])}", fix))
    return judge(told, *faults, (not found.objects, YELLOW, "", "Check TIDEMARK_LANDING_URL and TIDEMARK_PROJECTS"))


def wide_enough(late: Mapping[str, Lateness], settings: Settings) -> Answer:
    """Whether the reprocessing window covers the observed lateness, for each project."""
    days, tolerated = settings.reprocessing_window_days, settings.tolerated_missed_share
    own = {project: one for project, one in sorted(late.items()) if project}
    if narrow := warnings_of(late, settings):
        needed = max(advice.days or 0 for advice in deciding(late, tolerated).values())
        hint = f"Set TIDEMARK_REPROCESSING_WINDOW_DAYS={needed} (tidemark window shows what it costs)"
        return Answer(RED, "; ".join(narrow), hint)
    unknown = {project: advise(one, tolerated) for project, one in own.items()}
    lacking = [f"{project}: {advice.reason}" for project, advice in unknown.items() if advice.days is None]
    lacking += [f"{project}: nothing arrived" for project in settings.projects if project not in own]
    missed = ", ".join(f"{project} {percent(1 - one.caught_within(days))}" for project, one in own.items())
    told = f"{days} days miss {missed} (tolerated: {percent(tolerated)})" if missed else f"{days} days are set"
    if lacking:
        hint = "Ask again when more days have arrived: tidemark window"
        return Answer(YELLOW, f"{told}; {few(lacking, 3)}", hint)
    return Answer(GREEN, told)


def stable_keys(slices: Figures, earlier: Figures, without_id: int, with_blank_id: int, twice: Sequence[str]) -> Answer:
    """Whether ids identify repeated rows, and no key is published twice; `earlier`: the same number of days before."""
    rows = sum(one.rows for one in slices)
    if not rows:
        return Answer(YELLOW, "no rows are published yet", "Load days, then ask again")
    told = (
        f"of {rows:,} rows {without_id:,} have neither insert_id nor uuid ({percent(without_id / rows)}), {with_blank_id:,} a "
        f"blank one; of 1,000 raw rows {_removed(slices):.3g} were removed as duplicates"
    )
    told += f" ({_removed(earlier):.3g} in the four weeks before)" if earlier else ""
    light = RED if without_id > NAMELESS_SHARE * rows else YELLOW
    send = "Have the app send $insert_id with every event: a correction of a row without id doubles it"
    return judge(
        told,
        (twice, RED, f"keys are twice in {few(twice)}", "Recover these days: tidemark status names the reason"),
        (without_id or with_blank_id, light, "", send),
    )


def _removed(slices: Figures) -> float:
    rows, removed = sum(one.rows for one in slices), sum(one.removed for one in slices)
    return 1000 * removed / (rows + removed) if rows else 0.0


def not_skewed(sizes: Sequence[ArrivedOn], settings: Settings, tasks: int) -> Answer:
    """Whether a day's work divides evenly among `tasks`, after large objects are split."""
    if not sizes:
        return Answer(YELLOW, "no objects are on record of the last 28 days", "Load days, then ask again")
    by_day: Counter[date] = Counter()
    for one in sizes:
        by_day[one.day] += one.size_bytes
    largest = max(sizes, key=lambda one: one.largest_bytes)
    share = largest.largest_bytes / max(1, by_day[largest.day])
    told = (
        f"{sum(one.objects for one in sizes):,} objects of {len(by_day)} arrival days; the largest has "
        f"{size_text(largest.largest_bytes)}, {percent(share)} of all that arrived on {largest.day} ({largest.project_id})"
    )
    if largest.largest_bytes > settings.max_object_bytes:
        return Answer(RED, told, "Raise TIDEMARK_MAX_OBJECT_BYTES, which it exceeds, or have it exported in parts")
    times, slowest = max(((_left(one, by_day[one.day], tasks), one) for one in sizes), key=lambda entry: entry[0])
    size = size_text(slowest.largest_bytes)
    uneven = f"on {slowest.day} an object of {size} ({slowest.project_id}) gives a task {times:.1f} times the work of an even one"
    return judge(told, (times > MOST_TIMES, YELLOW, uneven, "Ask the exporter for smaller objects"))


def _left(one: ArrivedOn, day_bytes: int, tasks: int) -> float:
    """The work of a part of the largest object, as a multiple of an even task's; 0 where it is short."""
    weight = part_weight(one.largest_bytes, parts_of(one.largest_bytes, day_bytes, tasks))
    is_slow = day_bytes >= LARGE_BYTES and weight >= _LARGE_PART_BYTES
    return weight * tasks / day_bytes if is_slow else 0.0


def markers_on_time(days: Sequence[MarkedDay], settings: Settings) -> Answer:
    """Whether days close by their markers, instead of by the deadline."""
    if settings.hours_complete_by is Completeness.QUIET:
        told = f"hours count as complete after {settings.quiet_minutes} quiet minutes; no markers are awaited"
        return Answer(GREEN, told)
    closed = [one for one in days if one.is_closed]
    if not closed:
        told = f"none of {len(days)} days of the last 28 is closed"
        return Answer(YELLOW, told, "Ask again when days have closed")
    short = [f"{one.day}/{one.project_id} ({one.hours_marked})" for one in closed if one.hours_marked != HOURS_A_DAY]
    told = f"{len(closed) - len(short)} of {len(closed)} closed days of the last 28 have all 24 markers"
    if not any(one.hours_marked for one in closed):
        hint = "Correct TIDEMARK_MARKER_PATTERN to the exporter's names; where it writes none: TIDEMARK_HOURS_COMPLETE_BY=quiet"
        return Answer(RED, f"{told}, and no marker was seen at all", hint)
    if short:
        hint = "Ask the vendor why hours have no marker: such a day is final without being known whole"
        return Answer(YELLOW, f"{told}; closed by their deadline: {few(short, 3)}", hint)
    return Answer(GREEN, told)


def recovery_possible(
    keyless: Sequence[str], recovered: Mapping[str, date], projects: Sequence[str], unfinished: Mapping[str, list[Hour]]
) -> Answer:
    """Whether lost hours can be fetched, and ever were; `unfinished`: project -> hours begun long ago, without marker."""
    tried = ", ".join(f"{project} last of {day}" for project, day in sorted(recovered.items()))
    told = "keys are set for every project"
    if keyless:
        told = f"no keys of the Export API are set for {few(keyless)}"
    told += f"; recoveries were loaded: {tried}" if tried else "; no recovery was ever loaded"

    def set_keys(project: str) -> str:
        return f"Set TIDEMARK_EXPORT_KEY_{project} and TIDEMARK_EXPORT_SECRET_{project}"

    if begun := [(project, part) for project, hours in unfinished.items() for part in hour_ranges(hours, HOURS_A_DAY)]:
        named = few([f"{project} {part}" for project, part in begun], 5)
        each = [f"tidemark recover --from {part.first} --to {part.last} --project {project}" for project, part in begun]
        first = [f"{set_keys(project)}; then: " for project in unfinished if project in keyless][:1]
        told = f"hours whose recovery began and has no marker: {named}; {told}"
        return Answer(YELLOW, told, "".join((*first, few(each, 3, "; "))))
    if keyless:
        return Answer(YELLOW, told, f"{set_keys(keyless[0])} in the environment of this process")
    if untried := [project for project in projects if project not in recovered]:
        try_it = f"tidemark recover --from DAYT09 --to DAYT09 --project {untried[0]} --load"
        return Answer(YELLOW, f"{told}; never for {few(untried)}", f"Try it on an hour that is whole: {try_it}")
    return Answer(GREEN, told)


def looked_after(
    processes: Sequence[Process], heads: Sequence[TableHead], first_load: str | None, now: datetime
) -> Answer:
    """Whether maintenance runs, and its effect is visible."""
    runs = [one for one in processes if one.job == MAINTENANCE_JOB and one.is_ended and not one.is_lost]
    last = max((one.begun_at for one in runs if one.begun_at), default=None)
    told = f"maintenance ran last {last[:16]} UTC" if last else "no maintenance is on record of the last 30 days"
    told += f"; {sum(one.snapshots for one in heads):,} snapshots are kept"
    hint = "tidemark maintenance; every night by the schedule maintenance_nightly"
    overdue = [
        f"{one.table} ({one.oldest_at:%Y-%m-%d}, kept for {one.history_days} days)"
        for one in heads
        if one.oldest_at is not None and now - one.oldest_at > timedelta(days=one.history_days) + _OVERDUE
    ]
    if overdue:
        return Answer(RED, f"{told}; snapshots are older than they are kept: {few(overdue, 3)}", hint)
    if last is not None and now - datetime.fromisoformat(last) <= _RESTS:
        return Answer(GREEN, told)
    if first_load is None or now - datetime.fromisoformat(first_load) < _RESTS:
        return Answer(GREEN, f"{told}; the first load is less than {_RESTS.days} days ago")
    return Answer(YELLOW, told, hint)


def receivers_told(receivers: Sequence[Receiver], configured: int, refusing: Sequence[ReceiverTrouble] = ()) -> Answer:
    """Whether receivers get notices; `refusing`: receivers whose notices are set aside, so that no run sends them."""
    if not configured:
        return Answer(GREEN, "no receiver is configured; tidemark changes --since TIME lists what changed")
    told = f"{configured} receivers, {sum(one.waiting for one in receivers)} notices wait to be sent"
    failing = {one.place: one for one in receivers if one.failures}
    if failing or refusing:
        each = [f"{place} failed {one.failures} times, last: {one.error}" for place, one in sorted(failing.items())]
        each += [f"{one.place} {one.reason}" for one in refusing]
        commands = [SEND_NOW] * bool(failing) + [SEND_AGAIN] * bool(refusing)
        hint = f"Correct the address or the receiver, then: {', then '.join(commands)}"
        return Answer(RED, f"{told}; {few(each, 3)}", hint)
    if len(receivers) < configured:
        return Answer(YELLOW, f"{told}; {configured - len(receivers)} were never told of anything", "tidemark notify")
    return Answer(GREEN, told)


def decisions_kept(kept: int, unknown: int, lacking: int) -> Answer:
    """Whether decisions would survive the loss of the ledger; the caller has read all of their objects."""
    told = f"{kept} decisions are kept beside the tables, and each can be read"
    told += f"; the ledger lacks {unknown} of them" if unknown else ""
    told += f"; {lacking} that it knows are not there" if lacking else ""
    return judge(told, (unknown or lacking, YELLOW, "", f"The next load reads back what is lacking: {_LOAD}"))


def same_clock(theirs: datetime | None, ours: datetime) -> Answer:
    """Whether this machine's clock is close to the warehouse's."""
    if theirs is None:
        return Answer(GREEN, "the warehouse is a folder, which has this machine's clock")
    apart = abs((theirs - ours).total_seconds())
    hint = "Correct this machine's clock: "
    return judge(
        f"the warehouse's clock is {apart:.0f} s from this machine's",
        (apart > 60 * 60, RED, "", f"{hint}maintenance refuses to work, and finality is judged by it"),
        (apart > 5 * 60, YELLOW, "", f"{hint}deadlines are judged by it"),
    )


def recomputed(slices: int, differing: Sequence[str], unproven: int, days: Sequence[date]) -> Answer:
    """Whether a replay of some days from landing gives the published content."""
    if not slices:
        return Answer(YELLOW, "no final day holds rows that could be replayed", "Ask again when a day is final")
    told = f"{slices - len(differing) - unproven} of {slices} slices of {', '.join(map(str, days))} are equal"
    if differing:
        hint = f"tidemark verify --from {days[0]} --to {days[-1]} names each; load these days again"
        return Answer(RED, f"{told}; others: {few(differing, 3)}", hint)
    if unproven:
        told += f"; {unproven} cannot be replayed: landing no longer holds what they are made of"
        return Answer(YELLOW, told, "Keep objects in landing as long as days may have to be replayed")
    return Answer(GREEN, told)
