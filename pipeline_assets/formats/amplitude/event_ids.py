"""Which event a line is, without parsing the line: enough to tell whether two objects hold the same events.

Contains: the ids of a line as one number.
Add here: nothing that needs the values of an event.
Does not contain: identity and winner among rows (domain/identity.py), parsing (lines.py).
"""

from __future__ import annotations

import hashlib

import msgspec

from pipeline_assets.domain.identity import named


class _Ids(msgspec.Struct, gc=False):
    app: int | None = None
    uuid: str | None = None
    insert_id: str | None = msgspec.field(default=None, name="$insert_id")
    device_id: str | None = None


_DECODER = msgspec.json.Decoder(_Ids)


def event_number(line: bytes) -> int | None:
    """64 bits that are the same wherever the event is delivered, by its insert id, else its uuid; None where it has neither.

    None as well for a line that cannot be read: it says nothing.
    """
    try:
        ids = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    insert_id, uuid = named(ids.insert_id), named(ids.uuid)
    if insert_id is None and uuid is None:
        return None
    key = ("insert_id", ids.app, named(ids.device_id), insert_id) if insert_id is not None else ("uuid", uuid)
    text = repr(key).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
