"""Points of the checklist about places other than the ledger: catalog, landing, warehouse, environment. Rules only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple

from pipeline_assets.doctor.point import Answer, green, red, yellow
from pipeline_assets.domain.checks import lost_file
from pipeline_assets.domain.days import Hour, hour_ranges
from pipeline_assets.domain.deliveries import RENAME
from pipeline_assets.domain.plain_text import few
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.staleness.finality import HOURS_A_DAY
from resources.iceberg.lake_identity import catalog_place
from resources.iceberg.lake_mark import Mark
from resources.ledger.checkup import ProcessOnRecord
from resources.publishing.promise import Promise

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
