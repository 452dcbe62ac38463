"""Requests of operators: the command line is made from them, and jobs take them as run config; and the tables of reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, overload

from pydantic import BaseModel, ConfigDict, Field

from pipeline_assets.domain.days import parse_day
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import Source


class Shell(NamedTuple):
    """How the command line spells a field, where it does not as `--its-name`."""

    option: str = ""
    metavar: str | None = None
    is_argument: bool = False
    is_hidden: bool = False
    """Whether the job alone has the field."""
    variable: str | None = None
    """Name of the environment variable that gives the default."""


class Request(BaseModel):
    """Input of an operation; its docstring is the help of the command."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @classmethod
    def command(cls) -> str:
        """The name of its command: `split-landing` for `SplitLanding`, `load` for `LoadCommand`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Command")).lower()


def ask(
    text: str,
    default: Any = ...,
    *,
    name: str | None = None,
    option: str = "",
    metavar: str | None = None,
    is_argument: bool = False,
    is_hidden: bool = False,
    variable: str | None = None,
    **bounds: Any,
) -> Any:
    """A field with its description; `name`: in run config and on the command line, where it is a word of Python's."""
    shell: Any = {"shell": Shell(option, metavar, is_argument, is_hidden, variable)}
    return Field(default, alias=name, description=text, json_schema_extra=shell, **bounds)


_ACCEPT = "Accept changes beyond bounds in the named project's published days, for this reason."
_READ_AGAIN = "Bring back days of which a data file is gone: raw from landing, others from their inputs."
_DRY_RUN = "Only show what would be done."
_TABLE = "Such as refined/events."
_DAY = "A day, YYYY-MM-DD."


class Printed(Request):
    """A request whose answer scripts can read."""

    as_json: bool = ask("Print JSON for machines.", False, name="json")


class Days(Request):
    """A range of days; either end may be left to the operation."""

    first: str = ask("First day, YYYY-MM-DD.", "", name="from")
    last: str = ask("Last day, YYYY-MM-DD.", "", name="to")

    @overload
    def bounds(self) -> tuple[date | None, date | None]: ...
    @overload
    def bounds(self, first: date, last: date) -> tuple[date, date]: ...
    def bounds(self, first: date | None = None, last: date | None = None) -> tuple[date | None, date | None]:
        """Both ends, or these where none is given; raises UsageError for a bad day or order."""
        start = parse_day(self.first) if self.first else first
        end = parse_day(self.last) if self.last else last
        if start and end and end < start:
            raise UsageError(f"--from {start} --to {end}", "the range ends before it begins", "Swap the two days")
        return start, end


class Range(Days):
    """A range of days, which has to be given."""

    first: str = ask("First day, YYYY-MM-DD.", name="from")
    last: str = ask("Last day, YYYY-MM-DD.", name="to")

    def range(self) -> tuple[date, date]:
        """First and last day; raises UsageError for a bad day or order."""
        return self.bounds(parse_day(self.first), parse_day(self.last))


class OfProjects(Request):
    """A request about all projects, or some."""

    projects: list[str] = ask("Only this project, of all that are configured; may be repeated.", [], option="--project")


class Init(Request):
    """Write the files of a new deployment into a folder: settings, Dagster's configuration, and what to do next.

    Overwrites nothing: where one of the files is there already, none is written. Exits 0 when they were written, 2 on bad usage.
    """

    directory: str = ask("A folder; it is made unless it is there.", metavar="DIR", is_argument=True)
    is_s3: bool = ask(
        "Exports and tables in a bucket, or below the folder (the default).", False, option="--s3/--local"
    )


class Setup(Request):
    """Fetch and verify the jars that Spark needs, and prepare the JVM's classes, so that every load starts sooner.

    Exits 0 when everything is ready, 1 when Java or a jar is missing, 2 on bad usage.
    """


class LoadSource(StrEnum):
    """Deliveries that `load` reads from landing."""

    REGULAR = Source.REGULAR.value
    BACKFILL = Source.BACKFILL.value
    DIMENSIONS = "dimensions"


class Load(OfProjects):
    """Run config of a load; its days are the run's partitions."""

    accept_changes: dict[str, str] = ask(
        "`refined/events:2026-02-02/10001` -> why the change is right; kept on record. With a single project, it may be omitted.",
        {},
    )
    accept_missing: dict[str, str] = ask(
        "`raw/regular_events:2026-02-02/10001` -> why objects missing from landing may leave raw; kept on record.", {}
    )
    exclude: dict[str, str] = ask(
        "Object key -> why its rows must not count; kept on record. The object must have arrived on one of the days to load.",
        {},
    )
    exclude_even_if_gone: bool = ask(
        "Also exclude objects that landing no longer holds, which cannot be restored.", False
    )
    include: dict[str, str] = ask("Key of an excluded object -> why its rows count again; kept on record.", {})
    read_again: bool = ask(_READ_AGAIN, False)


class LoadCommand(OfProjects, Range, Printed):
    """Run the load job of a source over a range of days, in this process.

    Exits 0 when every requested day is published or unchanged, 1 when one is refused, waiting or held, 2 on bad usage.
    """

    source: LoadSource = ask("Which exports to load, or the snapshots of dimensions.")
    accept_changes: str | None = ask(_ACCEPT, None, metavar="REASON")
    accept_missing: str | None = ask(
        "Accept that landing lost objects of the named project, for this reason.", None, metavar="REASON"
    )
    read_again: bool = ask(_READ_AGAIN, False)


class Recover(OfProjects, Days):
    """Fetch hours from the vendor's Export API and put them below the backfill prefix."""

    first: str = ask("First day or hour, YYYY-MM-DD[THH] (UTC).", "", name="from")
    last: str = ask("Last day or hour, YYYY-MM-DD[THH] (UTC).", "", name="to")
    refused: bool = ask("Only what is missing or refused of days that `status` calls refused or short.", False)
    ask_again: bool = ask("Also hours of which the vendor had no data before.", False)
    load: bool = ask("Load the recovered days afterwards.", False)
    dry_run: bool = ask("Only tell what is missing or refused, and what would be fetched.", False)


class RecoverCommand(Recover, Printed):
    """Fetch lost hours from the vendor's Export API again and put them below the backfill prefix, to be loaded from there.

    Every hour of the range is fetched, but for those that were recovered before; with --refused only bad ones. Exits 0 when
    every hour is there (with --load: and loaded), 1 when not, 2 on bad usage. The same call again goes on where it ended.
    """


class Status(Days, Printed):
    """Show the status of days, the latest two weeks by default: one row per day, one column per table.

    Below: mismatches of golden totals, invalid golden totals, running and dead runs, open rebuilds, a window that is too
    narrow, receivers with unsent notices, and what readers may rely on while a load publishes.
    """


class Explain(OfProjects, Days, Printed):
    """Show where a row came from: every delivery of an event, which one won and why, and where it was published.

    Looks at all event days, or at a range. Writes nothing. Exits 0 when something was found, 1 when nothing was, 2 on bad usage.
    """

    identifier: str = ask("The insert_id or uuid of an event.", metavar="ID", is_argument=True)


class History(OfProjects, Printed):
    """List every change of a table on record, oldest first: rows before and after, cause, reason, run."""

    table: str = ask(_TABLE, metavar="TABLE", is_argument=True)
    day: str = ask(_DAY, "", metavar="DAY", is_argument=True)


class Diff(OfProjects):
    """Show what a load would make of a day, refused or not yet loaded, beside what is published; publishes nothing.

    Exits 0 when both are equal, 1 when they differ, 2 on bad usage.
    """

    table: str = ask(_TABLE, metavar="TABLE", is_argument=True)
    day: str = ask(_DAY, metavar="DAY", is_argument=True)
    html: Path | None = ask("Write a page per project into this folder as well.", None)
    samples: int = ask("Show about so many keys with their values.", 20, ge=0)


class Exclusions(Printed):
    """List excluded deliveries with their reasons, and those that were included again."""


class Report(Request):
    """Write the health of everything on one page: days, figures, revisions, and what waits for an operator.

    Reads the ledger alone and writes nothing else. Exits 0 when the page is written, 1 when the ledger cannot be read,
    2 on bad usage.
    """

    out: Path = ask("The page to write, an HTML file.", metavar="FILE")


class Metrics(Request):
    """Print figures for Prometheus, or write them for node_exporter's textfile collector.

    Reads the ledger and Dagster's queue, and changes neither. Exits 0 when the figures are told, 1 when the ledger cannot
    be read, which tidemark_up 0 tells as well, 2 on bad usage.
    """

    output: Path | None = ask("A file *.prom to write; default standard output.", None, metavar="FILE")


class Changes(Printed):
    """List the changes of published final days since a time, and the refusals that began or ended. From the ledger alone."""

    since: str = ask("A day or a time, UTC unless it says otherwise: 2026-02-05T10:00.", metavar="TIME")
    table: str | None = ask("This table and what is built from it; and which days to refresh.", None, metavar="TABLE")


class Engines(StrEnum):
    """The engines whose lines `snapshots` prints."""

    SPARK = "spark"
    PYICEBERG = "pyiceberg"
    DUCKDB = "duckdb"
    TRINO = "trino"
    ALL = "all"


class Snapshots(Printed):
    """Print one snapshot of each table that belong together, and the lines that read them; the newest ones by default.

    Writes nothing. Exits 0 when all of them can be read, 1 when one has expired or nothing was published, 2 on bad usage.
    """

    run_id: str | None = ask("What readers saw when this run had published.", None, option="--run", metavar="ID")
    at: str | None = ask("What readers saw at this time (UTC, or with its zone).", None, metavar="TIME")
    engine: Engines = ask("Whose lines to print.", Engines.ALL)


class Window(OfProjects, Days, Printed):
    """Show how late rows arrive, what each reprocessing window would catch and cost, and recommend one. From the ledger alone.

    Looks at the 91 days of arrival before the last on record, or at a range. Exits 0 when the set window misses no more than is
    tolerated, or too little is known to say so; 1 when it misses more; 2 on bad usage.
    """

    source: Source = ask("Which exports' arrivals.", Source.REGULAR)


class Maintenance(Request):
    """Remove what no reader, no rollback and no run needs: dead branches, small files, old snapshots, orphan files.

    Safe beside a load. Exits 0 when every table was looked after, 1 when one could not be, 2 on bad usage.
    """

    dry_run: bool = ask(_DRY_RUN, False)


class Notify(Request):
    """Send the notices that TIDEMARK_NOTIFY_URLS were not told yet, as every run does at its end.

    Exits 0 when everybody was told of everything, 1 when a receiver did not take all, 2 on bad usage.
    """

    again: bool = ask("First send once more what a receiver refused for good and was set aside.", False)


class Attach(Request):
    """Show the newest state of every table in the warehouse, and whose lake it is; take it for a lost catalog, or a lost ledger.

    With --apply this catalog owns the lake from then on, and the former one is refused; the former one takes it back in the same
    way. Loads go on afterwards. Exits 0 when done, 1 when not all of it could be, 2 on bad usage.
    """

    apply: bool = ask("Register what is shown: this catalog takes the lake.", False)
    ledger: bool = ask("Measure the tables for this ledger: it takes the place of the lake's own.", False)
    take: str | None = ask("The name of the catalog that owns the lake until now.", None, metavar="NAME")


class Dev(Request):
    """Start Dagster (webserver and daemon) for the deployment in this folder, until Ctrl-C ends both.

    Exits 0 when it was ended, 1 when the webserver or the daemon ended by itself, 2 on bad usage.
    """

    port: int = ask("Of this machine; nobody else can reach it.", 3000, ge=1, le=65535, variable="PORT")
    read_only: bool = ask("The webserver alone, on which nobody can start anything.", False, variable="READ_ONLY")


class Include(Request):
    """Let excluded deliveries count again, and load the days they arrived on with them.

    Exits 0 when every touched day is good with them, 1 when one is refused, waiting or held, 2 on bad usage.
    """

    keys: list[str] = ask("Keys of objects, as landing names them.", metavar="KEY...", is_argument=True)
    reason: str = ask("Why; it stays on record.")
    accept_changes: str | None = ask(_ACCEPT, None, metavar="REASON")


class Exclude(Include):
    """Exclude deliveries, and load the days they arrived on without them. `include` reverses it.

    Exits 0 when every touched day is good without them, 1 when one is refused, waiting or held, 2 on bad usage.
    """

    even_if_gone: bool = ask("Exclude also what landing no longer holds, which is lost for good.", False)


class Release(OfProjects, Range):
    """Release slices that were rolled back; the next load builds those that are stale."""

    reason: str = ask("Why; it stays on record.")
    tables: list[str] = ask("Only this table, such as refined/events; may be repeated.", [], option="--table")
    dry_run: bool = ask(_DRY_RUN, False)


class ReleaseCommand(Release):
    """Show what becomes of held days, release them once you confirm, and build those that are stale.

    Exits 0 when every released day is good, 1 when one is not or nothing was released, 2 on bad usage.
    """

    yes: bool = ask("Release without asking; needed where no terminal can ask.", False)
    accept_changes: str | None = ask(_ACCEPT, None, metavar="REASON")


class Rollback(Release):
    """Restore an earlier state of published days (refined, aggregates), by metadata alone, and hold it. `release` reverses it.

    Exits 0 when every slice was rolled back or held, 1 when it could not be, 2 on bad usage.
    """

    back_to: str = ask(
        "The state at this time (2026-02-05T10:00, UTC), or after this publication's run.", metavar="TIME|NUMBER"
    )


class RebuildAction(StrEnum):
    """Actions on a rebuild."""

    START = "start"
    """Build beside main and report, or resume an interrupted build."""
    SHOW = "show"
    SWAP = "swap"
    """Publish the reported slices to main."""
    ABANDON = "abandon"
    UNDO = "undo"
    """Restore main to its state before the swap, and hold the slices."""


class Rebuild(OfProjects, Days):
    """Build slices again beside main and report what would change; swap that in, abandon it or take it back."""

    action: str = ask(
        "What to do: start, show, swap, abandon or undo.",
        RebuildAction.START.value,
        metavar="start|show|swap|abandon|undo",
        is_argument=True,
    )
    number: int = ask("Id of the rebuild, as a start tells it; not of a start.", 0, metavar="ID", is_argument=True)
    tables: list[str] = ask("Only this table, such as refined/events; may be repeated.", [], option="--table")
    reason: str | None = ask("Why; it stays on record. A start needs one.", None)
    who: str = ask("Name of the operator; the run where it is empty.", "", is_hidden=True)
    swap: bool = ask("Of a start: swap at once, although nobody has read the report.", False, is_hidden=True)


class RebuildCommand(Rebuild, Printed):
    """Rebuild published days with the present code and settings beside main, while loads go on.

    `start` builds and reports what would change, and goes on with a rebuild that was interrupted; it alone takes days, tables
    and projects. `show` prints the report, or lists all rebuilds. `swap` publishes all of its tables at once; `abandon` forgets
    it; `undo` takes a swap back and holds its days. Exits 0 when all of it is done, 1 when a slice is left out or something
    failed, 2 on bad usage.
    """

    action: RebuildAction = ask("What to do.", metavar="start|show|swap|abandon|undo", is_argument=True)


class SplitLanding(Days, Printed):
    """Find recovered objects that lie among a project's regular ones; with --apply move them under the backfill prefix.

    Without a list or a time: by name, by uploads later than their hour's marker, and by content that doubles another object, on
    all days of arrival or on those of a range. Interrupted, it goes on when it is run again. Exits 0 when done, 1 when not all
    of it could be, 2 on bad usage.
    """

    project: str = ask("Whose regular prefix.")
    keys: Path | None = ask("Exactly the objects in this list, one key a line.", None, metavar="FILE")
    uploaded_after: str | None = ask("Objects uploaded since then (UTC).", None, metavar="TIME")
    uploaded_before: str | None = ask("Objects uploaded until then (UTC).", None, metavar="TIME")
    apply: bool = ask("Move what is shown.", False)


class Verify(OfProjects, Range, Printed):
    """Replay days from landing into scratch tables, in another order and split, and compare every slice with what is published.

    Exits 0 when every slice is equal, 1 when one is not, 2 on bad usage. Writes nothing that stays.
    """


class Drill(Printed):
    """Kill loads of sample data and let others overtake them, on this deployment's catalog, storage and engine.

    It works under names of its own, which are removed afterwards. Exits 0 when all survived, else 1.
    """

    full: bool = ask("Every point x table x way of starting again; else every point once.", False)


class Replay(OfProjects, Printed):
    """Compute a published day again and compare it with what is on record; publishes nothing.

    Of each project the last publication, or the one that is named. Exits 0 when all are equal, 1 when one differs
    or cannot be replayed, 2 on bad usage.
    """

    table: str = ask(_TABLE, metavar="TABLE", is_argument=True)
    day: str = ask(_DAY, metavar="DAY", is_argument=True)
    as_published: bool = ask("From the inputs and settings on record, as far as files are kept.", False)
    current: bool = ask("From today's inputs and settings; which of them makes the difference.", False)
    publication: int | None = ask("This one, by its number in `history`.", None, metavar="NUMBER")
    run_id: str | None = ask("The one by this run, by the beginning of its id.", None, option="--run", metavar="RUN")
    samples: int = ask("Show about so many keys that differ.", 6, ge=0)


class Reconcile(OfProjects, Days):
    """Compare published days with the totals of outside systems; starts no Spark.

    Looks at the thirty days before the last, which is today unless it is given.
    """


class ReconcileCommand(Reconcile, Printed):
    """Compare published days with golden totals: golden/{date}.csv in landing, and the query of golden_query.

    Looks at the whole calendar, or at a range. With --keys or --against, compare keys of events, one by one. Exits 0 when all
    agree, 1 when not all do, 2 on bad usage. What an operator has to decide is only proposed.
    """

    keys: Path | None = ask("Compare keys with this list, in place of golden totals.", None, metavar="FILE")
    against: str | None = ask("Compare keys with this table, or with `backfill`.", None, metavar="TABLE")
    table: str | None = ask("Whose keys are compared, with --keys or --against; default refined/events.", None)
    samples: int = ask("Show so many keys of each kind.", 20, ge=0, le=10000)
    repair: bool = ask("Run the proposed loads and recoveries, then compare again.", False)


class Doctor(Printed):
    """Go through the checklist before trusting this deployment to recover: each point tested, with its evidence and what to do.

    Changes nothing and starts no Spark unless --deep. Exits 0 when no point is red, 1 when one is, 2 on bad usage.
    """

    deep: bool = ask("Also replay the newest final day from landing, with Spark, and compare.", False)


class Styled(NamedTuple):
    """A value with a style of rich's for terminals, such as `bold red`."""

    value: object
    style: str

    def __str__(self) -> str:
        """Render without the style."""
        return str(self.value)


class Table(NamedTuple):
    """Rows of values; a report shows no table without rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
