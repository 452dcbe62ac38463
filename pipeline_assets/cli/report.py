"""Commands that inform others: the health page, figures for Prometheus, notices, advice on the reprocessing window."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime
from typing import Any

from pipeline_assets.cli import terminal as ui
from pipeline_assets.cli.app import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.config import dagster_home, load_settings
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.lateness import RELATIVE_ERROR, percent, seconds_text
from pipeline_assets.domain.places import METRICS_SUFFIX
from pipeline_assets.domain.requests import Metrics, Notify, Report, Table, Window
from pipeline_assets.inspection.health import read_health
from pipeline_assets.inspection.metrics import read_samples, samples_of_nothing, text_of, write_textfile
from pipeline_assets.inspection.questions import receiver_troubles
from pipeline_assets.inspection.window import PERCENTILES, WindowReport, read_window
from resources.ledger.store import own_ledger

_MiB = 1024**2


def report(request: Report) -> int:
    """Write the health page."""
    from pipeline_assets.orchestration.health_page import write_page  # noqa: PLC0415 - `metrics` starts without Dagster

    settings = load_settings()
    with own_ledger(settings) as ledger:
        health = read_health(ledger, settings, datetime.now(UTC))
    waiting = f"{health.waiting} questions wait for an operator" if health.waiting else "nothing waits for an operator"
    ui.show(ui.page(), f"page: {write_page(health, request.out)}", waiting)
    return EXIT_OK


def metrics(request: Metrics) -> int:
    """Print or write the figures, also where the ledger is out of reach."""
    output = request.output
    if output is not None and output.suffix != METRICS_SUFFIX:
        hint = "node_exporter reads no other files; rename it"
        raise UsageError(str(output), f"does not end in {METRICS_SUFFIX}", hint)
    settings, now = load_settings(), datetime.now(UTC)
    settings.require_projects()
    failure: TidemarkError | None = None
    try:
        with own_ledger(settings) as ledger:
            samples = read_samples(ledger, settings, now, _queue())
    except (UsageError, SettingsError):
        raise
    except TidemarkError as error:
        # Monitoring then sees the outage of the ledger instead of old figures.
        samples, failure = samples_of_nothing(now), error
    if output is None:
        sys.stdout.write(text_of(samples))
    else:
        write_textfile(text_of(samples), output)
    if failure is not None:
        raise failure
    return EXIT_OK


def _queue() -> dict[str, int] | None:
    import dagster as dg  # noqa: PLC0415 - `window` starts without Dagster

    from pipeline_assets.orchestration.live_runs import run_queue  # noqa: PLC0415 - as above

    try:
        dagster_home()
        with dg.DagsterInstance.get() as instance:
            return run_queue(instance)
    except Exception:
        # DAGSTER_HOME or its storage is unusable; reported as tidemark_dagster_up 0.
        return None


def notify(request: Notify) -> int:
    """Send waiting notices."""
    from pipeline_assets.operations.notices import send_notices  # noqa: PLC0415 - others start without an HTTP client

    settings = load_settings()
    if not settings.notify_urls:
        hint = "Set it to the addresses of webhooks, a comma list"
        raise SettingsError("TIDEMARK_NOTIFY_URLS", "names nobody to tell", hint)
    with own_ledger(settings) as ledger:
        sent = send_notices(ledger, settings, is_again=request.again)
        troubles = receiver_troubles(ledger, settings)
    ui.show(ui.page(), *sent, *troubles)
    # Unsigned notices are sent all the same: that trouble has no command.
    is_complete = not (any(one.left for one in sent) or any(one.command for one in troubles))
    if not sent and is_complete:
        ui.show(ui.page(), "everybody was told of everything")
    return EXIT_OK if is_complete else EXIT_INCOMPLETE


def window(request: Window) -> int:
    """Print the lateness of rows, what each window would catch and cost, and the recommendation."""
    settings = load_settings()
    chosen = settings.require_projects(tuple(request.projects))
    start, end = request.bounds()
    today = datetime.now(UTC).date()
    with own_ledger(settings) as ledger:
        found = read_window(ledger, settings, request.source, chosen, today, first=start, last=end)
    ui.answer(request, _window_json(found), _window(found))
    return EXIT_INCOMPLETE if found.is_too_narrow else EXIT_OK


def _window_json(found: WindowReport) -> dict[str, Any]:
    set_days = found.settings.reprocessing_window_days
    paths = {"rows": "late.rows", "arrival_days": "late.arrival_days", "early_rows": "times.early_rows"}
    paths |= {"recommended_days": "advice.days", "reason": "advice.reason"}
    return {
        **ui.members(found, "source", "reason", "is_too_narrow", "out_of_reach", recommended_days="recommended"),
        **ui.members(found, tolerated_missed_share="settings.tolerated_missed_share", to="last"),
        "from": found.first,
        "set_days": set_days,
        "relative_error_of_seconds": RELATIVE_ERROR,
        "projects": [
            ui.members(one, "measured_days", "seconds", **paths)
            | {"project": one.project or None, "caught_by_set_window": one.late.caught_within(set_days)}
            for one in found.of_projects
        ],
        "windows": [vars(reach) for reach in found.reaches],
    }


def _window(found: WindowReport) -> ui.Parts:
    arrived = f"{found.source.value} deliveries that arrived {found.first} to {found.last}"
    if not found.all.late.rows:
        yield f"no rows of {arrived} are on record"
        return
    yield ui.styled(arrived, "dim")
    rows: list[tuple[object, ...]] = []
    for one in found.of_projects if len(found.of_projects) != 2 else found.of_projects[1:]:
        enough = f"{one.advice.days} d" if one.advice.days is not None else "?"
        counts, times = (one.late.arrival_days, one.late.rows), map(seconds_text, one.seconds.values())
        rows.append((one.project or "all", *counts, *times, one.times.early_rows, enough))
    yield Table(("project", "days", "rows", *PERCENTILES, "early", "enough"), rows)
    yield ui.styled(f"times from event to arrival, at most {100 * RELATIVE_ERROR:g} % off; days are exact", "dim")
    lacking = found.all.late.arrival_days - found.all.measured_days
    yield f"of {lacking} days no times are on record: an older version loaded them" if lacking > 0 else None
    yield ""
    settings, set_days = found.settings, found.settings.reprocessing_window_days
    rows = []
    for reach in found.reaches:
        marks = [word for word, days in (("set", set_days), ("enough", found.recommended)) if days == reach.days]
        caught = "100 %" if reach.caught == 1 else f"{min(100 * reach.caught, 99.9999):.6g} %"
        cost = reach.arrival_days, reach.objects, reach.slices, reach.rows, f"{reach.size_bytes / _MiB:,.1f}"
        final = f"{reach.final_after_hours} h", ui.styled(", ".join(marks), "bold")
        rows.append((f"{reach.days} d", caught, f"{reach.missed_a_day:,.1f}", *cost, *final))
    headings = ("window", "caught", "missed rows a day", "arrival days", "objects", "slices", "rows", "MiB")
    yield Table((*headings, "final after", ""), rows)
    told = "arrival days, objects, slices: what the load of one day looks at. rows, MiB: what it reads again where all of these "
    yield ui.styled(f"{told}objects came anew", "dim")
    kinds = {"rows_before_calendar": "before the calendar's first day", "rows_in_future": "of days after their arrival"}
    out = ", ".join(f"{rows:,} {kinds[kind]}" for kind, rows in found.out_of_reach.items() if rows)
    yield f"rows that are loaded and counted, but lie out of reach: {out}" if out else None
    if found.recommended is None:
        yield f"no window is recommended: {found.reason}"
        return
    verdict = ui.styled("too narrow", "bold red") if found.is_too_narrow else ui.styled("wide enough", "green")
    yield ui.line(f"reprocessing_window_days = {set_days} is ", verdict)
    yield f"  {found.recommended} days are enough to miss no more than {percent(settings.tolerated_missed_share)}: {found.reason}"
    if found.is_too_narrow:
        yield f"  fix: set TIDEMARK_REPROCESSING_WINDOW_DAYS={found.recommended}; days stay provisional as much longer"
        share = max(1 - one.late.caught_within(set_days) for one in found.of_projects)
        missed = math.ceil(10_000 * share) / 10_000
        yield f"  or:  set TIDEMARK_TOLERATED_MISSED_SHARE={missed:g}; later rows are loaded all the same, into a final day"
