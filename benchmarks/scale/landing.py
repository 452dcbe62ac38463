"""A bucket of many years that holds nothing: its listing is made when it is asked for, in the order of keys.

Contains: keys between two bounds, and how many pages a bucket would have answered with.
Add here: another thing that a bucket of this size may list.
Does not contain: what is made of a listing (resources/landing/store.py, which this one is).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, cast

from benchmarks.scale.rows import etag
from benchmarks.scale.sizes import HOURS, SHARDS, Size
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.registry import EXPORT_FORMAT
from resources.landing.backends import Bucket
from resources.landing.place import Listed
from resources.landing.store import LandingStore

_PAGE = 1_000
"""Keys that S3 answers a request with."""
PAGE_SECONDS = 0.03
"""How long S3 takes for a page, by assumption: within its region it is 20 to 100 ms."""


class SimulatedLanding(LandingStore):
    """Landing in a bucket; everything but the requests is the store's own."""

    def __init__(self, size: Size, marker_pattern: str, more_days: int = 0, recovered: Sequence[date] = ()) -> None:
        """`more_days`: so many days arrived after those that are on record. `recovered`: days of the backfill prefix."""
        super().__init__(Bucket("simulated", ""), EXPORT_FORMAT.keys(marker_pattern))
        days = [date.fromordinal(size.all_days[0].toordinal() + number) for number in range(size.days + more_days)]
        self._days = {Source.REGULAR.prefix(project): days for project in size.names}
        self._days |= {Source.BACKFILL.prefix(project): sorted(recovered) for project in size.names}
        self._counting = threading.Lock()
        self.pages = 0
        """Requests that a bucket would have been sent."""

    def _opened(self) -> Any:
        """Nothing: there is no bucket to connect to."""

    def _scan(self, folder: str, after: str = "", before: str = "") -> Iterator[Listed]:
        self._page()
        named = 0
        stem = f"{folder}/{folder}_"
        days = self._days.get(folder, [])
        start = bisect_left(days, after.removeprefix(stem)[:10], key=date.isoformat) if after.startswith(stem) else 0
        # Behind the dates of this folder lie names that carry another prefix; there are none.
        start = len(days) if after > f"{stem}:" else start
        for day in days[start:]:
            for key, entry_etag, size in self._keys_of(folder, day):
                if before and key >= before:
                    return
                if key > after:
                    named += 1
                    if named % _PAGE == 1 and named > 1:
                        self._page()
                    yield Listed(key, entry_etag, size)

    def _page(self) -> None:
        with self._counting:
            self.pages += 1
        time.sleep(PAGE_SECONDS)

    def _keys_of(self, folder: str, day: date) -> list[tuple[str, str, int]]:
        batch = BatchKey(Source.REGULAR, folder, day)
        keys = self._keys
        found = [
            (keys.format_delivery(batch, hour, shard), etag(day, hour, shard), 500_000)
            for hour in range(HOURS)
            for shard in range(SHARDS)
        ]
        found += [(keys.format_marker(batch, hour), '"marker"', 1) for hour in range(HOURS)]
        return cast("list[tuple[str, str, int]]", sorted(found))
