"""A rollback's time where a clock that was ahead stamped a publication."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.records import PublicationRecord
from pipeline_assets.domain.slices import EMPTY
from pipeline_assets.operations.rollback import published_by
from tests.unit.load.test_finality import KEY

NOW = datetime(2026, 2, 10, tzinfo=UTC)


def _published(*days: int) -> list[PublicationRecord]:
    return [
        PublicationRecord(
            "refined/events",
            KEY,
            number,
            0,
            EMPTY,
            EMPTY,
            Cause.of(CauseKind.DELIVERY),
            "run",
            published_at=(NOW + timedelta(days=day)).isoformat(),
            number=number,
        )
        for number, day in enumerate(days, 1)
    ]


@pytest.mark.parametrize(
    ("days", "back_to", "count"),
    [((-3, -2, -1), -2, 2), ((-3, 90, -1), -1, 3), ((-3, 90), 0, 2), ((-3, 90), -1, 1), ((-1,), -2, 0)],
)
def test_no_publication_was_made_later_than_now_or_than_one_that_followed(
    days: tuple[int, ...], back_to: int, count: int
) -> None:
    assert published_by(_published(*days), NOW + timedelta(days=back_to), NOW) == count
    assert published_by(_published(*days), len(days), NOW) == len(days)
