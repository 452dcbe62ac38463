"""`tidemark snapshots`: a consistent cut of snapshots over all tables, and how a reader opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import EXIT_OK, JsonOption
from pipeline_assets.cli.terminal import page, print_lines_of, styled, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_moment
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.inspection.cuts import Engine, cut_at, cut_of_run, newest_cut, reading_lines, tables_at_rest
from resources.ledger.history import Cut
from resources.ledger.store import own_ledger
from resources.publishing import promise_of


class Engines(StrEnum):
    """The engines whose lines are printed."""

    SPARK = Engine.SPARK.value
    PYICEBERG = Engine.PYICEBERG.value
    DUCKDB = Engine.DUCKDB.value
    TRINO = Engine.TRINO.value
    ALL = "all"


def snapshots(
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="What readers saw when this run had published.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="What readers saw at this time (UTC, or with its zone).")
    ] = None,
    engine: Annotated[Engines, typer.Option("--engine", help="Whose lines to print.")] = Engines.ALL,
    as_json: JsonOption = False,
) -> int:
    """Print one snapshot of each table that belong together, and the lines that read them; the newest ones by default.

    Writes nothing. Exits 0 when all of them can be read, 1 when one has expired or nothing was published, 2 on bad usage.
    """
    if run_id is not None and at is not None:
        raise UsageError("--run and --at", "name two states", "Name one of them")
    settings = load_settings()
    moment = parse_moment("--at", at) if at is not None else None
    with own_ledger(settings) as ledger:
        if run_id is not None:
            cut = cut_of_run(ledger, run_id)
        else:
            cut = newest_cut(ledger) if moment is None else cut_at(ledger, moment)
    resting = tables_at_rest(settings, cut)
    chosen = list(Engine) if engine is Engines.ALL else [Engine(engine.value)]
    lines = {one: reading_lines(one, settings, cut.snapshots, resting) for one in chosen}
    promise = promise_of(settings)
    if as_json:
        write_json(_to_json(cut, promise.value, lines))
        return EXIT_OK
    print_cut(page(), cut, lines)
    untold = cut.snapshots.keys() - resting.keys()
    if untold:
        told = f"without Spark nobody can tell whether these can be read still: {', '.join(sorted(untold))}"
        page().print(styled(told, "yellow"))
    page().print(styled(promise.sentence, "dim"))
    return EXIT_OK


def _to_json(cut: Cut, promise: str, lines: Mapping[Engine, Sequence[str]]) -> dict[str, object]:
    # As text, because snapshot ids exceed the integers that JSON readers hold exactly.
    numbers = {name: str(number) for name, number in cut.snapshots.items()}
    place = {"number": cut.number, "run_id": cut.run_id, "published_at": cut.published_at, "promise": promise}
    return {**place, "snapshots": numbers, "lines": {engine.value: list(of) for engine, of in lines.items()}}


def print_cut(console: Console, cut: Cut, lines: Mapping[Engine, Sequence[str]]) -> None:
    """Print the snapshots, then the lines of each engine."""
    table = RichTable("table", "snapshot", box=None, pad_edge=False)
    for name, number in cut.snapshots.items():
        table.add_row(name, str(number))
    console.print(table)
    console.print(styled(f"published {cut.published_at[:19]} UTC by run {cut.run_id or 'unknown'}", "dim"))
    for engine, of in lines.items():
        console.print()
        console.print(styled(engine.value, "bold"))
        print_lines_of(console, of)
