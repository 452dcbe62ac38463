"""Slices wait when others that share events with them cannot be published."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.build.verdicts import blocked_by, links_of, waiting_reason

A, B, C, D = (Slice(date(2026, 2, 2) + timedelta(days=n), "1") for n in range(4))


@pytest.mark.parametrize(
    ("links", "blocked", "expected"),
    [
        ([], {A}, {}),
        ([(A, B)], set(), {}),
        ([(A, B)], {A}, {B: (A,)}),
        ([(B, A)], {A}, {B: (A,)}),
        ([(A, B), (B, C)], {A}, {B: (A,), C: (A,)}),
        ([(A, B), (C, D)], {A}, {B: (A,)}),
        ([(A, B), (B, C)], {A, C}, {B: (A, C)}),
        ([(A, B), (B, A)], {A, B}, {}),
    ],
)
def test_what_is_tied_to_a_blocked_slice_is_held_back(
    links: list[tuple[Slice, Slice]], blocked: set[Slice], expected: dict[Slice, tuple[Slice, ...]]
) -> None:
    assert blocked_by(links, blocked) == expected


def test_a_slice_that_stands_ties_nothing() -> None:
    assert links_of({(A, B), (B, C)}, blocked={C}, built={B}) == {(B, C)}


def test_the_reason_names_the_days() -> None:
    assert waiting_reason([A.event_date, C.event_date]).startswith("shares events with 2026-02-02, 2026-02-04,")
