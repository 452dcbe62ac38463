"""Commands that read what is published and verify it: exclusions, history, diff, verify, drill."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    FromOption,
    JsonOption,
    ProjectOption,
    ToOption,
    VerboseOption,
)
from pipeline_assets.cli.render_tables import print_exclusions, print_publications
from pipeline_assets.cli.terminal import page, plainly, print_lines_of, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import ALL_PROJECTS
from pipeline_assets.tables.registry import EVERY_TABLE, table_by_key
from resources.ledger.store import own_ledger
from resources.publishing import promise_of

TABLE_KEYS = tuple(table.key for table in EVERY_TABLE)


def exclusions(as_json: JsonOption = False) -> int:
    """List excluded deliveries with their reasons, and those that were included again."""
    settings = load_settings()
    with own_ledger(settings) as ledger:
        excluded = ledger.interventions.all_exclusions([*settings.require_projects(), ALL_PROJECTS])
    if as_json:
        names = ("object_key", "etag", "reason", "excluded_at", "lift_reason", "lifted_at")
        write_json([{name: getattr(exclusion, name) for name in names} for exclusion in excluded])
    else:
        print_exclusions(page(), excluded)
    return EXIT_OK


def history(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Such as refined/events.")],
    day: Annotated[str | None, typer.Argument(metavar="DAY", help="Only this day, YYYY-MM-DD.")] = None,
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> int:
    """List every change of a table on record, oldest first: rows before and after, cause, reason, run."""
    settings = load_settings()
    chosen = settings.require_projects(tuple(project or ()))
    if table not in TABLE_KEYS:
        raise UsageError(table, "is not a table", f"There are {', '.join(TABLE_KEYS)}")
    wanted, owners = parse_day(day) if day else None, table_by_key(table).kind.projects(chosen)
    with own_ledger(settings) as ledger:
        records = [
            record
            for record in ledger.publications(table)
            if record.key.project_id in owners and wanted in (None, record.key.event_date)
        ]
    if as_json:
        write_json([_publication_json(record) for record in records])
    else:
        print_publications(page(), records)
    return EXIT_OK


def verify(
    first: FromOption,
    last: ToOption,
    project: ProjectOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Replay days from landing into scratch tables, in another order and split, and compare every slice with what is published.

    Exits 0 when every slice is equal, 1 when one is not, 2 on bad usage. Writes nothing that stays.
    """
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.cli.verify import print_proof, proof_json, prove_range  # noqa: PLC0415 - `status` starts without Spark

    settings = load_settings()
    chosen = settings.require_projects(tuple(project or ()))
    start, end = parse_day(first), parse_day(last)
    if end < start:
        raise UsageError(f"--from {first} --to {last}", "the range ends before it begins", "Swap the two days")
    with (
        terminal(verbose=verbose) as console,
        open_runtime(settings, plainly(console)) as runtime,
    ):
        proof = prove_range(runtime, start, end, chosen)
    if as_json:
        write_json(proof_json(proof))
    else:
        print_proof(page(), proof)
    return EXIT_OK if proof.is_proven else EXIT_INCOMPLETE


def diff(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Such as refined/events.")],
    day: Annotated[str, typer.Argument(metavar="DAY", help="YYYY-MM-DD.")],
    project: ProjectOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page per project into this folder as well.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Show about so many keys with their values.")] = 20,
    verbose: VerboseOption = False,
) -> int:
    """Show what a load would make of a day, refused or not yet loaded, beside what is published; publishes nothing.

    Exits 0 when both are equal, 1 when they differ, 2 on bad usage.
    """
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.inspection.diff import (  # noqa: PLC0415 - as above
        compare,
        lines_of,
        write_page,
    )

    settings = load_settings()
    chosen, wanted = settings.require_projects(tuple(project or ())), parse_day(day)
    with (
        terminal(verbose=verbose) as console,
        open_runtime(settings, plainly(console)) as runtime,
    ):
        now = datetime.now(UTC)
        differences = [compare(runtime, table, wanted, name, now, samples=samples) for name in chosen]
    for difference in differences:
        print_lines_of(page(), lines_of(difference))
        if html is not None:
            print_lines_of(page(), ["", f"  page: {write_page(difference, html)}"])
    return EXIT_OK if all(difference.is_equal for difference in differences) else EXIT_INCOMPLETE


def drill(
    full: Annotated[
        bool, typer.Option("--full", help="Every point x table x way of starting again; else every point once.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Kill loads of sample data and let others overtake them, on this deployment's catalog, storage and engine.

    It works under names of its own, which are removed afterwards. Exits 0 when all survived, else 1.
    """
    from pipeline_assets.cli.render_drill import drill_json, print_drill  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.drill.drill import PROJECT, carry_out  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.drill.sandbox import require_catalog_of_its_own  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.drill.scenarios import planned  # noqa: PLC0415 - `status` starts without Spark

    settings = load_settings()
    require_catalog_of_its_own(settings)
    # Turn SIGTERM into an exit, so that a terminated drill removes its data as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INCOMPLETE))
    with (
        terminal(verbose=verbose) as console,
        open_runtime(settings, plainly(console)) as runtime,
    ):
        results = list(
            carry_out(runtime.spark, settings, planned(PROJECT, promise_of(settings), is_full=full), runtime.log)
        )
    if as_json:
        write_json(drill_json(results))
    else:
        print_drill(page(), results)
    return EXIT_OK if all(result.is_survived for result in results) else EXIT_INCOMPLETE


def _publication_json(record: PublicationRecord) -> dict[str, Any]:
    names = ("number", "table", "published_at", "accepted_reason", "run_id", "code_version")
    place = {"day": record.key.event_date.isoformat(), "project": record.key.project_id}
    rows = {"rows_before": record.digest_before.rows, "rows_after": record.digest_after.rows}
    digests = {"digest_before": str(record.digest_before), "digest_after": str(record.digest_after)}
    # As text, because snapshot ids exceed the integers that JSON readers hold exactly.
    return (
        {name: getattr(record, name) for name in names}
        | place
        | rows
        | digests
        | {"cause": record.cause.text, "snapshot_id": str(record.snapshot_id)}
        | {"pins": {name: str(pin) for name, pin in (record.pins or {}).items()}, "settings": record.settings}
    )
