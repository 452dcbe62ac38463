"""`tidemark`: the same jobs and looks from the shell, for scripts and for people who are not in the UI.

Lives here: commands, their options and exit codes. Put here: a new command. Keep out: what a command does beyond calling
the job or the ledger (load.py, standing.py), and how its tables look (cli_tables.py).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from pipeline_assets.cli_tables import day_lines, print_lines, print_status
from pipeline_assets.domain.errors import SettingsError, TidemarkError, UsageError
from pipeline_assets.domain.settings import PROJECT_ROOT, Settings, load_settings
from pipeline_assets.domain.slices import Source
from resources.crash_points import CrashPoint, crash_point
from resources.ledger import Ledger

app = typer.Typer(
    name="tidemark", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="An event pipeline that can recover: load, look, and know where every day stands.",
)  # fmt: skip

LOG_NAME = "tidemark-load.log"
EXIT_OK, EXIT_NOT_STANDING, EXIT_USAGE = 0, 1, 2

SourceOption = Annotated[Source, typer.Option("--source", help="Which exports to load.")]
FromOption = Annotated[str, typer.Option("--from", help="First day, YYYY-MM-DD.")]
ToOption = Annotated[str, typer.Option("--to", help="Last day, YYYY-MM-DD.")]
ProjectOption = Annotated[list[str] | None, typer.Option("--project", help="Only this project; may be repeated.")]
AcceptChangesOption = Annotated[
    str | None,
    typer.Option("--accept-changes", metavar="REASON", help="Let refined days change beyond bounds, for this reason."),
]
AcceptMissingOption = Annotated[
    str | None,
    typer.Option("--accept-missing", metavar="REASON", help="Let go what landing lost and raw holds, for this reason."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show logs and stack traces.")]


@app.callback()
def _root() -> None:
    """Group the commands, so that one command alone keeps its name."""


@app.command()
def load(
    source: SourceOption,
    first: FromOption,
    last: ToOption,
    project: ProjectOption = None,
    accept_changes: AcceptChangesOption = None,
    accept_missing: AcceptMissingOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the load job of a source over a range of days, in this process.

    Exits 0 when every requested day stands published or unchanged, 1 when one stands refused, waiting or held, 2 on
    bad usage.
    """
    reasons = {"--accept-changes": accept_changes, "--accept-missing": accept_missing}
    _run(lambda: _load(source, first, last, tuple(project or ()), reasons, as_json, verbose), verbose)


@app.command()
def status(
    first: Annotated[str | None, typer.Option("--from", help="First day; default two weeks ago.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day; default today.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show where days stand: one row per day, one column per table."""
    _run(lambda: _status(first, last, as_json), verbose)


@app.command()
def explain(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The insert_id or uuid of an event.")],
    project: ProjectOption = None,
    first: Annotated[str | None, typer.Option("--from", help="First event day; default all.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last event day; default all.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show where a row came from: every delivery of an event, which one won and why, and where it was published.

    Writes nothing. Exits 0 when something was found, 1 when nothing was, 2 on bad usage.
    """
    _run(lambda: _explain(identifier, tuple(project or ()), first, last, as_json, verbose), verbose)


def main() -> None:
    """Entry point of the `tidemark` script."""
    app()


def _page() -> Console:
    """Standard output; a pipe gets the width that tables need."""
    return Console(width=None if sys.stdout.isatty() else 200, soft_wrap=sys.stdout.isatty())


def _run(command: Callable[[], int], verbose: bool) -> NoReturn:
    error_console = Console(stderr=True, soft_wrap=True)
    try:
        code = command()
    except (UsageError, SettingsError) as error:
        _print_error(error_console, error, verbose)
        code = EXIT_USAGE
    except TidemarkError as error:
        _print_error(error_console, error, verbose)
        code = EXIT_NOT_STANDING
    raise typer.Exit(code)


def _print_error(console: Console, error: TidemarkError, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    console.print(f"[bold red]{error.subject}[/]: {error.reason}", highlight=False)
    console.print(f"  cure: {error.cure}", highlight=False)


def _load(
    source: Source,
    first: str,
    last: str,
    projects: tuple[str, ...],
    reasons: Mapping[str, str | None],
    as_json: bool,
    verbose: bool,
) -> int:
    from pipeline_assets.jobs import JOB_OF_SOURCE  # noqa: PLC0415 - `status` and `--help` start without Dagster
    from pipeline_assets.partitions import chunks, requested_range  # noqa: PLC0415

    settings = load_settings()
    days = requested_range(first, last, settings)
    chosen = settings.require_projects(projects)
    for option, reason in reasons.items():
        if reason is not None and not reason.strip():
            raise UsageError(option, "needs a reason", "Say why it is right; it stays on record")
    failures: list[str] = []
    with _terminal(verbose=verbose) as console:
        for chunk in chunks(days, settings.days_per_run):
            logger = _console_logger(console, verbose=verbose)
            accepted = _accepted(source, chunk, reasons)
            failures += _run_job(settings, JOB_OF_SOURCE[source], chunk, projects, accepted, logger)
            crash_point(CrashPoint.BETWEEN_CHUNKS)
        for failure in failures:
            console.print(f"[bold red]{failure}[/]", highlight=False)
        if failures and not verbose:
            console.print(f"  details: {_dagster_home() / LOG_NAME}, or run again with --verbose", highlight=False)
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        lines = day_lines(ledger, chosen, days, sources=(source,))
    if as_json:
        sys.stdout.write(json.dumps([line.to_json() for line in lines], indent=2) + "\n")
    else:
        print_lines(_page(), lines)
    is_standing = all(line.verdict is not None and line.verdict.is_good for line in lines)
    return EXIT_OK if is_standing and not failures else EXIT_NOT_STANDING


def _accepted(source: Source, days: tuple[date, ...], reasons: Mapping[str, str | None]) -> dict[str, str]:
    """`table:day` -> reason: what landing lost is let go in raw alone, and changes are let through below it alone."""
    from pipeline_assets.tables.raw_events import RAW_TABLES  # noqa: PLC0415
    from pipeline_assets.tables.registry import DERIVED  # noqa: PLC0415

    tables = {"--accept-missing": (RAW_TABLES[source],), "--accept-changes": DERIVED}
    return {
        f"{table.key}:{day.isoformat()}": reason
        for option, reason in reasons.items()
        if reason is not None
        for table in tables[option]
        for day in days
    }


def _run_job(
    settings: Settings,
    job_name: str,
    days: tuple[date, ...],
    projects: tuple[str, ...],
    accepted: Mapping[str, str],
    logger: Any,
) -> list[str]:
    """Run one chunk; returns what went wrong beyond the verdicts that the ledger tells."""
    import dagster as dg  # noqa: PLC0415 - slow to import, needed by this command only

    from pipeline_assets.definitions import build_defs  # noqa: PLC0415

    job = build_defs(settings, loggers={"console": logger}).resolve_job_def(job_name)
    tags = {
        "dagster/asset_partition_range_start": days[0].isoformat(),
        "dagster/asset_partition_range_end": days[-1].isoformat(),
    }
    with _instance() as instance:
        result = job.execute_in_process(
            run_config={
                "ops": {"load": {"config": {"projects": list(projects), "accept_changes": dict(accepted)}}},
                "loggers": {"console": {}},
            },
            tags=tags, instance=instance, raise_on_error=False,
        )  # fmt: skip
        return [] if result.success else _unexpected(result, dg)


def _unexpected(result: Any, dg: Any) -> list[str]:
    """Failures that are no verdict: everything but the op's own Failure at its end."""
    found = []
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.STEP_FAILURE:
            data = event.event_specific_data
            if data.user_failure_data is not None and "reasons" in data.user_failure_data.metadata:
                continue
            error = data.error.cause or data.error
            label = data.user_failure_data.description if data.user_failure_data is not None else None
            found.append(label or str(error.message).strip())
    return found


def _instance() -> Any:
    import dagster as dg  # noqa: PLC0415

    _dagster_home()
    return dg.DagsterInstance.get()


def _dagster_home() -> Path:
    """DAGSTER_HOME; without one, the folder that `make dev` uses, so that the UI shows these runs."""
    if not os.environ.get("DAGSTER_HOME"):
        home = Path.cwd() / "data" / "dagster_home"
        home.mkdir(parents=True, exist_ok=True)
        os.environ["DAGSTER_HOME"] = str(home)
    home = Path(os.environ["DAGSTER_HOME"])
    if not home.is_dir():
        raise UsageError("DAGSTER_HOME", f"there is no folder {home}", "Create it, or unset the variable")
    if not (home / "dagster.yaml").exists() and (PROJECT_ROOT / "dagster.yaml").exists():
        shutil.copy(PROJECT_ROOT / "dagster.yaml", home / "dagster.yaml")
    return home


@contextmanager
def _terminal(*, verbose: bool) -> Iterator[Console]:
    """A console on standard error; Spark's and Dagster's own lines go to a log file unless --verbose."""
    if verbose:
        yield Console(stderr=True, soft_wrap=True)
        return
    warnings.simplefilter("ignore")
    home = _dagster_home()
    sys.stderr.flush()
    kept = os.dup(2)
    with (home / LOG_NAME).open("a", encoding="utf-8") as log, os.fdopen(kept, "w", encoding="utf-8") as terminal:
        # The JVM inherits the descriptor, so it has to be the descriptor that is moved.
        os.dup2(log.fileno(), 2)
        try:
            yield Console(file=terminal, soft_wrap=True)
        finally:
            sys.stderr.flush()
            terminal.flush()
            os.dup2(kept, 2)


def _console_logger(console: Console, *, verbose: bool) -> Any:
    """Dagster's console logger: what the load says, and with --verbose everything Dagster says."""
    import dagster as dg  # noqa: PLC0415

    def progress(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("tidemark", logging.INFO)
        logger.addHandler(_Handler(console))
        return logger

    return dg.colored_console_logger if verbose else dg.LoggerDefinition(progress)


class _Handler(logging.Handler):
    """Prints what the load says; Dagster's own events are for --verbose."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        meta = getattr(record, "dagster_meta", None) or {}
        if meta.get("orig_message") and not meta.get("dagster_event"):
            self._console.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/] {meta['orig_message']}", highlight=False)


def _status(first: str | None, last: str | None, as_json: bool) -> int:
    from pipeline_assets.partitions import days_between, parse_day  # noqa: PLC0415

    settings = load_settings()
    projects = settings.require_projects()
    end = parse_day(last) if last else datetime.now(UTC).date()
    start = parse_day(first) if first else end - timedelta(days=13)
    if end < start:
        raise UsageError(f"--from {start} --to {end}", "the range ends before it begins", "Swap the two days")
    with closing(Ledger(settings.ledger_database_url)) as ledger:
        lines = day_lines(ledger, projects, days_between(start, end), sources=tuple(Source))
    if as_json:
        sys.stdout.write(json.dumps([line.to_json() for line in lines], indent=2) + "\n")
    else:
        print_status(_page(), lines)
    return EXIT_OK


def _explain(
    identifier: str, projects: tuple[str, ...], first: str | None, last: str | None, as_json: bool, verbose: bool
) -> int:
    from pipeline_assets.cli_explain import print_explanation, to_json, workbench  # noqa: PLC0415 - slow to import
    from pipeline_assets.load_path.explain.explain import explain as explain_event  # noqa: PLC0415
    from pipeline_assets.partitions import parse_day  # noqa: PLC0415

    settings = load_settings()
    start, end = (parse_day(day) if day else None for day in (first, last))
    with (
        _terminal(verbose=verbose) as console,
        workbench(settings, lambda text: console.print(f"[dim]{text}[/]", highlight=False)) as bench,
    ):
        explanation = explain_event(bench, identifier, projects=projects, first=start, last=end)
    if as_json:
        sys.stdout.write(json.dumps(to_json(explanation), indent=2) + "\n")
    else:
        print_explanation(_page(), explanation)
    return EXIT_OK if explanation.is_found else EXIT_NOT_STANDING


if __name__ == "__main__":
    main()
