"""The grammar of object keys: what an object in landing is, by its name alone.

Lives here: parse and format of deliveries and markers, the oddities. Put here: another form of name the vendor uses.
Keep out: listing (resources/landing_store.py). Source: the vendor's export documentation, `project_date_H#n.json.gz`
with the hour not zero-padded.
"""

from __future__ import annotations

import re
from datetime import date
from string import Formatter

from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, OddObject
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.slices import Source

_DATE = r"(?P<date>\d{4}-\d{2}-\d{2})"
_HOUR = r"(?P<hour>\d{1,2})"
_DELIVERY = re.compile(rf"(?P<prefix>\d+(?:-backfill)?)_{_DATE}_{_HOUR}(?:#(?P<shard>\d{{1,9}}))?\.json\.gz", re.ASCII)
_MERGED_IDS = re.compile(rf"-\d+_{_DATE}_{_HOUR}\.json\.gz", re.ASCII)
_EXPECTED = "expected {prefix}_YYYY-MM-DD_H#N.json.gz or a marker"


class KeyGrammar:
    """Parses and formats keys; the marker's form is a setting because the vendor does not document it."""

    def __init__(self, marker_pattern: str) -> None:
        """Compile `marker_pattern`, with the placeholders {prefix}, {date} and {hour}; raises SettingsError."""
        self._marker_pattern = marker_pattern
        self._marker = re.compile(_compile(marker_pattern), re.ASCII)

    def parse(self, source: Source, project_id: str, key: str, etag: str, size_bytes: int) -> Delivery | Marker | OddObject:
        """Say what the object below `source.prefix(project_id)` is; never raises."""
        folder = source.prefix(project_id)
        if not key.startswith(f"{folder}/"):
            return OddObject(key, Oddity.WRONG_PREFIX, f"lies outside {folder}/")
        name = key[len(folder) + 1 :]
        if "/" in name:
            return OddObject(key, Oddity.UNKNOWN_NAME, f"lies in a folder of its own; {_EXPECTED.format(prefix=folder)}")
        if _MERGED_IDS.fullmatch(name):
            return OddObject(key, Oddity.MERGED_IDS, "merged Amplitude IDs, not an event export")
        match = _DELIVERY.fullmatch(name) or self._marker.fullmatch(name)
        if match is None:
            return OddObject(key, Oddity.UNKNOWN_NAME, _EXPECTED.format(prefix=folder))
        # The vendor's own manual export writes ordinary names, so both forms are right in the backfill folder.
        allowed = {folder, project_id} if source is Source.BACKFILL else {folder}
        if match["prefix"] not in allowed:
            return OddObject(key, Oddity.WRONG_PREFIX, f"is named for {match['prefix']} but lies in {folder}/")
        arrival, hour = _day(match["date"]), int(match["hour"])
        if arrival is None or hour > 23:
            return OddObject(key, Oddity.UNKNOWN_NAME, f"names no real hour: {match['date']} {match['hour']}")
        batch = BatchKey(source, project_id, arrival)
        if "shard" not in match.groupdict():
            return Marker(batch, hour, key)
        return Delivery(batch, hour, int(match["shard"] or 0), key, etag, size_bytes)

    def format_delivery(self, batch: BatchKey, hour: int, shard: int) -> str:
        """The full key the exporter gives a delivery."""
        folder = batch.source.prefix(batch.project_id)
        return f"{folder}/{folder}_{batch.arrival_date.isoformat()}_{hour}#{shard}.json.gz"

    def format_marker(self, batch: BatchKey, hour: int) -> str:
        """The full key of an hour's marker."""
        folder = batch.source.prefix(batch.project_id)
        name = self._marker_pattern.format(prefix=folder, date=batch.arrival_date.isoformat(), hour=hour)
        return f"{folder}/{name}"


def _compile(pattern: str) -> str:
    groups = {"prefix": r"(?P<prefix>\d+(?:-backfill)?)", "date": _DATE, "hour": _HOUR}
    seen: list[str] = []
    expression = ""
    try:
        for literal, name, _, _ in Formatter().parse(pattern):
            expression += re.escape(literal)
            if name is not None:
                seen.append(name)
                expression += groups[name]
    except (KeyError, ValueError) as error:
        raise _bad_pattern(pattern, f"cannot be read ({error})") from None
    if sorted(seen) != sorted(groups):
        raise _bad_pattern(pattern, "does not name each of {prefix}, {date} and {hour} once")
    return expression


def _bad_pattern(pattern: str, reason: str) -> SettingsError:
    return SettingsError("TIDEMARK_MARKER_PATTERN", f"{pattern!r} {reason}", "Example: {prefix}_{date}_{hour}_complete")


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
