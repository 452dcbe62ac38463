"""`tidemark split-landing`: show recovered objects among the regular ones with evidence, and move them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dagster_aws.s3 import S3Resource
from rich.console import Console
from rich.text import Text

from pipeline_assets.cli.command import EXIT_INCOMPLETE, EXIT_OK
from pipeline_assets.cli.terminal import line, page, plainly, show, stacked, styled, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import Hour, parse_moment
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.report import Table
from pipeline_assets.domain.requests import SplitLanding
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.operations.recover import size_text
from pipeline_assets.operations.split_landing import (
    Relocation,
    Search,
    Selection,
    excluded_keys,
    find,
    parse_keys,
    relocate,
)
from resources.landing.store import LandingStore
from resources.ledger.store import own_ledger


def split_landing(request: SplitLanding) -> int:
    """Print what was found; move it if that is asked."""
    search = _search(request)
    settings = load_settings()
    settings.require_projects((search.project_id,))
    with terminal() as console:
        landing = LandingStore.from_settings(settings, S3Resource())
        found = find(search, landing, settings, plainly(console))
        done = _relocated(found, search, landing, settings, console) if request.apply else []
    errors: list[TidemarkError] = [*found.refusals, *(one.refusal for one in done if one.refusal is not None)]
    if request.as_json:
        write_json(_to_json(found, done, errors, is_applied=request.apply))
    else:
        show(page(), *_told(search, found, done, errors, is_applied=request.apply))
    return EXIT_INCOMPLETE if errors else EXIT_OK


def _search(request: SplitLanding) -> Search:
    moments = ("--uploaded-after", request.uploaded_after), ("--uploaded-before", request.uploaded_before)
    after, before = (parse_moment(name, text) if text else None for name, text in moments)
    if request.keys is not None and (after or before):
        raise UsageError("--keys", "is given beside a time of upload", "Give the list or the time")
    if after and before and before < after:
        raise UsageError("--uploaded-before", "lies before --uploaded-after", "Swap the two")
    listed = None if request.keys is None else _listed(request.keys)
    return Search(request.project, listed, after, before, *request.bounds())


def _listed(keys: Path) -> tuple[str, ...]:
    try:
        return parse_keys(keys.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "Give a text file, one key a line"
        raise UsageError(f"--keys {keys}", f"cannot be read ({error})", hint) from None


def _relocated(
    found: Selection, search: Search, landing: LandingStore, settings: Settings, console: Console
) -> list[Relocation]:
    if not found.recovered:
        return []
    project, grammar = search.project_id, EXPORT_FORMAT.keys(settings.marker_pattern)
    done = []
    with own_ledger(settings) as ledger:

        def is_claimed(hour: Hour) -> bool:
            return ledger.recoveries.is_open(project, hour)

        excluded = excluded_keys(ledger, project)
        for one in relocate(found.recovered, project, landing, grammar, excluded, is_claimed):
            done.append(one)
            if one.refusal is None:
                placed = one.recovered.placed
                told = f"{placed.upload.key} is {placed.target_key} now"
                plainly(console)(f"{len(done)} of {len(found.recovered)}: {told}")
    return done


def _told(
    search: Search,
    found: Selection,
    done: Sequence[Relocation],
    errors: Sequence[TidemarkError],
    *,
    is_applied: bool,
) -> Iterator[Table | Text | str]:
    refused = {one.recovered.placed.upload.key for one in done if one.refusal is not None}
    rows = []
    for one in found.recovered:
        upload = one.placed.upload
        state = styled("refused", "bold red") if upload.key in refused else styled("moved", "green")
        rows.append(
            (
                *(upload.key, size_text(upload.size_bytes), f"{upload.uploaded_at:%Y-%m-%d %H:%M}"),
                *(stacked(*one.evidence), one.placed.target_key, state if is_applied else styled("to move", "dim")),
            )
        )
    yield Table(("object", "size", "uploaded", "evidence", "becomes", ""), rows)
    yield from found.notes
    for error in errors:
        yield line(styled(error.subject, "bold red"), f": {error.reason}")
        yield f"  fix: {error.hint}"
    count = len(found.recovered)
    if not count:
        yield f"nothing was recovered among the regular objects of {search.project_id}, as far as this search tells"
    elif not is_applied:
        total = size_text(sum(one.placed.upload.size_bytes for one in found.recovered))
        yield f"{count:,} objects ({total}) can be moved: add --apply"
    else:
        moved = [one.recovered.placed.arrival_date for one in done if one.refusal is None]
        yield f"{len(moved):,} of {count:,} objects were moved"
        for source in ("backfill", "regular") if moved else ():
            yield f"  next: tidemark load --source {source} --from {moved[0]} --to {moved[-1]}; or the sensor does it"


def _to_json(
    found: Selection, done: Sequence[Relocation], errors: Sequence[TidemarkError], *, is_applied: bool
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
        for one in found.recovered
    ]
    refusals = [{"subject": error.subject, "reason": error.reason, "fix": error.hint} for error in errors]
    return {"objects": objects, "refusals": refusals, "notes": list(found.notes), "is_applied": is_applied}
