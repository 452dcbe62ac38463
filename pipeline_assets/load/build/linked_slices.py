"""Linked slices exchange events, so the load publishes them together or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date

from pipeline_assets.domain.slices import Slice


def blocked_by(links: Iterable[tuple[Slice, Slice]], blocked: Collection[Slice]) -> dict[Slice, tuple[Slice, ...]]:
    """Slice -> the blocked slices that it is linked to, directly or through others; blocked slices are left out.

    `links` are pairs in either order: publishing one of the two alone would lose or double events.
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
    """The days of these slices, which are all of one project, for a rejection."""
    return tuple(key.event_date for key in sorted(tied))


def waiting_reason(days: Iterable[date]) -> str:
    """Why a slice waits for these days; the text is the same for the same days."""
    named = ", ".join(day.isoformat() for day in days)
    return f"shares events with {named}, which cannot be published now; alone it would lose or double them"


WAITING_HINT = "It is published together with them: load or recover those days, or accept their change with a reason"


def links_of(
    exchanged: Collection[tuple[Slice, Slice]], blocked: Collection[Slice], built: Collection[Slice]
) -> set[tuple[Slice, Slice]]:
    """The pairs of slices that are both built or blocked; a slice that is up to date links nothing."""
    relevant = {*blocked, *built}
    return {(left, right) for left, right in exchanged if left in relevant and right in relevant}
