"""Golden totals in landing: `golden/{date}.csv`, one small file per day, beside the folders of projects."""

from __future__ import annotations

from datetime import date

from pipeline_assets.domain.errors import ObjectMovedError, UnreadableObjectError
from pipeline_assets.domain.golden import GoldenFault, GoldenReading, GoldenSource
from pipeline_assets.formats.golden_csv import MOST_BYTES, PREFIX, GoldenNames, golden_day, golden_key, read_file
from resources.landing.place import Listed
from resources.landing.store import LandingStore


def read_landing(landing: LandingStore, names: GoldenNames, first: date, last: date) -> GoldenReading:
    """Return the totals of the days from `first` to `last`; lists the folder once and reads each file once.

    A file that cannot be read is returned as a fault beside the totals of the others. Raises LandingAccessError and
    LandingUnavailableError where landing itself cannot be read.
    """
    found = landing.list_beside(PREFIX, golden_key(first), golden_key(last))
    read = [_read(landing, entry, names) for entry in found]
    return GoldenReading(
        GoldenSource.LANDING,
        frozenset(day for one in read for day in one.days),
        tuple(total for one in read for total in one.totals),
        tuple(fault for one in read for fault in one.faults),
        (first, last),
    )


def _read(landing: LandingStore, entry: Listed, names: GoldenNames) -> GoldenReading:
    day = golden_day(entry.key)
    if day is None:
        hint = f"Name it {golden_key(date(2026, 1, 31))}, or move it out of {PREFIX}/"
        return _fault(entry.key, "is not named after a day, so that nothing of it was compared", hint)
    if entry.oddity:
        return _fault(entry.key, f"is {entry.oddity}", "Put a plain file in its place")
    if entry.size_bytes > MOST_BYTES:
        reason = f"has {entry.size_bytes:,} bytes, more than the {MOST_BYTES:,} of a file of totals; it was not read"
        return _fault(entry.key, reason, "Put totals of a day there, one line for each project and measure")
    try:
        with landing.open(entry.key, entry.etag) as content:
            return read_file(entry.key, day, content.read(MOST_BYTES + 1), names)
    except (UnreadableObjectError, ObjectMovedError) as error:
        return _fault(entry.key, error.reason, error.hint)


def _fault(key: str, reason: str, hint: str) -> GoldenReading:
    return GoldenReading(GoldenSource.LANDING, faults=(GoldenFault(key, reason, hint),))
