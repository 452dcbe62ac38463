"""Commands that test whether a deployment can recover: verify, diff, replay, drill, doctor."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from typing import Any

from dagster_aws.s3 import S3Resource

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.run import open_runtime
from pipeline_assets.config import load_settings
from pipeline_assets.doctor.examine import examine
from pipeline_assets.doctor.rules import Light, Point, recomputed, worst
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.requests import Diff, Doctor, Drill, Replay, Table, Verify
from pipeline_assets.domain.settings import Settings
from pipeline_assets.drill.drill import PROJECT, Result, carry_out
from pipeline_assets.drill.sandbox import require_catalog_of_its_own
from pipeline_assets.drill.scenarios import planned
from pipeline_assets.inspection import diff as differences
from pipeline_assets.inspection import replay as replays
from pipeline_assets.inspection import replay_result
from pipeline_assets.inspection.scratch import replay_runtime
from pipeline_assets.inspection.verify import Compared, Proof, ReplayMatch, prove
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.tables.events import REFINED_EVENTS
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger, own_ledger
from resources.publishing import promise_of


def verify(request: Verify) -> int:
    """Print counts per table, then every slice that differs, then the verdict."""
    settings = load_settings()
    chosen, (first, last) = settings.require_projects(tuple(request.projects)), request.range()
    with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
        proof = prove_range(runtime, first, last, chosen)
    ui.answer(request, _proof_json(proof), _proof(proof))
    return EXIT_OK if proof.is_proven else EXIT_INCOMPLETE


def prove_range(runtime: Runtime, first: date, last: date, projects: Sequence[str]) -> Proof:
    """Replay a range into scratch tables, which are dropped afterwards."""
    with replay_runtime(runtime) as scratch:
        return prove(runtime, scratch, first, last, projects, datetime.now(UTC))


def _proof(proof: Proof) -> ui.Parts:
    matches: dict[str, Counter[ReplayMatch]] = {}
    rows: Counter[str] = Counter()
    for one in proof.slices:
        matches.setdefault(one.table, Counter())[one.match] += 1
        rows[one.table] += one.published.rows
    counted = []
    for name, counts in matches.items():
        equal = counts[ReplayMatch.EQUAL]
        counted.append((name, counts.total(), equal, counts.total() - equal, rows[name], str(proof.snapshots[name])))
    yield Table(("table", "slices", "equal", "not equal", "rows published", "snapshot"), counted)
    unequal = [one for one in proof.slices if one.match is not ReplayMatch.EQUAL]
    for one in unequal:
        digests = f"published {one.published}, replayed {one.replayed}{f' ({one.reason})' if one.reason else ''}"
        yield ui.line(ui.styled(one.match.value, "bold red"), f" {one.table} {one.key}: {digests}")
    excluded = f", {proof.excluded} excluded by operators" if proof.excluded else ""
    how = f"{proof.objects:,} objects of {proof.arrivals} arrival days read again{excluded}, in {proof.seconds:,.0f} s"
    result = ui.styled("proven", "bold green") if proof.is_proven else ui.styled("not proven", "bold red")
    summary = "there is nothing to compare"
    if proof.slices:
        what = "slices are not equal" if unequal else "slices are equal"
        summary = f"{f'{len(unequal):,} of' if unequal else 'all'} {len(proof.slices):,} {what}"
    yield ui.line(result, f": {summary} ({proof.first} to {proof.last}; {how})")


def _proof_json(proof: Proof) -> dict[str, Any]:
    place = {"day": "key.event_date", "project": "key.project_id", "verdict": "match"}
    names = ("is_proven", "first", "last", "projects", "proven_at", "seconds", "excluded", "code_versions")
    return {
        **ui.members(proof, *names, arrival_days_replayed="arrivals", objects_read_again="objects"),
        "snapshots": {table: str(snapshot_id) for table, snapshot_id in proof.snapshots.items()},
        "slices": [ui.members(one, "table", "published", "replayed", "reason", **place) for one in proof.slices],
    }


def diff(request: Diff) -> int:
    """Print a difference per project, and write its page if requested."""
    settings = load_settings()
    chosen, day = settings.require_projects(tuple(request.projects)), parse_day(request.day)
    with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
        now = datetime.now(UTC)
        found = [
            differences.compare(runtime, request.table, day, name, now, samples=request.samples) for name in chosen
        ]
    for one in found:
        ui.show(ui.page(), *differences.lines_of(one))
        if request.html is not None:
            ui.show(ui.page(), "", f"  page: {differences.write_page(one, request.html)}")
    return EXIT_OK if all(one.is_equal for one in found) else EXIT_INCOMPLETE


def replay(request: Replay) -> int:
    """Print a replay per project."""
    if request.as_published == request.current:
        raise UsageError("replay", "needs one of --as-published and --current", "Say from which inputs to compute")
    which = request.publication, request.run_id
    if None not in which:
        raise UsageError("replay", "takes one of --publication and --run", "Name the publication by one of them")
    basis = replay_result.ReplayBasis.AS_PUBLISHED if request.as_published else replay_result.ReplayBasis.CURRENT
    settings = load_settings()
    table = replays.derived_table(request.table)
    day = table.kind.slice_day(parse_day(request.day))
    projects = table.kind.projects(settings.require_projects(tuple(request.projects)))
    with own_ledger(settings) as ledger:
        # Fail on a wrong choice before Spark starts.
        records = ledger.publications(table.key, projects, [day])
    chosen = replays.choose(records, table.key, day, projects, *which)
    with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
        done = [replays.replay(runtime, table, one, basis, request.samples) for one in chosen]
    lacking = sorted(set(projects) - {one.key.project_id for one in chosen})
    parts = [part for one in done for part in replay_result.lines_of(one)]
    if which == (None, None):
        parts += [f"{table.key} {day}/{name}: nothing was published" for name in lacking]
    ui.answer(request, [_replay_json(one) for one in done], parts)
    is_whole = not (request.projects and lacking)
    return EXIT_OK if is_whole and all(one.is_equal for one in done) else EXIT_INCOMPLETE


def _replay_json(done: replay_result.Replay) -> dict[str, Any]:
    """Snapshot ids are text, because they exceed the integers that JSON readers hold exactly."""
    names = ("is_standing", "basis", "result", "causes", "notes")
    paths = {"table": "table", "day": "key.event_date", "project": "key.project_id", "publication": "number"}
    paths |= {"run_id": "run_id", "published_at": "published_at", "digest_on_record": "digest_after"}
    inputs = [
        ui.members(one, table="day.table", day="day.day", digest_on_record="recorded", digest_measured="measured")
        | {"reason": one.reason or None, "snapshot_on_record": None if one.pin is None else str(one.pin)}
        | {"read_from_snapshot": None if one.read_from is None else str(one.read_from)}
        for one in done.inputs
    ]
    return {
        **ui.members(done, *names, digest_computed="replayed", differing_inputs="differing"),
        **ui.members(done.publication, **paths),
        "code_on_record": done.code[0],
        "code_of_today": done.code[1],
        "inputs": inputs,
        "settings": {name: {"then": then, "today": now} for name, (then, now) in done.settings.items()},
        "fix": done.hint or None,
        "measures": {name: {"published": then, "computed": now} for name, (then, now) in done.figures.items()},
        "keys": None if done.keys is None else vars(done.keys),
        "shares": [ui.members(one, "cause", measures="figures") | {"keys": vars(one.keys)} for one in done.shares],
    }


def drill(request: Drill) -> int:
    """Print a line per trial, the trials that did not survive, and the verdict."""
    settings = load_settings()
    require_catalog_of_its_own(settings)
    # Exit on SIGTERM, so that a terminated drill removes its data.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INCOMPLETE))
    trials = planned(PROJECT, promise_of(settings), is_full=request.full)
    with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
        results = list(carry_out(runtime.spark, settings, trials, runtime.log))
    is_survived = all(result.is_survived for result in results)
    trials_json = [
        ui.members(one, "is_survived", "conflicts", "faults", event="trial.event", point="trial.point")
        | {"at": one.trial.qualifier or None, "seconds": round(one.seconds, 1)}
        for one in results
    ]
    ui.answer(request, {"is_survived": is_survived, "trials": trials_json}, drilled(results))
    return EXIT_OK if is_survived else EXIT_INCOMPLETE


def drilled(results: Sequence[Result]) -> ui.Parts:
    """A row per trial, the faults of each, and the verdict."""
    rows = []
    for one in results:
        survived = ui.styled("yes", "green") if one.is_survived else ui.styled("no", "bold red")
        trial = one.trial.event.value, one.trial.point.value, one.trial.qualifier or "-"
        rows.append((*trial, one.conflicts, round(one.seconds), survived))
    yield Table(("what happened", "point", "at", "conflicts", "seconds", "survived"), rows)
    for one in results:
        for fault in one.faults:
            yield ui.line(ui.styled(f"{one.trial.event} at {one.trial.armed}", "bold red"), f": {fault}")
    survivors = sum(one.is_survived for one in results)
    minutes = sum(one.seconds for one in results) / 60
    invariants = "same rows as undisturbed loads, no change twice or missing on record, no branch left, each day shown by Dagster"
    style = "bold green" if survivors == len(results) else "bold red"
    yield ui.line(
        ui.styled(f"{survivors} of {len(results)} survived", style), f" in {minutes:.0f} minutes: {invariants}"
    )


_INDENT = " " * 8
_STYLES = {Light.RED: "bold red", Light.YELLOW: "yellow", Light.GREEN: "green"}


def doctor(request: Doctor) -> int:
    """Print each point with its evidence and what to do, then the number of points of each light."""
    settings = load_settings()
    settings.require_projects()
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        landing = lambda: LandingStore.from_settings(settings, S3Resource())  # noqa: E731 - opened where it is needed
        points = list(examine(ledger, settings, landing, datetime.now(UTC)))
        days = _newest_final(ledger, settings) if request.deep else []
    if request.deep:
        points.append(_replayed(settings, days))
    light = worst(point.light for point in points)
    ui.answer(request, {"light": light, "points": [point._asdict() for point in points]}, _told(points))
    return EXIT_INCOMPLETE if light is Light.RED else EXIT_OK


def _told(points: Sequence[Point]) -> ui.Parts:
    for point in points:
        lamp = ui.styled(f"{point.light.value:<8}", _STYLES[point.light])
        yield ui.line(lamp, ui.styled(f"{point.name}: ", "bold"), point.question)
        yield f"{_INDENT}{point.found}"
        if point.fix is not None:
            yield f"{_INDENT}fix: {point.fix}"
    counts = Counter(point.light for point in points)
    yield ", ".join(f"{counts[light]} {light.value}" for light in Light)


def _newest_final(ledger: Ledger, settings: Settings) -> list[date]:
    """The newest final day of refined.events with rows; only one, as a replay costs as much as a load."""
    by_day: dict[date, list[bool]] = {}
    for key, record in ledger.slices(REFINED_EVENTS.key, settings.projects).items():
        if record.digest.rows and record.verdict.is_good:
            by_day.setdefault(key.event_date, []).append(record.is_final)
    return sorted(day for day, are_final in by_day.items() if all(are_final))[-1:]


def _replayed(settings: Settings, days: Sequence[date]) -> Point:
    slices: list[Compared] = []
    if days:
        with ui.terminal() as console, open_runtime(settings, ui.plainly(console)) as runtime:
            slices += prove_range(runtime, days[0], days[-1], settings.projects).slices
    unequal = [one for one in slices if one.match is not ReplayMatch.EQUAL]
    differing = [
        f"{one.table} {one.key} is {one.match.value}" for one in unequal if one.match is not ReplayMatch.UNPROVEN
    ]
    question = "Does a replay from landing give what is published?"
    return Point("recomputed", question, *recomputed(len(slices), differing, len(unequal) - len(differing), days))
