"""The grammar of object keys in landing: parses and formats them, and locates days in key order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from string import Formatter

from pipeline_assets.domain.days import day_in
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.base import KeyStem

# ASCII classes, not \d: the vendor writes no digits of other scripts. 18 digits keep a shard within 64 bits.
_FIELDS = {
    "prefix": r"(?P<prefix>[0-9]+(?:-backfill)?)",
    "date": r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})",
    "hour": r"(?P<hour>[0-9]{1,2})",
}
# The vendor documents `#n` on every event file and omits it only from merged-ids files, whose names start with `-`.
# A name without `#n` is therefore a renamed event file, read as shard 0. Copiers encode `#` as in a URL.
_DELIVERY = re.compile(r"{prefix}_{date}_{hour}(?:(?:#|%23)(?P<shard>[0-9]{{1,18}}))?\.json\.gz".format(**_FIELDS))
# Names of event files that were cut, numbered by a copier, or lost their gzip. Reports of an hour have other names.
_OF_AN_HOUR = re.compile(
    r"(?s){prefix}_{date}_{hour}(?:[^0-9A-Za-z_.][^.]*|_[0-9]+)?(?:\.json(?:\.gz)?.*)?".format(**_FIELDS)
)
_MERGED_IDS = re.compile(r"-[0-9]+_{date}_{hour}\.json\.gz".format(**_FIELDS))


@dataclass(frozen=True)
class KeyGrammar:
    """Reads and writes keys below the landing root; `marker_pattern` is the setting of that name."""

    marker_pattern: str

    def __post_init__(self) -> None:
        """Raise SettingsError for a pattern whose names cannot be parsed again."""
        names = [field for _, field in self._pattern_parts() if field is not None]
        missing = [name for name in _FIELDS if name not in names]
        if missing:
            raise self._refused(f"lacks {', '.join(f'{{{name}}}' for name in missing)}")
        if sorted(names) != sorted(_FIELDS):
            raise self._refused("names a placeholder twice or an unknown one")
        if "/" in self.marker_pattern:
            raise self._refused("holds a slash, but markers lie beside the deliveries they complete")
        sample = self._marker_name("1", "2026-01-31", "5")
        if _DELIVERY.fullmatch(sample) or _MERGED_IDS.fullmatch(sample):
            raise self._refused(f"gives markers ({sample}) the name of a data file")

    def parse(
        self, source: Source, project_id: str, key: str, etag: str, size_bytes: int
    ) -> Delivery | Marker | UnrecognizedObject:
        """As `base.ObjectKeys`."""
        folder = source.prefix(project_id)
        name = key.removeprefix(f"{folder}/")
        if name == key or "/" in name:
            return self._unknown(source, project_id, key, _misplaced(key, folder))
        accepted = _accepted_prefixes(source, project_id)
        for is_marker, expression in self._expressions(accepted):
            match = expression.fullmatch(name)
            if match is None:
                continue
            fields = match.groupdict()
            arrival, hour = day_in(fields["date"]), int(fields["hour"])
            if arrival is None or hour > 23:
                wrong = f"hour {hour} is not one of 0 to 23" if arrival else f"{fields['date']} is not a date"
                return self._unknown(source, project_id, key, wrong)
            if fields["prefix"] not in accepted:
                return UnrecognizedObject(key, Oddity.WRONG_PREFIX, f"names {fields['prefix']}, but lies in {folder}/")
            batch = _batch(source, project_id, arrival)
            return (
                Marker(batch, hour, key)
                if is_marker
                else Delivery(batch, hour, int(fields["shard"] or 0), key, etag, size_bytes)
            )
        if _MERGED_IDS.fullmatch(name):
            return UnrecognizedObject(key, Oddity.MERGED_IDS, "the vendor's merged Amplitude IDs, not events")
        odd = self._unknown(source, project_id, key, "the name does not follow the grammar")
        begun = _OF_AN_HOUR.fullmatch(name)
        # An empty object of such a name is another exporter's marker.
        if begun is not None and size_bytes and begun["prefix"] in accepted:
            arrival, hour = day_in(begun["date"]), int(begun["hour"])
            if arrival is not None and hour <= 23:
                return replace(odd, batch=_batch(source, project_id, arrival), hour=hour)
        return odd

    def format_delivery(self, batch: BatchKey, hour: int, shard: int) -> str:
        """The vendor's key of an event file: hour (0 to 23, UTC) unpadded, shard after `#`."""
        prefix = batch.source.prefix(batch.project_id)
        return f"{prefix}/{prefix}_{batch.arrival_date.isoformat()}_{hour}#{shard}.json.gz"

    def format_marker(self, batch: BatchKey, hour: int) -> str:
        """The key of the marker that completes an hour (0 to 23, UTC; unpadded)."""
        prefix = batch.source.prefix(batch.project_id)
        return f"{prefix}/{self._marker_name(prefix, batch.arrival_date.isoformat(), str(hour))}"

    def stems(self, source: Source, project_id: str) -> tuple[KeyStem, ...]:
        """The key prefixes of deliveries and markers in the project's folder; sorted and distinct."""
        folder = source.prefix(project_id)
        stems = set()
        for prefix in _accepted_prefixes(source, project_id):
            stems.add(KeyStem(f"{folder}/{prefix}_", is_dated=True))
            text = f"{folder}/"
            for literal, field in self._pattern_parts():
                text += literal
                if field != "prefix":
                    stems.add(KeyStem(text, is_dated=field == "date"))
                    break
                text += prefix
        return tuple(sorted(stems))

    def _expressions(self, accepted: tuple[str, ...]) -> Iterator[tuple[bool, re.Pattern[str]]]:
        yield False, _DELIVERY
        # A pattern such as `{hour}{prefix}` is ambiguous unless the prefix is known.
        own_prefix = f"(?P<prefix>{'|'.join(map(re.escape, accepted))})"
        yield True, _marker_expression(self.marker_pattern, own_prefix)
        yield True, _marker_expression(self.marker_pattern, _FIELDS["prefix"])

    def _marker_name(self, prefix: str, day: str, hour: str) -> str:
        values = {"prefix": prefix, "date": day, "hour": hour}
        return "".join(literal + (values[field] if field else "") for literal, field in self._pattern_parts())

    def _pattern_parts(self) -> tuple[tuple[str, str | None], ...]:
        try:
            parts = tuple(Formatter().parse(self.marker_pattern))
        except ValueError as error:
            raise self._refused(f"has unbalanced braces ({error})") from None
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise self._refused("formats a placeholder; hours are read padded or not as they come")
        return tuple((literal, field) for literal, field, _, _ in parts)

    def _refused(self, reason: str) -> SettingsError:
        return SettingsError(
            "TIDEMARK_MARKER_PATTERN",
            f"{self.marker_pattern!r} {reason}",
            "Write a file name with {prefix}, {date} and {hour}, each once: {prefix}_{date}_{hour}_complete",
        )

    def _unknown(self, source: Source, project_id: str, key: str, reason: str) -> UnrecognizedObject:
        prefix = source.prefix(project_id)
        marker = self._marker_name(prefix, "YYYY-MM-DD", "H")
        expected = f"expected {prefix}/{prefix}_YYYY-MM-DD_H#n.json.gz or {prefix}/{marker}"
        return UnrecognizedObject(key, Oddity.UNKNOWN_NAME, f"{reason}; {expected}")


@lru_cache(maxsize=1 << 14)
def _batch(source: Source, project_id: str, arrival: date) -> BatchKey:
    """Cached so that all objects of a batch share one value."""
    return BatchKey(source, project_id, arrival)


def _accepted_prefixes(source: Source, project_id: str) -> tuple[str, ...]:
    """The folder makes a manual backfill with regular names a backfill; a backfill's name in the other folder is misplaced."""
    prefix = source.prefix(project_id)
    return (prefix,) if source is Source.REGULAR else (prefix, Source.REGULAR.prefix(project_id))


@lru_cache(maxsize=256)
def _marker_expression(pattern: str, prefix: str) -> re.Pattern[str]:
    fields = _FIELDS | {"prefix": prefix}
    parts = (re.escape(text) + (fields[name] if name else "") for text, name, _, _ in Formatter().parse(pattern))
    return re.compile("".join(parts))


def _misplaced(key: str, folder: str) -> str:
    if "//" in key:
        return "the key holds an empty segment (`//`) and cannot be read; copy the object to a key without"
    if not key.startswith(f"{folder}/"):
        return f"the key does not lie in {folder}/"
    return f"the object lies in a folder below {folder}/"
