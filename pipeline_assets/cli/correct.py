"""Commands that correct published data: exclude and include deliveries, roll days back and release them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    AcceptChangesOption,
    FromOption,
    ProjectOption,
    ToOption,
    VerboseOption,
    exit_code,
    print_failures,
    require_reasons,
)
from pipeline_assets.cli.render_tables import (
    print_held,
    print_restores,
    print_statuses,
)
from pipeline_assets.cli.terminal import page, plainly, terminal
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.slices import Source
from pipeline_assets.inspection.status import recorded_statuses
from resources.ledger.store import own_ledger

KeysArgument = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys of objects, as landing names them.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it stays on record.")]


def exclude(
    keys: KeysArgument,
    reason: ReasonOption,
    accept_changes: AcceptChangesOption = None,
    even_if_gone: Annotated[
        bool, typer.Option("--even-if-gone", help="Exclude also what landing no longer holds, which is lost for good.")
    ] = False,
    verbose: VerboseOption = False,
) -> int:
    """Exclude deliveries, and load the days they arrived on without them. `include` reverses it.

    Exits 0 when every touched day is good without them, 1 when one is refused, waiting or held, 2 on bad usage.
    """
    return _decide("exclude", keys, reason, accept_changes, even_if_gone, verbose)


def include(
    keys: KeysArgument,
    reason: ReasonOption,
    accept_changes: AcceptChangesOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Let excluded deliveries count again, and load the days they arrived on with them.

    Exits 0 when every touched day is good with them, 1 when one is refused, waiting or held, 2 on bad usage.
    """
    return _decide("lift", keys, reason, accept_changes, False, verbose)


TableOption = Annotated[
    list[str] | None, typer.Option("--table", help="Only this table, such as refined/events; may be repeated.")
]


def rollback(
    first: FromOption,
    last: ToOption,
    back_to: Annotated[
        str,
        typer.Option(
            "--back-to", metavar="TIME|NUMBER", help="The state at this time (UTC), or after this publication's run."
        ),
    ],
    reason: ReasonOption,
    table: TableOption = None,
    project: ProjectOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    verbose: VerboseOption = False,
) -> int:
    """Restore an earlier state of published days (refined, aggregates), by metadata alone, and hold it. `release` reverses it.

    Exits 0 when every slice was rolled back or held, 1 when it could not be, 2 on bad usage.
    """
    from pipeline_assets.cli.run import open_runtime, run_operation  # noqa: PLC0415 - `status` starts without Dagster
    from pipeline_assets.operations.rollback import plan  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.orchestration.rollback_jobs import ROLLBACK_JOB, ROLLBACK_OP, RollbackConfig, rollback_request  # noqa: PLC0415 - `status` starts without Dagster
    from resources.iceberg.lake_identity import Purpose  # noqa: PLC0415 - `status` starts without Iceberg

    chosen = {"tables": list(table or ()), "projects": list(project or ())}
    config: dict[str, Any] = {"first": first, "last": last, "reason": reason, "back_to": back_to, **chosen}
    settings = load_settings()
    require_reasons({"--reason": reason})
    request = rollback_request(RollbackConfig(**config), settings, "preview")
    with (
        terminal(verbose=verbose) as console,
        # The plan records what it finds in the tables.
        open_runtime(settings, plainly(console), Purpose.KEEP) as runtime,
    ):
        restores = plan(runtime, request, is_preview=True)
        if not dry_run:
            failures = run_operation(settings, ROLLBACK_JOB, ROLLBACK_OP, config, console, verbose=verbose)
            print_failures(console, failures, verbose)
            if failures:
                return EXIT_INCOMPLETE
    print_restores(page(), restores)
    return EXIT_OK


def release(
    first: FromOption,
    last: ToOption,
    reason: ReasonOption,
    table: TableOption = None,
    project: ProjectOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Release without asking; needed where no terminal can ask.")
    ] = False,
    accept_changes: AcceptChangesOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Show what becomes of held days, release them once you confirm, and build those that are stale.

    Exits 0 when every released day is good, 1 when one is not or nothing was released, 2 on bad usage.
    """
    from pipeline_assets.cli.run import run_release  # noqa: PLC0415 - `status` starts without Dagster
    from pipeline_assets.operations.release import preview  # noqa: PLC0415 - `status` starts without Spark

    chosen = {"tables": list(table or ()), "projects": list(project or ())}
    config: dict[str, Any] = {"first": first, "last": last, "reason": reason, **chosen}
    settings = load_settings()
    require_reasons({"--reason": reason, "--accept-changes": accept_changes})
    projects = settings.require_projects(tuple(chosen["projects"]))
    days = parse_day(first), parse_day(last)
    with own_ledger(settings) as ledger:
        held = preview(ledger, settings, chosen["tables"], projects, *days, datetime.now(UTC), is_load_next=True)
    print_held(page(), held)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Release them?")):
        page().print("Nothing was released; repeat the command with --yes to release them.")
        return EXIT_INCOMPLETE
    with terminal(verbose=verbose) as console:
        failures = run_release(settings, config, held, console, accept_changes=accept_changes, verbose=verbose)
        print_failures(console, failures, verbose)
    with own_ledger(settings) as ledger:
        statuses = recorded_statuses(ledger, {hold.key for hold in held}, sources=())
    print_statuses(page(), statuses)
    return exit_code(statuses, failures)


def _decide(
    verb: str, keys: list[str], reason: str, accept_changes: str | None, even_if_gone: bool, verbose: bool
) -> int:
    from pipeline_assets.cli.run import decide  # noqa: PLC0415 - `status` starts without Dagster
    from pipeline_assets.operations.exclude import touched_slices  # noqa: PLC0415 - `status` starts without Spark

    settings = load_settings()
    settings.require_projects()
    require_reasons({"--reason": reason, "--accept-changes": accept_changes})
    with terminal(verbose=verbose) as console:
        failures = decide(
            settings,
            verb,
            keys,
            reason,
            console,
            accept_changes=accept_changes,
            even_if_gone=even_if_gone,
            verbose=verbose,
        )
        print_failures(console, failures, verbose)
    with own_ledger(settings) as ledger:
        touched = touched_slices(ledger, settings, keys)
        statuses = recorded_statuses(ledger, touched, sources=tuple(Source))
    print_statuses(page(), statuses)
    return exit_code(statuses, failures)
