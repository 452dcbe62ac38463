"""A vendor's exports by seed: first exports, and random changes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from tests.support.builders import an_event

DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(7)]
WINDOW = 2
"""Dedupe window in days for the changes."""
Files = dict[tuple[date, int], list[dict[str, Any]]]
"""(arrival day, hour) -> lines."""


@dataclass
class Vendor:
    """Random exports by seed; every line's times differ, so that content decides nothing."""

    rng: random.Random
    lines: int = 0

    def line(self, day: date, event: str, sent: date) -> dict[str, Any]:
        """A row of an event sent on a day; later lines carry later times."""
        self.lines += 1
        seconds = f"{10 + self.lines // 3600:02d}:{self.lines // 60 % 60:02d}:{self.lines % 60:02d}.000000"
        return an_event(
            insert_id=event,
            uuid=f"{event}-{self.lines}",
            device_id="d",
            amplitude_id=self.lines,
            event_time=f"{day} {self.rng.randrange(24):02d}:00:00.000000",
            server_upload_time=f"{sent} {seconds}",
            processed_time=f"{sent} {seconds}",
            city=self.rng.choice(("Bern", "Köln", None)),
        )

    def near(self, day: date, by: int) -> date:
        return self.rng.choice([other for other in DAYS if abs((other - day).days) <= by])


def first_exports(vendor: Vendor) -> Files:
    """(arrival day, hour) -> lines; some events come twice, some on two days."""
    files = {}
    for day in DAYS:
        for hour in (3, 15):
            own = [vendor.line(day, f"{day}-{hour}-{number}", day) for number in range(8)]
            again = [vendor.line(vendor.near(day, WINDOW + 1), f"{day}-{hour}-{number}", day) for number in range(2)]
            files[day, hour] = [*own, *again]
    return files


KINDS = ("corrections", "late", "corrections", "withdrawn lines", "changed lines", "lost corrections", "same lines")


def change(vendor: Vendor, files: Files, kind: str) -> tuple[date, int]:
    """Change or add one file; return its name."""
    rng = vendor.rng
    if kind in ("late", "corrections", "lost corrections"):
        arrival = rng.choice(DAYS)
        name = (arrival, rng.randrange(16, 24))
        known = sorted({line["$insert_id"] for lines in files.values() for line in lines})
        added = []
        for number in range(rng.randrange(1, 4)):
            day = vendor.near(arrival, 4)
            event = f"new-{vendor.lines}-{number}"
            if kind != "late":
                event = rng.choice(known)
                held = [line["event_time"] for lines in files.values() for line in lines if line["$insert_id"] == event]
                day = vendor.near(date.fromisoformat(rng.choice(held)[:10]), WINDOW)
            added.append(
                vendor.line(day, event, DAYS[-1] if kind != "lost corrections" else DAYS[0] - timedelta(days=9))
            )
        files[name] = [*files.get(name, []), *added]
        return name
    name = rng.choice(sorted(name for name, lines in files.items() if lines))
    lines = list(files[name])
    place = rng.randrange(len(lines))
    if kind == "withdrawn lines":
        del lines[place]
    elif kind == "changed lines":
        lines[place] = lines[place] | {"city": f"changed {vendor.lines}"}
    else:
        rng.shuffle(lines)
    files[name] = lines
    return name
