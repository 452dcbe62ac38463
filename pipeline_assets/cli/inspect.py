"""Commands that read what is published, from the ledger alone: status, history, exclusions, changes, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from rich.text import Text

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_OK
from pipeline_assets.config import dagster_home, load_settings
from pipeline_assets.domain.days import days_between, describe_strays, parse_day, parse_moment
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.notices import measures_text
from pipeline_assets.domain.processes import Life, Sight
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.requests import Changes, Engines, Exclusions, History, Snapshots, Status, Table
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice, Source, Verdict
from pipeline_assets.inspection import changes as recorded
from pipeline_assets.inspection import status as days_status
from pipeline_assets.inspection.questions import receiver_troubles
from pipeline_assets.load.golden import compare_recorded, faults_on_record
from pipeline_assets.load.staleness.finality import too_narrow
from pipeline_assets.tables.registry import EVERY_TABLE, table_by_key
from resources.ledger.processes import sight
from resources.ledger.store import Ledger, own_ledger
from resources.publishing import promise_of

_MOST_MISMATCHES = 20
_TWO_WEEKS = timedelta(days=13)
_STYLES = dict.fromkeys((Verdict.PUBLISHED, Verdict.UNCHANGED), "green")
_STYLES |= {Verdict.REFUSED: "bold red", Verdict.WAITING: "yellow", Verdict.HELD: "magenta"}


def status(request: Status) -> int:
    """Print a grid of days and tables, and what an operator should know."""
    settings = load_settings()
    projects, today = settings.require_projects(), datetime.now(UTC).date()
    last = parse_day(request.last) if request.last else today
    start, end = request.bounds(last - _TWO_WEEKS, last)
    with own_ledger(settings) as ledger:
        days = days_between(start, end)
        statuses = days_status.day_statuses(ledger, projects, days, sources=tuple(Source))
        statuses += days_status.joined_statuses(ledger, projects, days, is_all_wanted=True)
        statuses += days_status.dimension_statuses(ledger, days)
        notes: list[str | Text | None] = []
        faults = faults_on_record(ledger, settings)
        mismatches = [one for one in compare_recorded(ledger, settings, projects, start, end) if not one.is_good]
        for one in mismatches[:_MOST_MISMATCHES]:
            place = f"{one.total.key.event_date} {one.total.measure.table} "
            notes.append(ui.line(place, ui.styled("golden", "yellow"), f": {one.total.key.project_id}: {one}"))
        notes.append(ui.more(len(mismatches) - _MOST_MISMATCHES, "golden totals that do not agree: tidemark reconcile"))
        notes += [ui.line(ui.styled("not compared", "yellow"), f": {one}") for one in faults[:_MOST_MISMATCHES]]
        notes.append(ui.more(len(faults) - _MOST_MISMATCHES, "that are no golden totals: tidemark reconcile"))
        notes += [*process_lines(ledger), *(one.told for one in ledger.rebuilds.open())]
        notes += too_narrow(ledger, settings, Source.REGULAR, projects, today)
        notes += map(str, receiver_troubles(ledger, settings))
        strays = list(ledger.strays.all(projects))
    landing = f"landing: {describe_strays(strays)}" if strays else None
    ui.answer(request, [status.to_json() for status in statuses], [*_grid(statuses), landing])
    # Keep other lines out of the JSON that scripts parse.
    console = ui.PlainConsole(stderr=True, soft_wrap=True) if request.as_json else ui.page()
    ui.show(console, *notes, promise_of(settings).sentence)
    return EXIT_OK


def _verdict(verdict: Verdict | None) -> Text:
    return (
        ui.styled(verdict.value, _STYLES[verdict]) if verdict is not None else ui.styled(days_status.NOT_LOADED, "dim")
    )


def status_table(statuses: Sequence[days_status.DayStatus]) -> Table:
    """One row per day and table: verdict, rows, reason."""
    rows = [(one.day, one.table, _verdict(one.verdict), one.rows, "; ".join(one.reasons)) for one in statuses]
    return Table(("day", "table", "verdict", "rows", "reason"), rows)


def _grid(statuses: Sequence[days_status.DayStatus]) -> ui.Parts:
    tables = list(dict.fromkeys(one.table for one in statuses))
    by_day: dict[date, dict[str, Text]] = {}
    for one in statuses:
        cell = ui.line(_verdict(one.verdict), f" {one.rows:,}{'' if one.is_final else ' ~'}")
        by_day.setdefault(one.day, {})[one.table] = cell
    rows = [(day, *(cells[name] for name in tables)) for day, cells in by_day.items()]
    yield Table(("day", *(name.rsplit("/", 1)[1] for name in tables)), rows)
    yield ui.styled("~ = provisional: more deliveries are expected", "dim")
    for one in statuses:
        for reason in one.reasons:
            yield ui.line(f"{one.day} {one.table} ", _verdict(one.verdict), f": {reason}")


def process_lines(ledger: Ledger) -> list[str]:
    """A line per running run, and per run whose process is dead."""
    lines, has_dead = [], False
    for process in ledger.processes.look([], {}).values():
        seen, identity = sight(process.identity), process.identity
        has_dead = has_dead or process.has_died_with_its_run(seen)
        if identity is not None and process.life(seen) is not Life.DEAD:
            who = f"process {identity.pid} on {identity.host}"
            work = f"run {process.run_id} ({process.job}) works: {who}, begun {(process.begun_at or '')[:19]} UTC"
            is_silent = seen is not Sight.THERE and process.watch.still > 0
            lines.append(f"{work}; not heard from since {(process.beat_at or '')[:19]} UTC" if is_silent else work)
    if has_dead:
        import dagster as dg  # noqa: PLC0415 - `status` starts without Dagster

        from pipeline_assets.orchestration.live_runs import report_dead_runs  # noqa: PLC0415 - as above

        dagster_home()
        with dg.DagsterInstance.get() as instance:
            lines += [str(dead) for dead in report_dead_runs(instance, ledger)]
    return lines


def exclusions(request: Exclusions) -> int:
    """Print one row per excluded version of an object, those in force first."""
    settings = load_settings()
    with own_ledger(settings) as ledger:
        excluded = ledger.interventions.all_exclusions([*settings.require_projects(), ALL_PROJECTS])
    rows = []
    for one in sorted(excluded, key=lambda one: one.lifted_at is not None):
        lifted = f"{one.lifted_at[:16]}: {one.lift_reason}" if one.lifted_at else ui.styled("no", "magenta")
        rows.append((one.object_key, one.etag, one.excluded_at[:16], one.reason, lifted))
    table = Table(("object", "version", "excluded", "reason", "included again"), rows)
    names = ("object_key", "etag", "reason", "excluded_at", "lift_reason", "lifted_at")
    value = [ui.members(one, *names) for one in excluded]
    ui.answer(request, value, (table, None if rows else "nothing was ever excluded"))
    return EXIT_OK


def _known(table: str) -> str:
    keys = [one.key for one in EVERY_TABLE]
    if table not in keys:
        raise UsageError(table, "is not a table", f"There are {', '.join(keys)}")
    return table


def history(request: History) -> int:
    """Print one row per recorded publication, oldest first."""
    settings = load_settings()
    chosen = settings.require_projects(tuple(request.projects))
    owners = table_by_key(_known(request.table)).kind.projects(chosen)
    with own_ledger(settings) as ledger:
        records = ledger.publications(request.table, owners, [parse_day(request.day)] if request.day else None)
    rows = []
    for one in records:
        cause = f"{one.cause}: {one.accepted_reason}" if one.accepted_reason else one.cause.text
        place = str(one.number), one.published_at[:19], one.table, f"{one.key.event_date} {one.key.project_id}"
        rows.append((*place, one.digest_before.rows, one.digest_after.rows, cause, (one.run_id or "")[:8]))
    table = Table(("no.", "published", "table", "day", "rows before", "after", "cause", "run"), rows)
    ui.answer(request, [_publication_json(one) for one in records], (table, None if rows else "no change is on record"))
    return EXIT_OK


def _publication_json(record: PublicationRecord) -> dict[str, Any]:
    names = ("number", "table", "published_at", "accepted_reason", "run_id", "code_version", "settings")
    digests = {"rows_before": "digest_before.rows", "rows_after": "digest_after.rows", "cause": "cause.text"}
    # Snapshot ids exceed the integers that JSON readers hold exactly.
    return ui.members(record, *names, "digest_before", "digest_after", **digests) | {
        **ui.members(record.key, day="event_date", project="project_id"),
        "snapshot_id": str(record.snapshot_id),
        "pins": {name: str(pin) for name, pin in (record.pins or {}).items()},
    }


def changes(request: Changes) -> int:
    """Print changes, then refusals, then what to refresh."""
    settings = load_settings()
    table = None if request.table is None else _known(request.table)
    moment = parse_moment("--since", request.since)
    with own_ledger(settings) as ledger:
        found = recorded.changes_since(ledger, moment, table)
    ui.answer(request, _changes_json(found), _changes(found))
    return EXIT_OK


def _changes_json(found: recorded.ChangesSince) -> dict[str, Any]:
    place = {"table": "table", "day": "key.event_date", "project": "key.project_id"}
    refusals = [
        ui.members(one.notice, **place)
        | {name: notice and notice.to_json() for name, notice in (("refused", one.refused), ("ended", one.ended))}
        for one in found.refusals
    ]
    value = {"since": found.since, "changes": [one.to_json() for one in found.changes], "refusals": refusals}
    if found.refresh is None:
        return value
    return value | {
        "refresh": [ui.members(one, "rows_then", "rows_now", "was_final", **place) for one in found.refresh]
    }


def _changes(found: recorded.ChangesSince) -> ui.Parts:
    since = found.since.isoformat(timespec="minutes")
    rows: list[tuple[object, ...]] = []
    for one in found.changes:
        cause = "; ".join(filter(None, (one.cause, one.reason)))
        rows.append((one.at[:16], one.table, _day(one.key), measures_text(one.measures), cause, (one.run_id or "")[:8]))
    yield Table(("at", "table", "day", "what changed", "cause", "run"), rows)
    yield ui.styled(f"{len(rows):,} changes of published final days since {since}", "dim")
    rows = []
    for refusal in found.refusals:
        refused, ended = refusal.refused, refusal.ended
        begun, reason = ("before", None) if refused is None else (refused.at[:16], refused.reason)
        end = ui.styled("stands", "bold red") if ended is None else f"{ended.at[:16]} {ended.verdict}"
        rows.append((begun, end, refusal.notice.table, _day(refusal.notice.key), reason or "not on record"))
    yield Table(("refused", "ended", "table", "day", "reason"), rows)
    yield ui.styled(f"{len(rows):,} refusals that began or ended since {since}", "dim")
    if found.refresh is not None:
        rows = []
        for copy in found.refresh:
            was = "was final" if copy.was_final else "was provisional"
            rows.append((copy.table, _day(copy.key), copy.rows_then, copy.rows_now, was))
        yield Table(("to refresh", "day", "rows then", "now", ""), rows)
        yield ui.styled(f"{len(rows):,} days to refresh for a copy of {since}", "dim")


def _day(key: Slice) -> str:
    return f"{key.event_date} {key.project_id}"


def snapshots(request: Snapshots) -> int:
    """Print the snapshots of a cut, then the lines of each engine."""
    if request.run_id is not None and request.at is not None:
        raise UsageError("--run and --at", "name two states", "Name one of them")
    settings = load_settings()
    moment = parse_moment("--at", request.at) if request.at is not None else None
    with own_ledger(settings) as ledger:
        if request.run_id is not None:
            cut = recorded.cut_of_run(ledger, request.run_id)
        else:
            cut = recorded.newest_cut(ledger) if moment is None else recorded.cut_at(ledger, moment)
    resting = recorded.tables_at_rest(settings, cut)
    chosen = list(recorded.Engine) if request.engine is Engines.ALL else [recorded.Engine(request.engine.value)]
    lines = {one: recorded.reading_lines(one, settings, cut.snapshots, resting) for one in chosen}
    numbers = {name: str(number) for name, number in cut.snapshots.items()}
    published = ui.styled(f"published {cut.published_at[:19]} UTC by run {cut.run_id or 'unknown'}", "dim")
    parts: list[object] = [Table(("table", "snapshot"), list(numbers.items())), published]
    for engine, of in lines.items():
        parts += ["", ui.styled(engine.value, "bold"), *of]
    if untold := sorted(cut.snapshots.keys() - resting.keys()):
        told = f"without Spark nobody can tell whether these can be read still: {', '.join(untold)}"
        parts.append(ui.styled(told, "yellow"))
    promise = promise_of(settings)
    value = {"promise": promise, "snapshots": numbers, "lines": lines}
    ui.answer(
        request,
        ui.members(cut, "number", "run_id", "published_at") | value,
        [*parts, ui.styled(promise.sentence, "dim")],
    )
    return EXIT_OK
