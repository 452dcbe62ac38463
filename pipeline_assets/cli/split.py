"""`tidemark split-landing`: show recovered objects among the regular ones with evidence, and move them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK, JsonOption, VerboseOption
from pipeline_assets.cli.terminal import line, page, plainly, stacked, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import Hour, parse_day
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats.registry import EXPORT_FORMAT
from resources.ledger.store import own_ledger

if TYPE_CHECKING:
    from pipeline_assets.operations.split_landing import Recovered, Relocation, Search, Selection

_KiB = 1024


def split_landing(
    project: Annotated[str, typer.Option("--project", help="Whose regular prefix.")],
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="Exactly the objects in this list, one key a line.")
    ] = None,
    uploaded_after: Annotated[
        str | None, typer.Option("--uploaded-after", metavar="TIME", help="Objects uploaded since then (UTC).")
    ] = None,
    uploaded_before: Annotated[
        str | None, typer.Option("--uploaded-before", metavar="TIME", help="Objects uploaded until then (UTC).")
    ] = None,
    first: Annotated[str | None, typer.Option("--from", help="First arrival day to look at; default all.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last arrival day to look at; default all.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Move what is shown.")] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Find recovered objects that lie among a project's regular ones; with --apply move them under the backfill prefix.

    Without a list or a time: by name, by uploads later than their hour's marker, and by content that doubles another object.
    Interrupted, it goes on when it is run again. Exits 0 when done, 1 when not all of it could be, 2 on bad usage.
    """
    from dagster_aws.s3 import S3Resource  # noqa: PLC0415 - `status` starts without Dagster

    from pipeline_assets.operations.split_landing import find  # noqa: PLC0415 - `status` starts without it
    from resources.landing.store import LandingStore  # noqa: PLC0415 - `status` starts without it

    search = _search(project, keys, (uploaded_after, uploaded_before), (first, last))
    settings = load_settings()
    settings.require_projects((search.project_id,))
    with terminal(verbose=verbose) as console:
        landing = LandingStore.from_settings(settings, S3Resource())
        selection = find(search, landing, settings, plainly(console))
        done = _relocated(selection, search, landing, settings, console) if apply else []
    errors: list[TidemarkError] = [*selection.refusals, *(one.refusal for one in done if one.refusal is not None)]
    if as_json:
        write_json(_to_json(selection, done, errors, is_applied=apply))
    else:
        _print(page(), search, selection, done, errors, is_applied=apply)
    return EXIT_INCOMPLETE if errors else EXIT_OK


def _search(
    project: str, keys: Path | None, uploaded: tuple[str | None, str | None], days: tuple[str | None, str | None]
) -> Search:
    from pipeline_assets.operations.split_landing import Search, parse_keys, parse_time  # noqa: PLC0415 - `status` starts without it

    options = ("--uploaded-after", "--uploaded-before")
    after, before = (parse_time(name, text) if text else None for name, text in zip(options, uploaded, strict=True))
    first, last = (parse_day(day) if day else None for day in days)
    if keys is not None and (after or before):
        raise UsageError("--keys", "is given beside a time of upload", "Give the list or the time")
    if after and before and before < after:
        raise UsageError("--uploaded-before", "lies before --uploaded-after", "Swap the two")
    if first and last and last < first:
        raise UsageError(f"--from {first} --to {last}", "the range ends before it begins", "Swap the two days")
    listed = None
    if keys is not None:
        try:
            listed = parse_keys(keys.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--keys {keys}", f"cannot be read ({error})", "Give a text file, one key a line"
            ) from None
    return Search(project, listed, after, before, first, last)


def _relocated(
    selection: Selection, search: Search, landing: Any, settings: Settings, console: Console
) -> list[Relocation]:
    from pipeline_assets.operations.split_landing import excluded_keys, relocate  # noqa: PLC0415 - `status` starts without it

    if not selection.recovered:
        return []
    project, grammar = search.project_id, EXPORT_FORMAT.keys(settings.marker_pattern)
    done = []
    with own_ledger(settings) as ledger:
        excluded = excluded_keys(ledger, project)

        def is_claimed(hour: Hour) -> bool:
            return ledger.recoveries.is_open(project, hour)

        for relocation in relocate(selection.recovered, project, landing, grammar, excluded, is_claimed):
            done.append(relocation)
            if relocation.refusal is None:
                placed = relocation.recovered.placed
                plainly(console)(
                    f"{len(done)} of {len(selection.recovered)}: {placed.upload.key} is {placed.target_key} now"
                )
    return done


def _print(
    console: Console,
    search: Search,
    selection: Selection,
    done: Sequence[Relocation],
    errors: Sequence[TidemarkError],
    *,
    is_applied: bool,
) -> None:
    if selection.recovered:
        _print_table(console, selection.recovered, done, is_applied=is_applied)
    for note in selection.notes:
        console.print(note, soft_wrap=True)
    for error in errors:
        console.print(line(styled(error.subject, "bold red"), f": {error.reason}"), soft_wrap=True)
        console.print(f"  fix: {error.hint}", soft_wrap=True)
    total = _told_bytes(sum(one.placed.upload.size_bytes for one in selection.recovered))
    if not selection.recovered:
        console.print(
            f"nothing was recovered among the regular objects of {search.project_id}, as far as this search tells"
        )
    elif not is_applied:
        console.print(f"{len(selection.recovered):,} objects ({total}) can be moved: add --apply")
    else:
        moved = [one.recovered for one in done if one.refusal is None]
        console.print(f"{len(moved):,} of {len(selection.recovered):,} objects were moved")
        if moved:
            first, last = moved[0].placed.arrival_date, moved[-1].placed.arrival_date
            for source in ("backfill", "regular"):
                console.print(
                    f"  next: tidemark load --source {source} --from {first} --to {last}; or the sensor does it"
                )


def _print_table(
    console: Console, recovered: Sequence[Recovered], done: Sequence[Relocation], *, is_applied: bool
) -> None:
    refused = {one.recovered.placed.upload.key for one in done if one.refusal is not None}
    table = RichTable("object", "size", "uploaded", "evidence", "becomes", "", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for one in recovered:
        upload = one.placed.upload
        state = styled("refused", "bold red") if upload.key in refused else styled("moved", "green")
        table.add_row(
            upload.key,
            _told_bytes(upload.size_bytes),
            f"{upload.uploaded_at:%Y-%m-%d %H:%M}",
            stacked(*one.evidence),
            one.placed.target_key,
            state if is_applied else styled("to move", "dim"),
        )
    console.print(table)


def _to_json(
    selection: Selection, done: Sequence[Relocation], errors: Sequence[TidemarkError], *, is_applied: bool
) -> dict[str, Any]:
    moved = {one.recovered.placed.upload.key for one in done if one.refusal is None}
    objects = [
        {
            "key": one.placed.upload.key,
            "target": one.placed.target_key,
            "size_bytes": one.placed.upload.size_bytes,
            "uploaded_at": one.placed.upload.uploaded_at.isoformat(),
            "evidence": list(one.evidence),
            "is_moved": one.placed.upload.key in moved,
        }
        for one in selection.recovered
    ]
    refusals = [{"subject": error.subject, "reason": error.reason, "fix": error.hint} for error in errors]
    return {"objects": objects, "refusals": refusals, "notes": list(selection.notes), "is_applied": is_applied}


def _told_bytes(size: int) -> str:
    if size < _KiB:
        return f"{size} B"
    return f"{size / _KiB:,.0f} KiB" if size < _KiB**2 else f"{size / _KiB**2:,.1f} MiB"
