"""Objects written to landing are whole, new and in place; in folder and bucket alike."""

from __future__ import annotations

import errno
import io
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.errors import DiskFullError, LandingAccessError, LandingUnavailableError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from resources.landing import bucket as backends
from resources.landing.store import LandingStore
from tests.support.s3 import BUCKET, a_server_that_answers

DAY = date(2026, 2, 2)
KEY = "1-backfill/1-backfill_2026-02-02_10#1.json.gz"
MARKER = "1-backfill/1-backfill_2026-02-02_10_complete"


@dataclass
class Landing:
    store: LandingStore
    names: Callable[[], list[str]]
    body: Callable[[str], bytes]


@pytest.fixture(params=["folder", "bucket"])
def landing(request: pytest.FixtureRequest, tmp_path: Path) -> Landing:
    if request.param == "folder":
        store = request.getfixturevalue("store")
        return Landing(store, lambda: _files(tmp_path), lambda key: (tmp_path / key).read_bytes())
    bucket = request.getfixturevalue("bucket")
    return Landing(
        LandingStore.from_settings(Settings(landing_url=f"s3://{BUCKET}/in")),
        lambda: sorted(found.key.removeprefix("in/") for found in bucket.objects.all()),
        lambda key: bucket.Object(f"in/{key}").get()["Body"].read(),
    )


@pytest.fixture
def store(tmp_path: Path) -> LandingStore:
    return LandingStore.from_settings(Settings(landing_url=str(tmp_path)))


@pytest.mark.parametrize(("code", "error", "said"), [
    (errno.EPERM, LandingAccessError, "one file system that has hard links"),
    (errno.EIO, LandingUnavailableError, "Input/output error"),
])  # fmt: skip
def test_a_link_that_cannot_be_made_is_named_and_nothing_is_left(
    tmp_path: Path, store: LandingStore, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], said: str
) -> None:
    """A file system without hard links, and a disk that fails."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(error, match=said):
        store.create(KEY, io.BytesIO(b"first"))
    assert _files(tmp_path) == []


def test_an_object_is_created_once_and_never_overwritten(landing: Landing) -> None:
    assert landing.store.create(KEY, io.BytesIO(b"first"))
    assert landing.store.create(MARKER, io.BytesIO())
    assert not landing.store.create(KEY, io.BytesIO(b"second"))
    assert (landing.names(), landing.body(KEY)) == ([KEY, MARKER], b"first")
    listing = landing.store.list(Source.BACKFILL, ["1"], DAY, DAY)
    (delivery,), (marker,) = listing.deliveries, listing.markers
    assert (delivery.key, delivery.hour, delivery.shard, marker.hour) == (KEY, 10, 1, 10)
    assert landing.store.open(delivery.key, delivery.etag).read() == b"first"


def test_a_large_object_is_not_held_in_memory(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "IN_MEMORY_BYTES", 1000)
    body = os.urandom(3 * 1024**2)
    for content in (body, body[::-1]):
        assert landing.store.create(KEY, io.BytesIO(content)) == (content == body)
        assert landing.body(KEY) == body


class _Failing(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().read(10 if size in (None, -1) else min(10, size or 0))


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path, store: LandingStore) -> None:
    with pytest.raises(DiskFullError, match="Make room in"):
        store.create(KEY, _Failing(b"x" * 30))
    assert _files(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_after_a_day_and_nothing_else(tmp_path: Path, store: LandingStore) -> None:
    staging, long_ago = tmp_path / ".tidemark-writing", time.time() - 2 * 24 * 3600
    staging.mkdir()
    young, old, foreign = (staging / name for name in ("0" * 32, "1" * 32, "notes.txt"))
    for path in (young, old, foreign):
        path.write_bytes(b"half")
        os.utime(path, (long_ago, long_ago))
    os.utime(young)
    assert store.create(KEY, io.BytesIO(b"whole"))
    assert sorted(staging.iterdir()) == [young, foreign]
    assert store.list(Source.BACKFILL, ["1"], DAY, DAY).odd_objects == ()


def test_a_folder_that_leads_out_of_landing_is_not_written_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "landing"
    root.mkdir()
    (root / "1-backfill").symlink_to(elsewhere)
    store = LandingStore.from_settings(Settings(landing_url=str(root)))
    with pytest.raises(LandingAccessError, match="leads out of landing"):
        store.create(KEY, io.BytesIO(b"x"))
    assert list(elsewhere.iterdir()) == []
    # A link in the object's place is a taken name, wherever it leads.
    (root / "1-backfill").unlink()
    (root / "1-backfill").mkdir()
    (root / KEY).symlink_to(elsewhere / "target")
    assert not store.create(KEY, io.BytesIO(b"x"))
    assert list(elsewhere.iterdir()) == []


def test_a_bucket_that_may_only_be_read_says_which_right_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "<Error><Code>AccessDenied</Code><Message>No</Message></Error>"
    with a_server_that_answers(lambda _: (403, body)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        store = LandingStore.from_settings(Settings(landing_url=f"s3://{BUCKET}"))
        with pytest.raises(LandingAccessError, match="the right to create objects below the backfill prefix"):
            store.create(KEY, io.BytesIO(b"x"))


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink())


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ESTALE])
def test_an_answer_of_a_file_server_that_was_lost_is_no_failure(
    tmp_path: Path, store: LandingStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It made the link and says that it could not, or that the very file being written has the name."""
    link = os.link

    def late(*words: Any, **options: Any) -> None:
        link(*words, **options)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", late)
    assert store.create(KEY, io.BytesIO(b"first"))
    assert (_files(tmp_path), (tmp_path / KEY).read_bytes()) == ([KEY], b"first")


def test_a_backup_that_links_what_is_being_written_makes_no_foreign_object_ours(
    tmp_path: Path, store: LandingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.create(KEY, io.BytesIO(b"theirs"))
    link = os.link

    def backed_up(staged: Path, *words: Any, **options: Any) -> None:
        link(staged, tmp_path / "backup")
        link(staged, *words, **options)

    monkeypatch.setattr(os, "link", backed_up)
    assert not store.create(KEY, io.BytesIO(b"ours"))
    assert (tmp_path / KEY).read_bytes() == b"theirs"


def test_a_folder_that_cannot_be_flushed_is_trusted_and_one_that_fails_is_not(
    store: LandingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, codes = os.fsync, [errno.EINVAL]

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(codes[-1], os.strerror(codes[-1]))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.create(KEY, io.BytesIO(b"x"))
    codes.append(errno.EIO)
    with pytest.raises(LandingUnavailableError):
        store.create(MARKER, io.BytesIO())
