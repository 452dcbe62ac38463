"""The trials of a drill: where work is disturbed, how it starts again, what must hold afterwards."""

from __future__ import annotations

import io
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from enum import StrEnum
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import obstore

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.slices import EMPTY, Slice, Source
from pipeline_assets.drill.sandbox import Scratch, failure, kill_at, tidemark
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.recover import NO_DATA_MARKER
from resources.failpoints import Failpoint
from resources.ledger.store import Ledger
from resources.publishing import Promise, promise_of
from sample_export.account import ExportAccount
from sample_export.objects import iter_export
from sample_export.spec import ExportSpec

_K = TypeVar("_K", bound=Any)
_V = TypeVar("_V")
RAW, REFINED, QUARANTINE = "raw/regular_events", "refined/events", "raw/quarantine"
REVENUE, AGGREGATE = "aggregates/daily_revenue", "aggregates/event_counts"


class Disturbance(StrEnum):
    """The kinds of disturbance."""

    RETRIED = "killed, retried"
    """The load is killed; Dagster notices the dead run and starts it again."""
    FRESH = "killed, another run"
    """The load is killed; another run comes before anybody notices."""
    MET = "overtaken by another run"
    """The load is paused, another run publishes the same days, and the load continues."""
    RECOVERED = "recovery killed, run again"
    REBUILT = "rebuild killed, run again"
    """The same command continues it, and an undo takes it back."""


class Trial(NamedTuple):
    """One disturbed load, recovery or rebuild."""

    event: Disturbance
    point: Failpoint
    qualifier: str = ""

    @property
    def armed(self) -> str:
        """The value for the process's environment variable."""
        return f"{self.point}:{self.qualifier}" if self.qualifier else str(self.point)


_OF_STEPS = (Failpoint.AFTER_PIN, Failpoint.AFTER_STAGE, Failpoint.AFTER_AUDIT)
_OF_TABLES = (*_OF_STEPS, Failpoint.BETWEEN_TABLES, Failpoint.BEFORE_EVENTS)
_OF_PUBLISHES = {
    Promise.ONE_TRANSACTION: (Failpoint.AFTER_APPLY,),
    Promise.TABLE_BY_TABLE: (Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, Failpoint.BEFORE_LEDGER),
}
"""Further points per table, by how the deployment publishes; the ledger has none of quarantine."""
_OF_TRANSACTIONS = (Failpoint.BEFORE_PUBLISH, Failpoint.IN_TRANSACTION, Failpoint.AFTER_PUBLISH)
_OF_RECOVERIES = (Failpoint.AFTER_DOWNLOAD, Failpoint.AFTER_OBJECT, Failpoint.BEFORE_MARKER)
_OF_REPORTS = (Failpoint.AFTER_GREEN, Failpoint.AFTER_CHUNK, Failpoint.BEFORE_REPORT)
_AROUND_SWAP = (Failpoint.BEFORE_SWAP, Failpoint.AFTER_SWAPS)
IN_SWAP = {Promise.ONE_TRANSACTION: Failpoint.IN_TRANSACTION, Promise.TABLE_BY_TABLE: Failpoint.AFTER_COMMIT}
"""The point in the middle of a rebuild's swap."""


def planned(project: str, promise: Promise, *, is_full: bool) -> Sequence[Trial]:
    """Every point once, alternating tables and ways to start again; if full, all combinations. Then the other kinds."""
    of_publishes = _OF_PUBLISHES[promise]
    of_tables = (*_OF_TABLES, *of_publishes)
    tables, ways = (RAW, REFINED, AGGREGATE), (Disturbance.RETRIED, Disturbance.FRESH)
    of_runs = [Failpoint.MID_PARSE, Failpoint.BETWEEN_CHUNKS, Failpoint.BEFORE_NOTICES]
    of_runs += _OF_TRANSACTIONS if promise is Promise.ONE_TRANSACTION else ()
    alone = [(Failpoint.DURING_LISTING, f"regular/{project}"), *((point, "") for point in of_runs)]
    if is_full:
        alone += [(Failpoint.AFTER_FILES, RAW), (Failpoint.AFTER_FILES, REFINED)]
        alone += [(point, QUARANTINE) for point in (Failpoint.AFTER_STAGE, *of_publishes[:2])]
        alone += [(point, table) for table in tables for point in of_tables]
        kills = [Trial(way, *place) for place in alone for way in ways]
    else:
        alone += [(Failpoint.AFTER_FILES, REFINED)]
        alone += [(point, tables[turn % 3]) for turn, point in enumerate(of_tables)]
        kills = [Trial(ways[turn % 2], *place) for turn, place in enumerate(alone)]
    meetings = ((Failpoint.AFTER_PIN, RAW), (Failpoint.AFTER_STAGE, REFINED), (of_publishes[0], AGGREGATE))
    kills += [Trial(Disturbance.MET, *place) for place in meetings]
    kills += [Trial(Disturbance.RECOVERED, point) for point in _OF_RECOVERIES]
    return kills + [Trial(Disturbance.REBUILT, point) for point in (*_OF_REPORTS, *_AROUND_SWAP, IN_SWAP[promise])]


def differing(expected: Mapping[_K, _V], found: Mapping[_K, _V]) -> Iterator[tuple[_K, _V | None, _V | None]]:
    """Keys with different values, in order, with expected and found value; None where one is missing."""
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            yield key, expected.get(key), found.get(key)


class Change(NamedTuple):
    """One recorded publication of a slice."""

    table: str
    key: Slice
    before: str
    after: str


class DrillState(NamedTuple):
    """The state of tables, ledger and Dagster after a trial."""

    digests: Mapping[str, Mapping[Slice, str]]
    """Table -> slice -> digest of the rows that a reader sees."""
    changes: Sequence[Change]
    branches: Sequence[str]
    """Remaining staged branches, as `table branch`."""
    shown: Mapping[str, Set[date]]
    """Table -> days that Dagster shows as materialized."""


def faults(state: DrillState, calm: Mapping[str, Mapping[Slice, str]], days: Sequence[date]) -> Iterator[str]:
    """The broken invariants; `calm`: digests after undisturbed loads of these deliveries; `days`: all loaded."""
    for table, expected in calm.items():
        for key, wanted, found in differing(expected, state.digests.get(table, {})):
            yield f"{table} {key}: {found or EMPTY} instead of {wanted or EMPTY}"
    last: dict[tuple[str, Slice], Change] = {}
    for change in state.changes:
        former = last.get((change.table, change.key))
        # A repetition later is no fault: an undo is followed by what it undid.
        if change == former:
            yield f"{change.table} {change.key}: the same change is on record twice"
        elif change.before != (former.after if former else str(EMPTY)):
            yield f"{change.table} {change.key}: a change is missing on record"
        last[change.table, change.key] = change
    recorded = {place: change.after for place, change in last.items() if change.after != str(EMPTY)}
    # The ledger records no changes of quarantine, and Dagster does not show it.
    shown_tables = [table for table in state.digests if table in state.shown]
    held = {(table, key): digest for table in shown_tables for key, digest in state.digests[table].items()}
    for (table, key), _, _ in differing(recorded, held):
        yield f"{table} {key}: the last change on record is not what the table holds"
    yield from (f"{branch}: a staged branch is left" for branch in state.branches)
    for table, shown in state.shown.items():
        yield from (f"{table} {day}: Dagster shows no materialization" for day in days if day not in shown)


_OF_SWAPS = frozenset({*_AROUND_SWAP, *IN_SWAP.values()})

Digests = Mapping[str, Mapping[Slice, str]]


def rebuild_faults(place: Scratch, day: date, trial: Trial, measured: Callable[[], Digests]) -> Iterator[str]:
    """Kill a rebuild, start it again, swap it in and undo it; yields the broken invariants; may raise VictimError."""
    # Changed settings stand in for changed code: no delivered property has this name.
    environment = place.environment(TIDEMARK_REVENUE_PROPERTIES="of_a_drill", TIDEMARK_PRICE_PROPERTIES="of_a_drill")
    span = ("--from", str(day), "--to", str(day), "--table", REVENUE, "--table", AGGREGATE, "--reason", "drill")
    before = measured()

    def carry_out(step: str, *words: str) -> Iterator[str]:
        if (said := failure(tidemark("rebuild", step, *words), environment)) is not None:
            yield f"rebuild {step} {words[0]} failed: {said}"

    def changed(expected: Digests, what: str) -> Iterator[str]:
        now = measured()
        for name in expected:
            for key, wanted, found in differing(expected[name], now[name]):
                yield f"{what}: {name} {key}: {found} instead of {wanted}"

    faults: list[str] = []
    if trial.point not in _OF_SWAPS:
        kill_at(tidemark("rebuild", "start", *span), environment, trial.armed, place.home)
        faults += changed(before, "a rebuild that was killed changed main")
    faults += carry_out("start", *span)
    yield from faults
    if faults:
        return
    with closing(Ledger(place.settings.ledger_database_url)) as ledger:
        rebuild = ledger.rebuilds.all()[-1]
        number, wanted = str(rebuild.number), dict(before)
        for name, slices in ledger.rebuilds.slices(rebuild).items():
            rebuilt = {key: str(one.record.digest) for key, one in slices.items() if one.record.digest.rows}
            wanted[name] = {key: one for key, one in before[name].items() if key.event_date != day} | rebuilt
    yield from changed(before, "a rebuild changed main before its swap")
    if before == wanted:
        yield "the rebuild would change nothing, so nothing is proven"
    if trial.point in _OF_SWAPS:
        kill_at(tidemark("rebuild", "swap", number), environment, trial.armed, place.home)
        half = measured()
        if promise_of(place.settings) is Promise.ONE_TRANSACTION and half not in (before, wanted):
            yield "main shows a part of a swap"
        yield from (
            f"{name}: main shows half of a swap" for name in before if half[name] not in (before[name], wanted[name])
        )
    yield from carry_out("swap", number)
    yield from changed(wanted, "main does not show what was rebuilt")
    yield from carry_out("undo", number)
    yield from changed(before, "main is not what it was before the swap")
    with closing(Ledger(place.settings.ledger_database_url)) as ledger:
        # Later trials must not find the slices that the undo holds.
        held = {name: list(ledger.interventions.holds(name, place.settings.projects)) for name in before}
        ledger.interventions.release(held, "the drill goes on", "drill")


def recovery_faults(place: Scratch, sample: ExportSpec, project: str, day: date, armed: str) -> list[str]:
    """Kill a recovery of a day and start it again; returns the broken invariants; may raise VictimError."""
    grammar = EXPORT_FORMAT.keys(place.settings.marker_pattern)
    batch = BatchKey(Source.BACKFILL, project, day)
    markers = {grammar.format_marker(batch, hour): hour for hour in range(24)}
    files: dict[Hour, dict[str, bytes]] = defaultdict(dict)
    expected = _landing(place, project)
    hour_of: dict[str, int] = {}
    for exported in iter_export(replace(sample, first_day=day, days=1, shards=2), ExportAccount()):
        parsed = grammar.parse(Source.REGULAR, project, exported.key, "", 0)
        if isinstance(parsed, Delivery):
            files[Hour(day, parsed.hour)][exported.key] = exported.body
            key = grammar.format_delivery(batch, parsed.hour, parsed.shard)
            expected[key], hour_of[key] = exported.body, parsed.hour
    expected |= {key: b"" if Hour(day, hour) in files else NO_DATA_MARKER for key, hour in markers.items()}
    words = tidemark("recover", "--from", str(day), "--to", str(day))
    keys = {f"TIDEMARK_EXPORT_{name}_{project}": "of-a-drill" for name in ("KEY", "SECRET")}
    with a_vendor(files) as url:
        direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        api = {"TIDEMARK_EXPORT_API_URL": url, "TIDEMARK_EXPORT_MIN_FREE_BYTES": "0"}
        environment = place.environment(**api, **direct, **keys)
        kill_at(words, environment, armed, place.home)
        after_the_kill = _landing(place, project)
        said = failure([*words, "--verbose"], environment)
    faults = [] if said is None else [f"the recovery that came after it failed: {said}"]
    marked = {hour for key, hour in markers.items() if key in after_the_kill}
    half = [key for key, hour in hour_of.items() if hour in marked and key not in after_the_kill]
    faults += [f"{key} was missing beside the marker of its hour" for key in half]
    for key, wanted, found in differing(expected, _landing(place, project)):
        what = "is not there" if found is None else "holds other bytes than were exported"
        faults.append(f"{key} {what if wanted is not None else 'is there, and nobody exported it'}")
    return faults


def _landing(place: Scratch, project: str) -> dict[str, bytes]:
    root = "landing/"
    pages = obstore.list(place.store, prefix=f"{root}{Source.BACKFILL.prefix(project)}")
    names = [item["path"] for page in pages for item in page]
    return {name.removeprefix(root): bytes(obstore.get(place.store, name).bytes()) for name in names}


@contextmanager
def a_vendor(files: Mapping[Hour, Mapping[str, bytes]]) -> Iterator[str]:
    """Run the server and yield its URL; it accepts any keys. `files`: hour -> name in the archive -> gzip bytes."""

    class Handler(SimpleHTTPRequestHandler):
        def send_head(self) -> io.BytesIO:
            query = parse_qs(urlsplit(self.path).query)
            first, last = (
                Hour.at(datetime.strptime(query[name][0], "%Y%m%dT%H").replace(tzinfo=UTC)) for name in ("start", "end")
            )
            chosen = [item for hour, found in files.items() if first <= hour <= last for item in found.items()]
            body = io.BytesIO()
            with zipfile.ZipFile(body, "w") as archive:
                for name, content in chosen:
                    archive.writestr(name, content)
            self.send_response(HTTPStatus.OK if chosen else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", str(body.tell()))
            self.end_headers()
            body.seek(0)
            return body

        def log_message(self, *_: object) -> None:
            """Log nothing: the drill has its own log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        server.daemon_threads = True
        pool.submit(server.serve_forever, 0.1)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
