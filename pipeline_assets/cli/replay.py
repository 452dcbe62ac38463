"""`tidemark replay`: compute a published day again, from its original inputs or from the current ones."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline_assets.cli.command import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    JsonOption,
    ProjectOption,
    VerboseOption,
)
from pipeline_assets.cli.terminal import page, plainly, print_lines_of, terminal, write_json
from pipeline_assets.config import load_settings
from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from resources.ledger.store import own_ledger


def replay(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Such as refined/events.")],
    day: Annotated[str, typer.Argument(metavar="DAY", help="YYYY-MM-DD.")],
    as_published: Annotated[
        bool, typer.Option("--as-published", help="From the inputs and settings on record, as far as files are kept.")
    ] = False,
    current: Annotated[
        bool, typer.Option("--current", help="From today's inputs and settings; which of them makes the difference.")
    ] = False,
    project: ProjectOption = None,
    publication: Annotated[
        int | None, typer.Option("--publication", metavar="NUMBER", help="This one, by its number in `history`.")
    ] = None,
    of_run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="The one by this run, by the beginning of its id.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Show about so many keys that differ.")] = 6,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Compute a published day again and compare it with what is on record; publishes nothing.

    Of each project the last publication, or the one that is named. Exits 0 when all are equal, 1 when one differs
    or cannot be replayed, 2 on bad usage.
    """
    from pipeline_assets.cli.run import open_runtime  # noqa: PLC0415 - `status` starts without Spark
    from pipeline_assets.inspection.replay import choose, derived_table  # noqa: PLC0415 - as above
    from pipeline_assets.inspection.replay import replay as recomputed  # noqa: PLC0415 - as above
    from pipeline_assets.inspection.replay_result import ReplayBasis, lines_of, replay_json  # noqa: PLC0415 - as above

    if as_published == current:
        raise UsageError("replay", "needs one of --as-published and --current", "Say from which inputs to compute")
    which = publication, of_run
    if None not in which:
        raise UsageError("replay", "takes one of --publication and --run", "Name the publication by one of them")
    basis = ReplayBasis.AS_PUBLISHED if as_published else ReplayBasis.CURRENT
    settings = load_settings()
    chosen_table = derived_table(table)
    wanted, chosen_projects = (
        chosen_table.kind.slice_day(parse_day(day)),
        chosen_table.kind.projects(settings.require_projects(tuple(project or ()))),
    )
    with own_ledger(settings) as ledger:
        # Choose before Spark starts, so that a wrong choice fails fast.
        records = ledger.publications_of(chosen_table.key, chosen_projects, [wanted])
    chosen = choose(records, chosen_table.key, wanted, chosen_projects, *which)
    with (
        terminal(verbose=verbose) as console,
        open_runtime(settings, plainly(console)) as runtime,
    ):
        replays = [recomputed(runtime, chosen_table, one, basis, samples) for one in chosen]
    lacking = sorted(set(chosen_projects) - {one.publication.key.project_id for one in chosen})
    if as_json:
        write_json([replay_json(one) for one in replays])
    else:
        for one in replays:
            print_lines_of(page(), lines_of(one))
        if which == (None, None):
            print_lines_of(page(), (f"{chosen_table.key} {wanted}/{name}: nothing was published" for name in lacking))
    is_whole = not (project and lacking)
    return EXIT_OK if is_whole and all(one.is_equal for one in replays) else EXIT_INCOMPLETE
