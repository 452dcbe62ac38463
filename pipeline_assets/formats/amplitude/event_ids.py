"""Identifies the event of a line without fully parsing it, to find out whether two objects hold the same events."""

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
    """A 64-bit number that is the same in every delivery of the event: a hash of its insert id, or else of its uuid.

    None if the event has neither, or if the line cannot be read.
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
