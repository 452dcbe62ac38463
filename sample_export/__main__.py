"""Write a sample export from the shell: `python -m sample_export --out landing --days 14`."""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from sample_export.objects import write_export
from sample_export.spec import ExportSpec


def main() -> None:
    """Parse options, write, print counts."""
    parser = argparse.ArgumentParser(prog="python -m sample_export", description="Write a seeded sample export.")
    parser.add_argument("--out", type=Path, required=True, help="landing folder")
    parser.add_argument("--projects", default="10001,10002")
    parser.add_argument("--from", dest="first_day", type=date.fromisoformat, default=date(2026, 1, 1))
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--events-per-day", type=int, default=400)
    parser.add_argument("--bad-lines-per-day", type=int, default=0)
    parser.add_argument("--blank-lines-per-day", type=int, default=0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    spec = ExportSpec(
        seed=options.seed,
        projects=tuple(options.projects.split(",")),
        first_day=options.first_day,
        days=options.days,
        events_per_day=options.events_per_day,
        bad_lines_per_day=options.bad_lines_per_day,
        blank_lines_per_day=options.blank_lines_per_day,
    )
    account = write_export(spec, options.out)
    left_out = ", ".join(
        f"{count} {reason.replace('_', ' ')}" for reason, count in account.duplicates_by_reason.items()
    )
    sys.stdout.write(
        f"{account.objects} objects, {account.lines} lines ({account.bad_lines} broken, {account.blank_lines} blank), "
        f"{account.events.total()} events, {account.late.total()} of them late; duplicates: {left_out}\n"
    )


if __name__ == "__main__":
    main()
