"""A simulated bucket of many years: it generates its listing on demand, in key order."""

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
from resources.landing.bucket import Bucket, Listed
from resources.landing.store import LandingStore

_PAGE = 1_000
"""Keys per page of S3."""
PAGE_SECONDS = 0.03
"""Assumed time of S3 per page; within its region it is 20 to 100 ms."""


class SimulatedLanding(LandingStore):
    """Landing in a bucket with simulated requests; everything else is the base class's."""

    def __init__(self, size: Size, marker_pattern: str, more_days: int = 0, recovered: Sequence[date] = ()) -> None:
        """Take `more_days`, days that arrived after the recorded ones, and `recovered`, days of the backfill prefix."""
        super().__init__(Bucket("simulated", ""), EXPORT_FORMAT.keys(marker_pattern))
        days = [date.fromordinal(size.all_days[0].toordinal() + number) for number in range(size.days + more_days)]
        self._days = {Source.REGULAR.prefix(project): days for project in size.names}
        self._days |= {Source.BACKFILL.prefix(project): sorted(recovered) for project in size.names}
        self._counting = threading.Lock()
        self.pages = 0
        """Number of requests that a bucket would have received."""

    def _opened(self) -> Any:
        """Do nothing: there is no bucket to connect to."""

    def _scan(self, folder: str, after: str = "", before: str = "") -> Iterator[Listed]:
        self._page()
        named = 0
        stem = f"{folder}/{folder}_"
        days = self._days.get(folder, [])
        start = bisect_left(days, after.removeprefix(stem)[:10], key=date.isoformat) if after.startswith(stem) else 0
        # Names after this folder's dates would have another prefix; there are none.
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
