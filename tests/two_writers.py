"""Rounds of loads at once on the same tables (`make two-writers`): what was lost, doubled or published stale must be nothing."""

from __future__ import annotations

import argparse
import functools
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from resources.publishing import Promise
from tests.support.builders import PROJECT, LandingFolder
from tests.support.hands import Hand
from tests.support.postgres import a_postgres
from tests.support.random_exports import DAYS, KINDS, WINDOW, Files, Vendor, change, first_exports
from tests.support.writer import MANY_LOADS, TABLES

WRITERS = 3
OF_DATABASES = (Promise.ONE_TRANSACTION, Promise.TABLE_BY_TABLE)
"""Promises of a catalog in a database."""
_ROUNDS_OF_A_LAKE = 15
"""Then empty tables again, so that first publications meet too."""
_CHECKED_EVERY = 3
_LONGEST_PAUSE = 0.6
_DERIVED = TABLES[2:]
_KINDS = ("overlapping", "overlapping", "disjoint", "same source", "three at once", "compaction", "rollback")


@dataclass
class Account:
    catalog: str
    writers: int
    promise: Promise
    rounds: Counter[str] = field(default_factory=Counter)
    """Kind of meeting -> rounds."""
    conflicts: int = 0
    gave_up: int = 0
    """Loads that gave up and named the winner."""
    lost: int = 0
    doubled: int = 0
    stale: int = 0
    checks: int = 0
    seconds: float = 0.0
    winners_named: int = 0
    findings: list[str] = field(default_factory=list)


class _Landing(LandingFolder):
    def __init__(self, folder: Path) -> None:
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.grammar = KeyGrammar(Settings().marker_pattern)


@dataclass
class Meeting:
    """A lake, random exports, and the writers that meet there."""

    settings: dict[str, Any]
    landing: _Landing
    vendor: Vendor
    files: Files
    account: Account

    def source_of(self, hour: int) -> Source:
        return Source.BACKFILL if hour > 19 else Source.REGULAR

    def deliver(self, name: tuple[date, int]) -> None:
        day, hour = name
        self.landing.deliver(day, self.files[name], hour=hour, source=self.source_of(hour))

    def expected_objects(self) -> dict[str, int]:
        """Source and object -> event lines, without those dated days after their arrival."""
        found = {}
        for (day, hour), lines in self.files.items():
            source, landing = self.source_of(hour), self.landing.landing
            (path,) = (landing / source.prefix(PROJECT)).glob(f"*{day}_{hour}#1.json.gz")
            latest = str(day + timedelta(days=2))
            found[f"{source.value} {path.relative_to(landing)}"] = sum(line["event_time"] < latest for line in lines)
        return {key: rows for key, rows in found.items() if rows}


@contextmanager
def all_hands(writers: int = WRITERS, *options: str, **variables: str) -> Iterator[list[Hand]]:
    """Two or three writers; their sessions serve one lake after the other, each under its own catalog name."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    with ExitStack() as stack:
        hands = [Hand("tests.support.writer", *options, environment=inherited | variables) for _ in range(writers)]
        for hand in hands:
            stack.callback(hand.close)
        yield hands


def run_rounds(
    hands: Sequence[Hand],
    catalog: str,
    rounds: int,
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
    promise: Promise = Promise.ONE_TRANSACTION,
) -> Account:
    """Rounds on a `sqlite` or `postgresql` catalog and ledger; raises AssertionError for any unexpected failure."""
    account = Account(catalog, len(hands), promise)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="writers-") as scratch, databases(catalog, Path(scratch)) as url_of:
        for number in range(0, rounds, _ROUNDS_OF_A_LAKE):
            rng = random.Random(seed * 1000 + number)
            meeting = _meeting(Path(scratch) / f"{catalog}{number}", url_of, number, rng, account)
            for turn in range(min(_ROUNDS_OF_A_LAKE, rounds - number)):
                _round(meeting, hands, rng, turn)
                if (turn + 1) % _CHECKED_EVERY == 0 or number + turn + 1 == rounds:
                    _check(meeting, hands)
                tell(f"{catalog} {number + turn + 1}/{rounds}: {account.conflicts} conflicts, {account.findings[-1:]}")
            shutil.rmtree(Path(scratch) / f"{catalog}{number}")
    account.seconds = time.monotonic() - started
    return account


@contextmanager
def databases(catalog: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Gives a new database's URL by name; its server lives as long."""
    if catalog == "sqlite":
        yield lambda name: f"sqlite:///{folder}/{name}.db"
        return
    with a_postgres() as server:
        yield server.database


def places(url_of: Callable[[str], str], name: str, promise: Promise) -> dict[str, str]:
    """Settings of a lake's databases: one transaction needs the ledger in the catalog's database."""
    found = {"catalog_url": url_of(name)}
    return found if promise is Promise.ONE_TRANSACTION else {**found, "ledger_url": url_of(f"{name}_ledger")}


def _meeting(folder: Path, url_of: Callable[[str], str], number: int, rng: random.Random, account: Account) -> Meeting:
    folder.mkdir()
    landing = _Landing(folder)
    vendor = Vendor(rng)
    settings = {
        "landing_url": str(landing.landing), "warehouse_url": str(folder / "warehouse"), "catalog_name": folder.name,
        "projects": PROJECT, "calendar_start": "2026-01-01", "dedupe_window_days": WINDOW, "publish_attempts": 5,
        **places(url_of, f"lake{number}", account.promise),
    }  # fmt: skip
    meeting = Meeting(settings, landing, vendor, first_exports(vendor), account)
    for name in meeting.files:
        meeting.deliver(name)
    return meeting


def _round(meeting: Meeting, hands: Sequence[Hand], rng: random.Random, turn: int) -> None:
    """Landing changes; writers meet over the same days, over others, three of them, or beside Iceberg's procedures."""
    if turn:
        for _ in range(rng.randrange(1, 4)):
            meeting.deliver(change(meeting.vendor, meeting.files, rng.choice(KINDS)))
    kinds = [kind for kind in _KINDS if kind != "three at once" or len(hands) > 2]
    kind = rng.choice(kinds) if turn else "empty tables"
    middle = rng.randrange(1, len(DAYS) - 1)
    whole, early, late = (DAYS[0], DAYS[-1]), (DAYS[0], DAYS[middle - 1]), (DAYS[middle], DAYS[-1])
    daily, backfill = (TABLES[0], *_DERIVED), (TABLES[1], *_DERIVED)
    first, second = (early, late) if kind == "disjoint" else (whole, (early, late, whole)[turn % 3])
    orders = [_load(first, daily, rng), _load(second, daily if kind == "same source" else backfill, rng)]
    if kind in ("three at once", "empty tables"):
        orders.append(_load(whole, _DERIVED if kind == "three at once" else backfill, rng))
        orders = orders[: len(hands)]
    elif kind in ("compaction", "rollback"):
        orders = orders[: len(hands) - 1]
        do = "compact" if kind == "compaction" else "roll_back"
        orders.append({"do": do, "table": rng.choice((TABLES[0], *_DERIVED)), "wait": rng.random() * 4})
    for hand, order in zip(hands, orders, strict=False):
        hand.order({"settings": meeting.settings, **order})
    for hand, order in zip(hands, orders, strict=False):
        _take(meeting.account, hand.answer(), order)
    meeting.account.rounds[kind] += 1


def _load(days: tuple[date, date], tables: Sequence[str], rng: random.Random) -> dict[str, Any]:
    when = {"first": str(days[0]), "last": str(days[1]), "seed": rng.random(), "pause": rng.random() * _LONGEST_PAUSE}
    return {"do": "load", "tables": list(tables), **when}


def _take(account: Account, answer: dict[str, Any], order: dict[str, Any]) -> None:
    account.conflicts += len(answer["conflicts"])
    account.winners_named += sum(": run " in text for text in answer["conflicts"])
    if "error" in answer:
        # Giving up against winning writers is right; any other error is not.
        assert answer["error"] == "PublishConflictError", (answer, order)
        account.gave_up += 1


def _check(meeting: Meeting, hands: Sequence[Hand]) -> None:
    """First: is a slice wrong that the ledger calls current? After one more load: is anything wrong?"""
    account, hand = meeting.account, hands[0]

    def look() -> dict[str, Any]:
        found: dict[str, Any] = hand.ask({"do": "look", "settings": meeting.settings})
        return found

    before = look()
    account.stale += len(before["stale"])
    account.findings += [f"stale {one}" for one in before["stale"]]
    account.findings += [f"{one}: head known, files are not" for one in before["unknown"]]
    account.findings += [f"history {one}" for one in before["chains"]]
    calm = {"first": str(DAYS[0]), "last": str(DAYS[-1]), "seed": account.checks, "pause": 0.0}
    answer = hand.ask({"do": "load", "settings": meeting.settings, "tables": list(TABLES), **calm})
    assert "error" not in answer, answer
    after = look()
    account.lost += after["lost"]
    account.doubled += after["doubled"]
    account.findings += [f"wrong {one}" for one in after["wrong"]]
    expected = meeting.expected_objects()
    for key in expected.keys() | after["objects"].keys():
        missing = expected.get(key, 0) - after["objects"].get(key, 0)
        if missing:
            account.lost += max(missing, 0)
            account.doubled += max(-missing, 0)
            account.findings.append(f"raw {key} lacks {missing} rows")
    account.checks += 1


def page_of(accounts: Sequence[Account]) -> Table:
    titles = ("conflicts", "winner named", "gave up", "checks", "lost", "doubled", "stale", "s")
    page = Table("catalog", "promise", "writers", "rounds", "how they met", *titles, title="writers at once")
    for one in accounts:
        met = ", ".join(f"{kind} {count}" for kind, count in sorted(one.rounds.items()))
        figures = (one.conflicts, one.winners_named, one.gave_up, one.checks, one.lost, one.doubled, one.stale)
        numbers = (*map(str, figures), f"{one.seconds:.0f}")
        page.add_row(one.catalog, one.promise, str(one.writers), str(one.rounds.total()), met, *numbers)
    return page


def promise_named(text: str) -> Promise:
    """`one-transaction` or `table-by-table`; raises ValueError otherwise."""
    promise = Promise(text.replace("-", " "))
    if promise not in OF_DATABASES:
        raise ValueError(text)
    return promise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.two_writers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=150, help="for each catalog")
    parser.add_argument("--catalogs", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--writers", type=int, choices=(2, 3), default=WRITERS)
    parser.add_argument("--promise", type=promise_named, default=Promise.ONE_TRANSACTION, help="or table-by-table")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    console = Console(width=160)
    accounts = []
    for catalog in chosen.catalogs:
        with all_hands(chosen.writers, MANY_LOADS) as hands:
            tell = functools.partial(console.print, highlight=False)
            accounts.append(run_rounds(hands, catalog, chosen.rounds, chosen.seed, tell, chosen.promise))
    console.print(page_of(accounts))
    for one in accounts:
        for finding in one.findings:
            console.print(f"{one.catalog}: {finding}")
    return 1 if any(one.findings for one in accounts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
