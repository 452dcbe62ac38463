"""Tells a line of this vendor from any other JSON, whether or not its values can be read.

Contains: the keys that identify an exported event.
Add here: another sign of the vendor.
Does not contain: values (lines.py), judging an object (formats/whole_objects.py).
"""

from __future__ import annotations

import json

import msgspec

from pipeline_assets.formats.amplitude.lines import is_too_deep

OWN_KEYS = (
    "event_time", "event_type", "app", "uuid", "amplitude_id", "$insert_id", "client_event_time", "client_upload_time",
    "server_received_time", "server_upload_time", "processed_time",
)  # fmt: skip
"""Keys that the vendor's schema of a raw event file has on every event, without those that are usual elsewhere too, as `user_id`
and `platform`. Other formats have one of them at most: Segment none, PostHog `uuid`, AppsFlyer `event_time`, merged IDs
`amplitude_id`; so two of them make a line the vendor's."""
_LEAST = 2
OWN_FIELDS = f"{', '.join(OWN_KEYS[:4])} and other keys, of which an exported event has at least {_LEAST}"
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SCAN = json.JSONDecoder(parse_int=str, parse_float=str)


def line_keys(line: bytes) -> list[str] | None:
    """The keys of a line that is a JSON object in UTF-8, else None."""
    try:
        text = "" if is_too_deep(line) else line.decode("utf-8")
        return list(_MEMBERS.decode(text))
    except UnicodeDecodeError:
        return None
    except msgspec.DecodeError:
        # msgspec refuses lone surrogates, which real exports contain.
        try:
            members = _SCAN.decode(text.strip())
        except ValueError:
            return None
        return list(members) if isinstance(members, dict) else None


def is_own_line(line: bytes) -> bool:
    """Whether a line is a JSON object with the fields of this vendor."""
    keys = line_keys(line)
    return keys is not None and len(set(OWN_KEYS).intersection(keys)) >= _LEAST
