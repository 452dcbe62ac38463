"""`tidemark doctor`: the checklist of whether a deployment can recover, each point with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime

from dagster_aws.s3 import S3Resource
from rich.text import Text

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.terminal import line, page, plainly, show, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.doctor.examine import examine
from pipeline_assets.doctor.rules import Light, Point, recomputed, worst
from pipeline_assets.domain.requests import Doctor
from pipeline_assets.domain.settings import Settings
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from resources.landing.store import LandingStore
from resources.ledger.store import Ledger

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
    if request.as_json:
        write_json({"light": light.value, "points": [point._asdict() for point in points]})
    else:
        show(page(), *_told(points))
    return EXIT_INCOMPLETE if light is Light.RED else EXIT_OK


def _told(points: Sequence[Point]) -> Iterator[Text | str]:
    for point in points:
        lamp = styled(f"{point.light.value:<8}", _STYLES[point.light])
        yield line(lamp, styled(f"{point.name}: ", "bold"), point.question)
        yield f"{_INDENT}{point.found}"
        if point.fix is not None:
            yield f"{_INDENT}fix: {point.fix}"
    counts = Counter(point.light for point in points)
    yield ", ".join(f"{counts[light]} {light.value}" for light in Light)


def _newest_final(ledger: Ledger, settings: Settings) -> list[date]:
    """The newest day of refined.events with rows, final in all its projects; only one, as a replay costs as much as a load."""
    by_day: dict[date, list[bool]] = {}
    for key, record in ledger.slices(REFINED_EVENTS.key, settings.projects).items():
        if record.digest.rows and record.verdict.is_good:
            by_day.setdefault(key.event_date, []).append(record.is_final)
    return sorted(day for day, are_final in by_day.items() if all(are_final))[-1:]


def _replayed(settings: Settings, days: Sequence[date]) -> Point:
    from pipeline_assets.cli.prove import prove_range  # noqa: PLC0415 - the other points are examined without Spark
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - as above
    from pipeline_assets.inspection.verify import Compared, ReplayMatch  # noqa: PLC0415 - as above

    slices: list[Compared] = []
    if days:
        with terminal() as console, open_runtime(settings, plainly(console)) as runtime:
            slices += prove_range(runtime, days[0], days[-1], settings.projects).slices
    unequal = [one for one in slices if one.match is not ReplayMatch.EQUAL]
    differing = [
        f"{one.table} {one.key} is {one.match.value}" for one in unequal if one.match is not ReplayMatch.UNPROVEN
    ]
    answer = recomputed(len(slices), differing, len(unequal) - len(differing), days)
    return Point("recomputed", "Does a replay from landing give what is published?", *answer)
