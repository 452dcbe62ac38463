"""The vendor's archive is believed only as far as it is checked."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from datetime import date

import pytest

from pipeline_assets.domain.days import Hour, HourRange
from pipeline_assets.domain.errors import ExportContentError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.formats import export_archive
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.formats.export_archive import Archive, opened_member, read_archive
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.export_api import zipped

DAY = date(2026, 2, 2)
HOURS = HourRange(Hour(DAY, 0), Hour(DAY, 23))
GRAMMAR = KeyGrammar(Settings().marker_pattern)
BODY = a_body(events_on(DAY, 20))


def _name(hour: int, shard: int = 0, project: str = PROJECT) -> str:
    return f"{project}/{project}_{DAY}_{hour}#{shard}.json.gz"


def _read(body: bytes, max_member_bytes: int = 1 << 20, hours: HourRange = HOURS) -> Archive:
    return read_archive(io.BytesIO(body), GRAMMAR, PROJECT, hours, max_member_bytes)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_member_is_found_by_hour_and_comes_out_byte_for_byte(compression: int) -> None:
    other = a_body(events_on(DAY, 3, prefix="o"))
    members = [(f"{PROJECT}/", b""), (_name(9, 4), other), (_name(9, 1), BODY), (_name(10), BODY)]
    body = zipped(members, compression=compression)
    archive = _read(body)
    assert {hour.hour: [one.shard for one in found] for hour, found in archive.members.items()} == {9: [1, 4], 10: [0]}
    first, second = archive.members[Hour(DAY, 9)]
    assert (first.size_bytes, second.size_bytes) == (len(BODY), len(other))
    with opened_member(io.BytesIO(body), second) as stored:
        assert stored.read() == other
    assert not archive.bad_hours


@pytest.mark.parametrize(("name", "said"), [
    ("../10001_2026-02-02_9#0.json.gz", "leads out of the archive"),
    ("/etc/passwd", "leads out of the archive"),
    (f"{PROJECT}/../../x_2026-02-02_9#0.json.gz", "leads out of the archive"),
    (f"..\\{PROJECT}\\10001_2026-02-02_9#0.json.gz", "leads out of the archive"),
    ("C:/10001_2026-02-02_9#0.json.gz", "leads out of the archive"),
    (_name(9, project="10002"), "is not of project 10001"),
    (f"{PROJECT}/10002_2026-02-02_9#0.json.gz", "names 10002, but lies in 10001/"),
    (f"{PROJECT}/deep/10001_2026-02-02_9#0.json.gz", "lies in a folder below"),
    (f"{PROJECT}/10001_2026-02-02_24#0.json.gz", "hour 24 is not one of 0 to 23"),
    (f"{PROJECT}/10001_2026-02-30_9#0.json.gz", "is not a date"),
    (f"{PROJECT}/10001_2026-02-02_9_complete", "no hourly file of events"),
    (f"{PROJECT}/readme.txt", "does not follow the grammar"),
    (f"{PROJECT}/10001_2026-02-02_9#0.json.gz\0.txt", "the name does not follow"),
])  # fmt: skip
def test_a_member_that_must_not_be_there_refuses_the_archive(name: str, said: str) -> None:
    with pytest.raises(ExportContentError, match=said):
        _read(_with_raw_name(name))


def _with_raw_name(name: str) -> bytes:
    """zipfile changes some names when writing, so they are put in afterwards."""
    stand_in = "x" * len(name.encode())
    return zipped([(stand_in, BODY)]).replace(stand_in.encode(), name.encode())


def test_hours_that_were_not_asked_for_and_names_that_are_there_twice_are_refused() -> None:
    with pytest.raises(ExportContentError, match="of an hour that was not asked for"):
        _read(zipped([(_name(9), BODY)]), hours=HourRange(Hour(DAY, 10), Hour(DAY, 11)))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped([(_name(9), BODY), (_name(9), BODY)])
    for body in (twice, zipped([(_name(9), BODY), (f"{PROJECT}/10001_{DAY}_09#0.json.gz", BODY)])):
        with pytest.raises(ExportContentError, match="twice"):
            _read(body)


@pytest.mark.parametrize(("bad", "said"), [
    (BODY[:-1], "truncated_gzip"),
    (b"", "empty_object"),
    (b"[1, 2]\n", "not_gzip"),
    (BODY + b"more", "trailing_garbage"),
])  # fmt: skip
def test_a_bad_member_costs_its_hour_alone(bad: bytes, said: str) -> None:
    archive = _read(zipped([(_name(8), BODY), (_name(9, 0), BODY), (_name(9, 1), bad), (_name(10), BODY)]))
    assert [hour.hour for hour in archive.members] == [8, 10]
    ((hour, error),) = archive.bad_hours.items()
    assert hour == Hour(DAY, 9)
    assert f"{_name(9, 1)} of export of 10001" in str(error)
    assert said in str(error)


def test_damage_that_only_the_zip_notices_costs_its_hour() -> None:
    body = zipped([(_name(8), BODY), (_name(9), gzip.compress(b"{}" * 10, mtime=0))])
    at = body.index(b"\x1f\x8b", body.index(_name(9).encode()))
    # Flag bits of the gzip header; the gzip itself is whole.
    damaged = body[: at + 4] + b"\x07" + body[at + 5 :]
    assert list(_read(damaged).bad_hours) == [Hour(DAY, 9)]


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_cut_archive_is_refused(kept: float) -> None:
    body = zipped([(_name(hour), BODY) for hour in range(10)])
    with pytest.raises(ExportContentError, match="is cut or damaged"):
        _read(body[: int(len(body) * kept)])


def test_bombs_are_refused_before_they_go_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: contents that unpack to a thousandfold, and many members. Outcome: each is refused by its named bound."""
    zeros = gzip.compress(b"\0" * (1 << 26), 9, mtime=0)
    for member in (zeros, BODY + b"\0" * (1 << 26)):
        with pytest.raises(ExportContentError, match=r"more than 200 times the .* Ask the vendor"):
            _read(zipped([(_name(9), member)], compression=zipfile.ZIP_DEFLATED), 1 << 30)
    with pytest.raises(ExportContentError, match="raise TIDEMARK_MAX_OBJECT_BYTES"):
        _read(zipped([(_name(9), BODY)]), 1000)
    monkeypatch.setattr(export_archive, "MOST_TOTAL_BYTES", 100_000)
    with pytest.raises(ExportContentError, match=r"are left of 100,000 for one answer.* Recover fewer hours"):
        _read(zipped([(_name(hour), BODY) for hour in range(20)]))


def test_an_encrypted_member_is_refused() -> None:
    body = bytearray(zipped([(_name(9), BODY)]))
    for mark, shift in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        body[body.index(mark) + shift] |= 1
    assert "is encrypted" in str(_read(bytes(body)).bad_hours[Hour(DAY, 9)])


def _with_an_end_in_its_end(body: bytes) -> bytes:
    """The second sign is part of the first one's record, and zipfile ignores it."""
    end = body.rindex(b"PK\x05\x06")
    return body[: end + 16] + b"PK\x05\x06" + body[end + 20 :]


def _with_the_end_of_a_large_one(body: bytes) -> bytes:
    """It gives the list's size in another record, which wins."""
    end = body.rindex(b"PK\x05\x06")
    size, offset = struct.unpack_from("<2L", body, end + 12)
    large = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 30, 30, size, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    return body[:end] + large + locator + body[end : end + 12] + struct.pack("<L", 10) + body[end + 16 :]


@pytest.mark.parametrize("forged", [bytes, _with_an_end_in_its_end, _with_the_end_of_a_large_one])
def test_a_list_of_names_without_end_is_not_read(
    forged: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: an answer of hardly more than names. Outcome: none of it is read."""
    body = forged(zipped([(_name(9, shard), BODY) for shard in range(30)]))
    assert len(zipfile.ZipFile(io.BytesIO(body)).namelist()) == 30
    monkeypatch.setattr(export_archive, "_MOST_DIRECTORY_BYTES", 1000)
    with pytest.raises(ExportContentError, match=r"lists its files in [0-9,]+ bytes, at most 1,000"):
        _read(body)
