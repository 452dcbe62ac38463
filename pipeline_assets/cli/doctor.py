"""`tidemark doctor`: the checklist of whether a deployment can recover, each point with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from typing import Annotated

import typer
from rich.console import Console

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK, JsonOption, VerboseOption
from pipeline_assets.cli.terminal import line, page, plainly, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.doctor.rules import Light, Point, worst
from pipeline_assets.domain.settings import Settings
from resources.ledger.store import Ledger

_INDENT = " " * 8
_STYLES = {Light.RED: "bold red", Light.YELLOW: "yellow", Light.GREEN: "green"}


def doctor(
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also replay the newest final day from landing, with Spark, and compare."),
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Go through the checklist before trusting this deployment to recover: each point tested, with its evidence and what to do.

    Changes nothing and starts no Spark unless --deep. Exits 0 when no point is red, 1 when one is, 2 on bad usage.
    """
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - `status` starts without Dagster

    from pipeline_assets.doctor.examine import examine  # noqa: PLC0415 - other commands start without it
    from resources.landing.store import LandingStore  # noqa: PLC0415 - other commands start without it

    settings = load_settings()
    settings.require_projects()
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        landing = lambda: LandingStore.from_settings(settings, S3Resource())  # noqa: E731 - opened where it is needed
        points = list(examine(ledger, settings, landing, datetime.now(UTC)))
        days = _newest_final(ledger, settings) if deep else []
    if deep:
        points.append(_replayed(settings, days, verbose))
    light = worst(point.light for point in points)
    if as_json:
        write_json({"light": light.value, "points": [point._asdict() for point in points]})
    else:
        print_points(page(), points)
    return EXIT_INCOMPLETE if light is Light.RED else EXIT_OK


def print_points(console: Console, points: Sequence[Point]) -> None:
    """Print each point with its evidence and what to do, then the number of points of each light."""
    for point in points:
        lamp = styled(f"{point.light.value:<8}", _STYLES[point.light])
        console.print(line(lamp, styled(f"{point.name}: ", "bold"), point.question))
        console.print(f"{_INDENT}{point.found}", soft_wrap=True)
        if point.fix is not None:
            console.print(f"{_INDENT}fix: {point.fix}", soft_wrap=True)
    counts = Counter(point.light for point in points)
    console.print(", ".join(f"{counts[light]} {light.value}" for light in Light))


def _newest_final(ledger: Ledger, settings: Settings) -> list[date]:
    """The newest day of refined.events with rows, final in all its projects; only one, as a replay costs as much as a load."""
    from pipeline_assets.tables.refined_events import REFINED_EVENTS  # noqa: PLC0415 - other commands start without it

    by_day: dict[date, list[bool]] = {}
    for key, record in ledger.slices(REFINED_EVENTS.key, settings.projects).items():
        if record.digest.rows and record.verdict.is_good:
            by_day.setdefault(key.event_date, []).append(record.is_final)
    return sorted(day for day, are_final in by_day.items() if all(are_final))[-1:]


def _replayed(settings: Settings, days: Sequence[date], verbose: bool) -> Point:
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.cli.verify import prove_range  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.doctor.rules import recomputed  # noqa: PLC0415 - other commands start without it
    from pipeline_assets.inspection.verify import Compared, ReplayMatch  # noqa: PLC0415 - `status` starts without Spark

    slices: list[Compared] = []
    if days:
        with terminal(verbose=verbose) as console, open_runtime(settings, plainly(console)) as runtime:
            slices += prove_range(runtime, days[0], days[-1], settings.projects).slices
    unequal = [one for one in slices if one.match is not ReplayMatch.EQUAL]
    differing = [
        f"{one.table} {one.key} is {one.match.value}" for one in unequal if one.match is not ReplayMatch.UNPROVEN
    ]
    answer = recomputed(len(slices), differing, len(unequal) - len(differing), days)
    return Point("recomputed", "Does a replay from landing give what is published?", *answer)
