"""A reader in a loop beside a writer that publishes (`make readers`): refined, aggregates and the ledger agree in every cut."""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.tables.registry import ASSET_TABLES, SOURCE_OF_TABLE
from resources.publishing import Promise
from tests.support.builders import PROJECT, LandingFolder
from tests.support.hands import Hand
from tests.support.random_exports import DAYS, Vendor
from tests.support.reader import Seen, a_reader
from tests.support.writer import MANY_LOADS
from tests.two_writers import OF_DATABASES, all_hands, databases, places, promise_named

_DAYS = DAYS[:5]
_TABLES = tuple(table.key for table in ASSET_TABLES)
_UNDONE_EVERY = 12
"""Publishes until an operator rolls a day back; the next publish releases it."""


@dataclass
class Account:
    catalog: str
    promise: Promise
    publishes: Counter[str] = field(default_factory=Counter)
    """Kind of publish -> count."""
    seen: Seen = field(default_factory=Seen)
    seconds: float = 0.0

    @property
    def is_as_promised(self) -> bool:
        """Whether the reader met every publish without disagreement, where one transaction is promised."""
        met = self.seen.changed >= self.publishes.total()
        return met and (self.promise is Promise.TABLE_BY_TABLE or not self.seen.aggregates + self.seen.ledger)


class _Landing(LandingFolder):
    """Exports with revenue, and their changes."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.landing = folder / "landing"
        self.landing.mkdir(parents=True)
        self.grammar = KeyGrammar(Settings().marker_pattern)
        self._rng, self._vendor = rng, Vendor(rng)
        self._objects: dict[tuple[Source, date, int], list[dict[str, Any]]] = {}
        for day in _DAYS:
            self._put(Source.REGULAR, day, 3, [self._line(day, f"{day}-{number}", day) for number in range(8)])

    def late_facts(self) -> tuple[Source, date]:
        return self._put(Source.REGULAR, _DAYS[-1], self._rng.randrange(16, 24), self._lines(_DAYS[-1]))

    def corrections(self) -> tuple[Source, date]:
        """A delivered object comes again, with other amounts and a line less or more."""
        source, day, hour = place = self._rng.choice(sorted(self._objects))
        lines = self._objects[place]
        changed = [line | self._amount() if self._rng.random() < 0.5 else line for line in lines]
        if len(changed) > 3 and self._rng.random() < 0.5:
            del changed[self._rng.randrange(len(changed))]
        self._objects[place] = []
        return self._put(source, day, hour, [*changed, *self._lines(day)])

    def backfills(self) -> tuple[Source, date]:
        """A recovered object: new events, and a few of the regular exports'."""
        day = self._rng.choice(_DAYS)
        known = [line for (source, *_), lines in sorted(self._objects.items()) for line in lines]
        again = [line | self._amount() for line in self._rng.sample(known, 2)]
        return self._put(Source.BACKFILL, day, self._rng.randrange(24), [*self._lines(day), *again])

    def _put(self, source: Source, day: date, hour: int, lines: list[dict[str, Any]]) -> tuple[Source, date]:
        held = self._objects.setdefault((source, day, hour), [])
        held += lines
        self.deliver(day, held, hour=hour, source=source)
        return source, day

    def _lines(self, sent: date) -> list[dict[str, Any]]:
        days, count = [day for day in _DAYS if day <= sent], self._rng.randrange(1, 4)
        return [self._line(self._rng.choice(days), f"new-{self._vendor.lines}", sent) for _ in range(count)]

    def _line(self, day: date, event: str, sent: date) -> dict[str, Any]:
        return self._vendor.line(day, event, sent) | self._amount()

    def _amount(self) -> dict[str, Any]:
        amount = self._rng.choice((None, 1.25, 2.5, 10, 99.95))
        return {"event_properties": {} if amount is None else {"$revenue": amount, "currency": "EUR"}}


def read_beside_publishes(
    hand: Hand,
    catalog: str,
    promise: Promise,
    publishes: int,
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
    minutes: float = float("inf"),
) -> Account:
    """Publish so often, or for so many minutes, on this database; raises AssertionError for a failed publish."""
    account, started, rng = Account(catalog, promise), time.monotonic(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="readers-") as scratch, databases(catalog, Path(scratch)) as url_of:
        name = f"lake_{catalog}_{promise.name.lower()}"
        landing = _Landing(Path(scratch), rng)
        settings = {
            "landing_url": str(landing.landing), "warehouse_url": str(Path(scratch) / "warehouse"), "catalog_name": name,
            "projects": PROJECT, "calendar_start": "2026-01-01", **places(url_of, name, promise),
            # A correction may take a key from a final day; a large one would wait for an operator.
            "change_min_rows": 1_000_000,
        }  # fmt: skip
        order = functools.partial(_ordered, hand, settings, rng)
        order("load")
        with a_reader(settings) as ask:
            undone: str | None = None
            while account.publishes.total() < publishes and time.monotonic() < started + 60 * minutes:
                turn = account.publishes.total() + 1
                if undone is not None:
                    kind, undone, published = "release", None, order("release", day=undone)
                elif turn % _UNDONE_EVERY == 0:
                    kind, undone = "rollback", str(rng.choice(_DAYS))
                    published = order("undo", day=undone)
                    undone = undone if published else None
                else:
                    kind = rng.choice(("late facts", "corrections", "backfills"))
                    source, day = getattr(landing, kind.replace(" ", "_"))()
                    published = order("load", first=str(day), last=str(day), tables=_tables_of(source))
                account.publishes[kind] += bool(published)
                account.seen = ask()
                tell(f"{catalog} {promise} {account.publishes.total()}/{publishes}: {account.seen}")
    account.seconds = time.monotonic() - started
    return account


def _tables_of(source: Source) -> list[str]:
    return [name for name in _TABLES if SOURCE_OF_TABLE.get(name, source) is source]


def _ordered(hand: Hand, settings: dict[str, Any], rng: random.Random, do: str, **order: Any) -> int:
    span = {"first": str(_DAYS[0]), "last": str(_DAYS[-1])}
    whole = {**span, "tables": list(_TABLES), "seed": rng.random(), "pause": 0.0}
    answer = hand.ask({"settings": settings, "do": do, **whole, **order})
    assert "error" not in answer, answer
    return int(answer["published"])


def page_of(accounts: Sequence[Account]) -> Table:
    disagree = ("refined and aggregates disagree", "ledger and tables disagree")
    titles = ("publishes", "cuts", "cuts that changed", *disagree, "moments apart", "s apart", "s")
    page = Table("catalog", "promise", *titles, title="a reader beside publishes")
    for one in accounts:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(one.publishes.items()))
        seen = one.seen
        figures = (seen.cuts, seen.changed, seen.aggregates, seen.ledger, seen.moments)
        apart = f"{seen.seconds_apart:.1f}"
        publishes = f"{one.publishes.total()}: {kinds}"
        page.add_row(one.catalog, one.promise, publishes, *map(str, figures), apart, f"{one.seconds:.0f}")
    return page


def main() -> int:
    """Run, print the figures; 1 for a broken promise or a missed publish."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers", description=__doc__)
    parser.add_argument("--publishes", type=int, default=300, help="for each catalog and promise")
    parser.add_argument("--catalog", nargs="*", default=["sqlite", "postgresql"], choices=["sqlite", "postgresql"])
    parser.add_argument("--promise", nargs="*", type=promise_named, default=OF_DATABASES)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="most, for each catalog and promise")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    console = Console(width=160)
    tell = functools.partial(console.print, highlight=False)
    accounts = []
    with all_hands(1, MANY_LOADS) as (hand,):
        for catalog, promise in itertools.product(chosen.catalog, chosen.promise):
            bounds = (chosen.publishes, chosen.seed, tell, chosen.minutes)
            accounts.append(read_beside_publishes(hand, catalog, promise, *bounds))
            console.print(page_of(accounts[-1:]))
    console.print(page_of(accounts))
    return 0 if all(account.is_as_promised for account in accounts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
