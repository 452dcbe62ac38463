"""Read and judge the evidence of each point, in the order of the guide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import date, datetime, timedelta
from functools import cache, partial
from typing import NamedTuple

from pipeline_assets.doctor import rules
from pipeline_assets.doctor.rules import RED, Answer, Point, Prefixes, TableHead
from pipeline_assets.domain.days import Hour, days_between
from pipeline_assets.domain.deliveries import BatchKey, Delivery, UnrecognizedObject, unplaced_hours
from pipeline_assets.domain.errors import LedgerError, SettingsError, TidemarkError
from pipeline_assets.domain.machine import engine_cores
from pipeline_assets.domain.masking import receiver_id
from pipeline_assets.domain.notices import SEND_AGAIN
from pipeline_assets.domain.processes import Process, Sight
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.skew import READS_PER_CORE
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.inspection.health import DUPLICATES
from pipeline_assets.inspection.questions import receiver_troubles
from pipeline_assets.load.staleness.finality import recent_lateness
from pipeline_assets.operations.split_landing import by_evidence, read_prefix
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import ALL_TABLES, EVERY_TABLE
from resources.export_api import export_keys
from resources.iceberg.catalog_at_rest import CatalogAtRest, lost_at_rest
from resources.iceberg.lake_identity import NAMESPACE, Purpose, is_one_lake, lake_of, read_mark, unknown_lake
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.staging import PREFIX
from resources.landing.store import LandingStore
from resources.ledger.decisions import FOLDER, DecisionObjects
from resources.ledger.history import Checkup
from resources.ledger.processes import sight
from resources.ledger.store import Ledger
from resources.publishing import promise_of

_RECENT = timedelta(days=28)
_FOREIGN = timedelta(days=30)
_RECOVERY_RESTS = timedelta(hours=1)
"""A recovery writes an hour at once after claiming it, so an older open claim has failed."""


class _At(NamedTuple):
    ledger: Ledger
    settings: Settings
    landing: Callable[[], LandingStore]
    now: datetime
    projects: Sequence[str]
    heads: Sequence[TableHead]
    processes: Sequence[Process]
    checkup: Checkup
    first: date


def examine(ledger: Ledger, settings: Settings, landing: Callable[[], LandingStore], now: datetime) -> Iterator[Point]:
    """Yield the points; raises LedgerError. If `landing` fails, its point says so. Writes only a clock probe."""
    projects, heads, checkup = settings.require_projects(), list(table_heads(ledger, settings)), ledger.checkup
    at = _At(ledger, settings, landing, now, projects, heads, ledger.processes.all(), checkup, (now - _RECENT).date())
    for name, question, look in _CHECKLIST:
        try:
            answer = look(at)
        except LedgerError:
            raise
        except TidemarkError as error:
            answer = Answer(RED, f"cannot be looked at: {error.subject}: {error.reason}", error.hint)
        yield Point(name, question, *answer)


def _one_lake(at: _At) -> Answer:
    """The first point: the others say nothing where the parts are of several lakes."""
    settings = at.settings
    try:
        mark = read_mark(settings)
        with closing(CatalogAtRest(settings)) as catalog:
            known = catalog.namespace_properties(NAMESPACE)
            outside = partial(catalog.outside, EVERY_TABLE)
            is_certain = is_one_lake(settings, known, outside, Purpose.KEEP, at.ledger.lake)
            if mark is not None and known == {}:
                raise unknown_lake(settings, mark.id)
        at.ledger.lake.require(lake_of(mark, known or {}), mark)
        return rules.one_lake(mark, settings, is_certain=is_certain)
    except TidemarkError as error:
        return Answer(RED, f"{error.subject}: {error.reason}", error.hint)


def _atomic(at: _At) -> Answer:
    open_ended = [one for one in at.processes if one.begun_at and not one.is_ended]
    dead = [one for one in open_ended if one.is_lost or sight(one.identity) is Sight.GONE]
    return rules.atomic(at.heads, [one for one in open_ended if one not in dead], dead)


def _one_load_path(at: _At) -> Answer:
    known = [one for one in at.heads if one.ledger is not None]
    strange = [one.table for one in known if one.catalog != one.ledger and not one.is_ours]
    found, unfinished = at.checkup.found_commits(at.projects), at.checkup.of_unfinished_runs(at.projects)
    return rules.one_load_path(found, strange, unfinished, (at.now - _FOREIGN).isoformat())


def table_heads(ledger: Ledger, settings: Settings) -> Iterator[TableHead]:
    """Each table's head in the catalog and in the ledger."""
    with closing(CatalogAtRest(settings)) as catalog:
        for table in ALL_TABLES:
            resting, known = catalog.table(table), ledger.head(table.key)
            # The next load compares a doubted head, so it counts as different.
            snapshot = None if known is None else known.snapshot_id if known.is_trusted else 0
            if resting is None:
                yield TableHead(table.key, None, snapshot, is_listed=catalog.lists(table))
                continue
            branches = tuple(sorted(name for name in resting.refs if name.startswith(PREFIX)))
            seen = (resting.head, snapshot, resting.is_head_ours, branches, len(resting.snapshot_ids))
            kept = (resting.oldest_at, settings.rollback_days)
            yield TableHead(table.key, *seen, *kept, deletes=resting.deletes)


def _files(at: _At) -> Answer:
    days = days_between(at.first, at.now.date())
    written = {one.table for one in at.heads if one.ledger is not None}
    with closing(CatalogAtRest(at.settings)) as catalog:
        resting = {table.key: catalog.table(table) for table in EVERY_TABLE}
    untold = [key for key, one in resting.items() if one is None and key in written]
    lost = {key: lost_at_rest(one, days) for key, one in resting.items() if one is not None}
    return rules.files_are_there(lost, untold, days[0])


def _prefixes(at: _At) -> Answer:
    settings, landing = at.settings, at.landing()
    grammar = EXPORT_FORMAT.keys(settings.marker_pattern)
    since = (at.now - timedelta(days=settings.redelivery_horizon_days)).date()
    objects, notes = 0, list[str]()
    misnamed, late, unplaced = list[tuple[str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for project in at.projects:
        listed, unrecognized = read_prefix(landing.list_folder(Source.REGULAR.prefix(project)), project, grammar, since)
        misnamed += [(project, one.upload.key) for one in listed if one.is_named_backfill]
        found = by_evidence(listed, {}, settings)
        late += [(project, one.upload.key) for one in found.recovered if not one.is_named_backfill]
        objects += sum(one.is_named_backfill or not one.is_marker for one in listed)
        recovered = [one for one in landing.list_folder(Source.BACKFILL.prefix(project)) if not one.oddity]
        named = [grammar.parse(Source.BACKFILL, project, one.key, one.etag, one.size_bytes) for one in recovered]
        odd = [one for one in (*named, *unrecognized.values()) if isinstance(one, UnrecognizedObject)]
        hours = unplaced_hours(
            odd, {one.key for one in named if isinstance(one, Delivery)} | {one.upload.key for one in listed}
        )
        keys = sorted(key for batch, keys in hours.items() if batch.arrival_date >= since for key in keys)
        unplaced += [(project, key) for key in keys]
        notes += [f"{project}: {note}" for note in found.notes[:1]]
    return rules.separate_prefixes(Prefixes(objects, misnamed, late, unplaced, notes), since)


def _keys(at: _At) -> Answer:
    """Rows of the latest four weeks only: a sample of years would hide recent problems."""
    ledger, projects, today = at.ledger, at.projects, at.now.date()
    of_all = ledger.summaries.slice_figures(REFINED_EVENTS.key, projects)
    days = [one for one in of_all if one.rows and one.day <= today]
    first = max((one.day for one in days), default=today) - _RECENT + timedelta(days=1)
    records = ledger.slices(REFINED_EVENTS.key, projects, [one.day for one in days if one.day >= first])
    figures = [record.figures for record in records.values()]
    without, blank = (int(sum(of.get(name, 0) for of in figures)) for name in ("rows_without_id", "rows_with_blank_id"))
    duplicates = ledger.summaries.check_figures([DUPLICATES], projects)[DUPLICATES]
    twice = [f"{one.table} {one.day}/{one.project_id}" for one in duplicates]
    recent = [one for one in days if one.day >= first]
    earlier = [one for one in days if first - _RECENT <= one.day < first]
    return rules.stable_keys(recent, earlier, without, blank, twice)


def _recovery(at: _At) -> Answer:
    """Landing is opened only for open claims, to look for their markers."""
    grammar, projects, landing = EXPORT_FORMAT.keys(at.settings.marker_pattern), at.projects, cache(at.landing)
    unfinished: dict[str, list[Hour]] = {}
    for one in at.ledger.recoveries.open(projects):
        marker = grammar.format_marker(BatchKey(Source.BACKFILL, one.project_id, one.hour.day), one.hour.hour)
        if one.begun_at < at.now - _RECOVERY_RESTS and landing().find(marker) is None:
            unfinished.setdefault(one.project_id, []).append(one.hour)
    lacking = list(projects)
    for project in projects:
        with suppress(SettingsError):
            export_keys(project)
            lacking.remove(project)
    return rules.recovery_possible(lacking, at.checkup.recoveries(projects), projects, unfinished)


def _notices(at: _At) -> Answer:
    configured = {receiver_id(url) for url in at.settings.notify_urls}
    receivers = [one for name, one in at.ledger.outbox.receivers().items() if name in configured]
    refusing = [one for one in receiver_troubles(at.ledger, at.settings) if one.command == SEND_AGAIN]
    return rules.receivers_told(receivers, len(configured), refusing)


def _decisions(at: _At) -> Answer:
    kept = DecisionObjects(LakeObjects.of(at.settings, FOLDER))
    names = kept.names()
    for name in names:
        kept.read(name)
    known = at.checkup.known_decisions()
    return rules.decisions_kept(len(names), len(set(names) - known), len(known - set(names)))


def _window(at: _At) -> Answer:
    late = recent_lateness(at.ledger, Source.REGULAR, at.projects, at.now.date())
    return rules.wide_enough(late, at.settings)


def _skew(at: _At) -> Answer:
    tasks = engine_cores(at.settings.spark_master) * READS_PER_CORE
    return rules.not_skewed(at.ledger.summaries.arrived(None, at.projects, at.first, date.max), at.settings, tasks)


_CHECKLIST: tuple[tuple[str, str, Callable[[_At], Answer]], ...] = (
    ("one lake", "Are warehouse, catalog, ledger and the places of all tables one lake?", _one_lake),
    ("idempotent", "Does loading the same twice leave the same?",
     lambda at: rules.idempotent(*at.checkup.built_again(at.projects), at.checkup.verdicts())),
    ("atomic", "Do tables and ledger agree, and is nothing left half done?", _atomic),
    ("data files", "Are the files of recent days there?", _files),
    ("one transaction", "Do all tables change at the same moment?",
     lambda at: rules.one_transaction(promise_of(at.settings))),
    ("one load path", "Does everything that writes the tables go through the load?", _one_load_path),
    ("separate prefixes", "Do recoveries lie apart from the regular exports?", _prefixes),
    ("window", "Is the reprocessing window wide enough for the lateness seen?", _window),
    ("keys", "Are the keys stable, so that a row that comes again is known?", _keys),
    ("skew", "Does the work divide, or does one object hold up a day?", _skew),
    ("markers", "Do markers come on time, so that complete days are known?",
     lambda at: rules.markers_on_time(at.checkup.marked_days(at.projects, at.first), at.settings)),
    ("recovery", "Can lost hours be fetched again, and was it tried?", _recovery),
    ("maintenance", "Is the lakehouse looked after?",
     lambda at: rules.looked_after(at.processes, at.heads, at.checkup.first_load(), at.now)),
    ("notices", "Are readers told when a published number changes?", _notices),
    ("decisions", "Would what operators decided outlive a lost ledger?", _decisions),
    ("clocks", "Do the clocks agree?", lambda at: rules.same_clock(LakeObjects.of(at.settings).clock(), at.now)),
)  # fmt: skip
"""Name, question, and the function that reads its evidence and asks its rule; in the order of the guide."""
