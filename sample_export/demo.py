"""`make demo`: two weeks loaded, loaded again, a lost part recovered, and the account of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline_assets.cli.terminal import PlainConsole, line, page, show, styled
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.plain_text import shown as shown_text
from pipeline_assets.domain.settings import PROJECT_ROOT, is_clone
from pipeline_assets.tables.registry import AGGREGATES
from sample_export.account import REASONS, ExportAccount
from sample_export.demo_account import State, tell_account
from sample_export.demo_place import Deployment, embedded
from sample_export.events import events_of
from sample_export.objects import account_of, write_export, write_recovery
from sample_export.spec import ExportSpec, Recovery

DATA = PROJECT_ROOT / "data"
OURS = DATA / ".demo"
"""Marks a data folder that the demo may empty; names the landed files once the demo has run to its end."""
_STACK = DATA / "stack"
"""Of `make up`, which the demo leaves alone."""
_DAYS = 14
_LOST = 5
"""Day of the export, from 0, that loses events; it is recovered with the days beside it."""
_LOADED = ("raw/regular_events", "raw/backfill_events", "refined/events", *(table.key for table in AGGREGATES))
_PAGE = "http://127.0.0.1:3000/locations/tidemark/asset-groups/events"


def story(today: date) -> tuple[ExportSpec, Recovery]:
    """Two weeks that end yesterday, and the recovery of a part; the figures are the same on every day."""
    first = today - timedelta(days=_DAYS)
    lost = first + timedelta(days=_LOST)
    spec = ExportSpec(
        first_day=first,
        later_days=(first - ExportSpec.first_day).days,
        days=_DAYS,
        events_per_day=400,
        bad_lines_per_day=2,
        blank_lines_per_day=1,
        lost_days=(lost,),
        lost_share=0.1,
    )
    beside = timedelta(days=1)
    return spec, Recovery(first_day=lost - beside, last_day=lost + beside, corrected_share=0.05)


def main() -> int:
    """Tell the story; returns the exit code."""
    console = page()
    if not is_clone():
        # Beside installed code nothing of a person's is kept.
        console.print("The demo belongs to a clone. Here, make a deployment: tidemark init DIR")
        return 1
    begun = [path for path in DATA.glob("*") if path != _STACK]
    landed = OURS.read_text("utf-8").splitlines() if OURS.exists() else []
    if begun and (not OURS.exists() or (landed and not _landed() <= set(landed))):
        hint = " holds data that the demo did not write. Move it away, then run `make demo` again."
        console.print(line(styled(DATA, "red"), hint))
        return 1
    try:
        place = embedded(DATA)
    except SettingsError as error:
        console.print(line(styled(error.subject, "red"), f": {error.reason}. {error.hint}"))
        return 1
    for path in begun:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    DATA.mkdir(exist_ok=True)
    OURS.write_text("", "utf-8")
    spec, recovery = story(datetime.now(UTC).date())
    started = time.monotonic()
    if not tell(console, place, spec, recovery):
        return 1
    OURS.write_text("\n".join(sorted(_landed())), "utf-8")
    console.print()
    console.print(f"{time.monotonic() - started:.0f} s. Three things to try next:")
    for command, shows in (
        ("make dev", f"the same in Dagster: {_PAGE}"),
        (".venv/bin/tidemark status", "where every day stands"),
        (f".venv/bin/tidemark explain {sent_twice(spec)}", "an event that was sent twice, and which of its rows won"),
    ):
        console.print(line("  ", styled(command, "bold"), f"  {shows}"))
    return 0


def _landed() -> set[str]:
    """The files in the landing of the data folder, which settings name where nobody says otherwise: also those of others."""
    return {str(path.relative_to(DATA)) for path in (DATA / "landing").rglob("*") if path.is_file()}


def tell(console: Console, deployment: Deployment, spec: ExportSpec, recovery: Recovery) -> bool:
    """The story in a deployment that holds nothing yet; returns whether all of it came out as the exporter meant it."""
    console.rule("1  an export lands: 2 projects, 14 days, hourly objects")
    exported = write_export(spec, deployment.landing)
    deployment.deliver()
    console.print(
        f"{exported.objects} objects, {exported.lines} lines, {exported.bad_lines} of them broken and "
        f"{exported.blank_lines} blank; {_duplicates(exported)} ({exported.corrections} with another amount); "
        f"{exported.late.total()} late facts; {exported.lost_events} events never arrived"
    )
    console.rule("2  daily_load")
    if not load_regular(console, deployment, spec):
        return False
    before = State(deployment)
    console.rule("3  the same again: nothing to do")
    if not load_regular(console, deployment, spec):
        return False
    again = State(deployment)
    console.rule(
        f"4  a recovery export of {recovery.first_day} to {recovery.last_day}, overlapping what was delivered: backfill_load"
    )
    recovered = recover(deployment, spec, recovery)
    console.print(f"{recovered.objects} objects, {recovered.lines} lines on the backfill prefix")
    if not load_recovery(console, deployment, recovery):
        return False
    return tell_account(console, exported, recovered, before, again, State(deployment), account_of(spec, recovery))


def load_regular(console: Console, deployment: Deployment, spec: ExportSpec) -> bool:
    """Load all days of the export; returns whether all went well."""
    return _tidemark(console, deployment, "regular", spec.arrival_days[0], spec.arrival_days[-1])


def recover(deployment: Deployment, spec: ExportSpec, recovery: Recovery) -> ExportAccount:
    """Write the recovery, and deliver it; returns what it holds."""
    days = (recovery.first_day, recovery.last_day)
    recovered = write_recovery(spec, deployment.landing, *days, corrected_share=recovery.corrected_share)
    deployment.deliver()
    return recovered


def load_recovery(console: Console, deployment: Deployment, recovery: Recovery) -> bool:
    """Load the recovery; returns whether all went well."""
    return _tidemark(console, deployment, "backfill", recovery.first_day, recovery.last_day)


def sent_twice(spec: ExportSpec) -> str:
    """The id of an event that the export holds more than once."""
    for project in spec.projects:
        for event in events_of(spec, project, spec.arrival_days[0]):
            name = event.sends[0].row["$insert_id"]
            if len(event.sends) > 1 and name is not None and not event.is_lost:
                return str(name)
    raise LookupError("no event is sent twice")


def _duplicates(account: ExportAccount) -> str:
    delivered, sent, moved = (account.duplicates_by_reason[reason] for reason in REASONS)
    return f"{delivered} rows exported twice, {sent + moved} events sent twice, {moved} of them onto another day"


def _tidemark(console: Console, deployment: Deployment, source: str, first: date, last: date) -> bool:
    """Run the command as a person would; its table is long, so only its verdicts are counted here."""
    environment = deployment.environment()
    Path(environment["DAGSTER_HOME"]).mkdir(exist_ok=True)
    command = [
        str(Path(sys.executable).parent / "tidemark"),
        "load",
        "--source",
        source,
        "--from",
        str(first),
        "--to",
        str(last),
        "--json",
    ]
    console.print(styled(f"$ tidemark {' '.join(command[1:])}", "bold"))
    code, shown = _watched(command, environment)
    verdicts = Counter(day["verdict"] for day in json.loads(shown or "[]"))
    console.print("days x tables: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    if code != 0:
        show(console, *shown.splitlines())
    return code == 0


def _watched(command: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and standard output; what the load says of its tables moves a bar on a terminal, and is printed elsewhere."""
    bar = Progress(
        TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn(), transient=True, console=_errors()
    )
    with tempfile.TemporaryFile("w+") as output:
        with (
            bar,
            subprocess.Popen(
                command, cwd=PROJECT_ROOT, env=environment, stdout=output, stderr=subprocess.PIPE, text=True
            ) as process,
        ):
            assert process.stderr is not None
            task = bar.add_task("starting", total=len(_LOADED))
            for text in process.stderr:
                table, has_text, rest = text.rstrip().partition(": ")
                if not sys.stderr.isatty() or not has_text:
                    sys.stderr.write(text)
                if table in _LOADED:
                    is_done = rest.endswith(" s") and " in " in rest
                    bar.update(task, description=shown_text(table), advance=1 if is_done else 0)
        output.seek(0)
        return process.returncode, output.read()


def _errors() -> PlainConsole:
    return PlainConsole(stderr=True)


if __name__ == "__main__":
    raise SystemExit(main())
