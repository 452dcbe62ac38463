"""Slices that give events to each other are published together or not at all.

Contains: from pairs of slices to the ones that must wait.
Add here: another reason for slices to stand or fall together.
Does not contain: finding the pairs (the kind's builder: refined.py) and the checks (verdicts.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date

from pipeline_assets.domain.slices import Slice


def blocked_by(links: Iterable[tuple[Slice, Slice]], blocked: Collection[Slice]) -> dict[Slice, tuple[Slice, ...]]:
    """Slice -> the blocked slices it is tied to, over any number of others; blocked ones themselves are left out.

    `links` are pairs in either order, of which the published state would lose or double events if one of the two were
    published alone.
    """
    neighbours: dict[Slice, set[Slice]] = {}
    for left, right in links:
        neighbours.setdefault(left, set()).add(right)
        neighbours.setdefault(right, set()).add(left)
    tied_to: dict[Slice, set[Slice]] = {}
    for start in sorted(neighbours.keys() & set(blocked)):
        reached, to_visit = {start}, [start]
        while to_visit:
            for neighbour in neighbours[to_visit.pop()] - reached:
                reached.add(neighbour)
                to_visit.append(neighbour)
        for key in reached - set(blocked):
            tied_to.setdefault(key, set()).add(start)
    return {key: tuple(sorted(tied)) for key, tied in sorted(tied_to.items())}


def waits_for(tied: Collection[Slice]) -> tuple[date, ...]:
    """Their days as a rejection names them; all are of one project."""
    return tuple(key.event_date for key in sorted(tied))


def waiting_reason(days: Iterable[date]) -> str:
    """Why a slice waits for these days; the same text as long as it does."""
    named = ", ".join(day.isoformat() for day in days)
    return f"shares events with {named}, which cannot be published now; alone it would lose or double them"


WAITING_HINT = "It is published together with them: load or recover those days, or accept their change with a reason"


def links_of(
    exchanged: Collection[tuple[Slice, Slice]], blocked: Collection[Slice], built: Collection[Slice]
) -> set[tuple[Slice, Slice]]:
    """The pairs that tie a built slice to another built one or to a blocked one; one that is up to date ties nothing."""
    relevant = {*blocked, *built}
    return {(left, right) for left, right in exchanged if left in relevant and right in relevant}
