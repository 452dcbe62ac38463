"""Landing behaves the same in folder and bucket, and its failures name an operator's remedy."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest
from botocore.exceptions import EndpointConnectionError
from dagster import EnvVar
from dagster_aws.s3 import S3Resource
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from obstore.store import LocalStore

from pipeline_assets.domain.days import asked_for, describe_strays, first_believable
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Listing, Oddity
from pipeline_assets.domain.errors import (
    LandingAccessError,
    LandingUnavailableError,
    ObjectMovedError,
    SettingsError,
    TidemarkError,
    UnreadableObjectError,
)
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from resources.failpoints import Failpoint
from resources.landing import bucket as landing_places
from resources.landing import folder as landing_folder
from resources.landing import store as landing_store
from resources.landing.bucket import Bucket, Listed
from resources.landing.folder import Folder
from resources.landing.store import LandingStore, each_at_once
from tests.support.s3 import a_server_that_answers

DAY = date(2026, 2, 2)
_REST = '<LastModified>2026-02-02T00:00:00Z</LastModified><ETag>"e"</ETag>'
_numbers = count(1)


@dataclass(frozen=True)
class Place:
    """Landing, with the vendor's writes."""

    store: LandingStore
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]

    def fill(self, *keys: str) -> None:
        for key in keys:
            self.put(key, b"x")


@dataclass(frozen=True)
class Server:
    """An S3 server that records its requests."""

    url: str
    requests: list[tuple[str, str]]

    @property
    def listings(self) -> int:
        return sum("list-type=2" in query for _, query in self.requests)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[Server]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    server = Server(f"http://{host}:{port}", [])
    http: Any = moto._server
    serve = http.app

    def noting(environ: dict[str, Any], start_response: Any) -> Any:
        server.requests.append((environ["REQUEST_METHOD"], environ["QUERY_STRING"]))
        return serve(environ, start_response)

    http.app = noting
    yield server
    moto.stop()
    http.server_close()


@pytest.fixture(autouse=True)
def only_these_aws_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    values = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1"}
    values |= {"CONFIG_FILE": str(tmp_path / "none"), "SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    values |= {"EC2_METADATA_DISABLED": "true"}
    for name, value in values.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    root = tmp_path / "land #1 ü%23"
    root.mkdir()

    def put(key: str, content: bytes) -> None:
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return Place(a_store(str(root)), put, lambda key: (root / key).unlink())


@pytest.fixture
def bucket(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    name = f"landing-{next(_numbers)}"
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket=name)
    s3_server.requests.clear()
    # Straight into the server's memory: seconds instead of half a minute over HTTP.
    memory = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    return Place(
        a_store(f"s3://{name}/exports #1/ü"),
        lambda key, content: memory.put_object(name, f"exports #1/ü/{key}", content),
        lambda key: client.delete_object(Bucket=name, Key=f"exports #1/ü/{key}"),
    )


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def whole(store: LandingStore, key: str, etag: str) -> bytes:
    with store.open(key, etag) as content:
        return content.read()


def a_store(
    url: str, *, s3: S3Resource | None = None, pattern: str = "{prefix}_{date}_{hour}_complete"
) -> LandingStore:
    return LandingStore.from_settings(Settings(landing_url=url, marker_pattern=pattern), s3)


def a_key(*, day: date = DAY, hour: int | str = 5, shard: int = 0, project: str = "10001", folder: str = "") -> str:
    return f"{folder or project}/{project}_{day}_{hour}#{shard}.json.gz"


def listed(
    store: LandingStore,
    *,
    source: Source = Source.REGULAR,
    projects: tuple[str, ...] = ("10001",),
    first: date = DAY,
    last: date = DAY,
) -> Listing:
    return store.list(source, projects, first, last)


def keys(listing: Listing) -> list[str]:
    return [delivery.key for delivery in listing.deliveries]


def the_delivery(place: Place) -> Delivery:
    (found,) = listed(place.store).deliveries
    return found


@contextmanager
def an_s3_that_answers(
    status: int, code: str, *, first_listing: tuple[str, ...] = (), attempts: int = 2
) -> Iterator[LandingStore]:
    """A bucket of a server that fails every request the same way, after one listing of the given keys."""
    objects = "".join(f"<Contents><Key>{key}</Key><Size>1</Size>{_REST}</Contents>" for key in first_listing)
    answers = [(200, f"<ListBucketResult>{objects}</ListBucketResult>")] if first_listing else []
    failure = (status, f"<Error><Code>{code}</Code><Message>because</Message></Error>")
    with a_server_that_answers(lambda _: answers.pop() if answers else failure) as url:
        yield a_bucket_at(url, attempts)


def a_bucket_at(url: str, attempts: int = 2) -> LandingStore:
    return a_store("s3://bucket", s3=S3Resource(endpoint_url=url, max_attempts=attempts))


def refusals(store: LandingStore, error: type[TidemarkError], match: str | None = None) -> list[TidemarkError]:
    """Of a listing, and of an object's reading."""
    with pytest.raises(error, match=match) as on_list:
        listed(store)
    with pytest.raises(error, match=match) as on_read:
        whole(store, a_key(), '"e"')
    return [on_list.value, on_read.value]


def test_a_folder_is_listed_whole_whatever_its_names(place: Place) -> None:
    assert list(place.store.list_folder("golden")) == []
    for key in ("golden/2026-02-02.csv", "golden/notes.txt", "golden-of-others/2026-02-02.csv", a_key()):
        place.put(key, b"dayday")
    first, second = place.store.list_folder("golden")
    sizes = [(one.key, one.size_bytes) for one in (first, second)]
    assert sizes == [("golden/2026-02-02.csv", 6), ("golden/notes.txt", 6)]
    assert whole(place.store, first.key, first.etag) == b"dayday"
    assert place.store.find(first.key) == first


def test_a_folder_is_listed_between_two_keys(place: Place) -> None:
    keys = [f"golden/2026-02-{number:02}.csv" for number in range(1, 5)]
    for key in keys:
        place.put(key, b"day")
    assert [one.key for one in place.store.list_folder("golden", keys[1], keys[2])] == keys[1:3]


def test_a_bucket_is_asked_for_nothing_beyond_the_last_key() -> None:
    store, asked = a_store("s3://bucket"), list[tuple[str, str]]()

    class Place(Bucket):
        def list_plainly(self, folder: str, after: str) -> Iterator[Listed]:
            asked.append((folder, after))
            yield from (Listed(f"golden/{name}", "", 0) for name in "bc")
            raise AssertionError("the listing goes on")

        def require(self) -> None: ...

    store._place = Place(**vars(store._place))
    assert [one.key for one in store.list_folder("golden", "golden/b", "golden/b")] == ["golden/b"]
    assert asked == [("golden", "golden/")]


def test_a_window_holds_its_days_and_nothing_else(place: Place) -> None:
    days = [DAY + timedelta(days=offset) for offset in range(-2, 3)]
    for day in days:
        place.put(a_key(day=day), b"x")
        place.put(f"10001/10001_{day}_5_complete", b"")
    listing = listed(place.store, first=days[1], last=days[3])
    assert [delivery.batch.arrival_date for delivery in listing.deliveries] == days[1:4]
    assert [marker.batch.arrival_date for marker in listing.markers] == days[1:4]
    assert min(listing.arrival_days["10001"]) == days[0]
    assert listing.odd_objects == ()


def test_sources_and_projects_stay_apart_and_one_without_a_folder_has_nothing(place: Place) -> None:
    assert listed(place.store) == Listing()
    place.fill(*(a_key(project=project) for project in ("10001", "10002", "100012", "10001-backfill")))
    assert keys(listed(place.store, projects=("10002", "10001"))) == [a_key(), a_key(project="10002")]
    backfill = listed(place.store, source=Source.BACKFILL)
    assert keys(backfill) == [a_key(project="10001-backfill")]
    assert backfill.deliveries[0].batch == BatchKey(Source.BACKFILL, "10001", DAY)


def test_a_backfill_folder_is_listed_under_both_of_its_names(place: Place) -> None:
    before = DAY - timedelta(days=400)
    expected = [a_key(project=prefix, folder="10001-backfill") for prefix in ("10001-backfill", "10001")]
    place.fill(*expected, a_key(day=before, folder="10001-backfill"))
    listing = listed(place.store, source=Source.BACKFILL)
    assert (sorted(keys(listing)), min(listing.arrival_days["10001"])) == (sorted(expected), before)


def test_a_first_arrival_may_lie_after_the_window_or_be_a_marker(place: Place) -> None:
    place.put(a_key(day=DAY + timedelta(days=9)), b"x")
    place.put(f"10001/10001_{DAY + timedelta(days=8)}_complete", b"")
    place.put(f"10001/10001_{DAY + timedelta(days=8)}_23_complete", b"full")
    listing = listed(place.store)
    assert listing.deliveries == ()
    assert min(listing.arrival_days["10001"]) == DAY + timedelta(days=8)


def test_odd_objects_are_reported_and_never_loaded(place: Place) -> None:
    unknown = ("_24#0.json.gz", "_5 copy.json.gz", "_5%25231.json.gz", "_ü", f"/{DAY}_5#0.json.gz")
    odd = {f"10001/10001_{DAY}{name}": Oddity.UNKNOWN_NAME for name in unknown} | {
        f"10001/-189524_{DAY}_5.json.gz": Oddity.MERGED_IDS,
        f"10001/10001-backfill_{DAY}_5#0.json.gz": Oddity.WRONG_PREFIX,
    }
    place.fill(*odd, a_key(shard=1))
    listing = listed(place.store)
    assert keys(listing) == [a_key(shard=1)]
    assert {found.key: found.oddity for found in listing.odd_objects} == odd


def test_odd_objects_behind_the_days_are_seen_in_a_folder_only(place: Place) -> None:
    place.fill("10001/#before.txt", "10001/notes.txt", a_key())
    listing = listed(place.store)
    seen = ["10001/#before.txt"] if place.store.url.startswith("s3:") else ["10001/#before.txt", "10001/notes.txt"]
    assert (keys(listing), [found.key for found in listing.odd_objects]) == ([a_key()], seen)


def test_an_encoded_name_is_read_as_what_it_is_and_as_the_object_that_has_it(place: Place) -> None:
    bodies = {f"10001/10001_{DAY}_7#0.json.gz": b"vendor", f"10001/10001_{DAY}_7%230.json.gz": b"copier"}
    for key, body in bodies.items():
        place.put(key, body)
    found = listed(place.store).deliveries
    assert {one.key: whole(place.store, one.key, one.etag) for one in found} == bodies
    assert {(one.hour, one.shard) for one in found} == {(7, 0)}


@pytest.mark.parametrize("pattern", ["{prefix}_{hour}_{date}_done", "done.{date}.{hour}.{prefix}"])
def test_markers_are_found_whatever_they_begin_with(place: Place, pattern: str) -> None:
    store = a_store(place.store.url, pattern=pattern)
    for day in (DAY - timedelta(days=60), DAY, DAY + timedelta(days=60)):
        place.put("10001/" + pattern.format(prefix="10001", date=day, hour=7), b"")
    place.put(a_key(), b"x")
    listing = listed(store)
    assert [(marker.batch.arrival_date, marker.hour) for marker in listing.markers] == [(DAY, 7)]
    assert keys(listing) == [a_key()]
    assert min(listing.arrival_days["10001"]) == DAY - timedelta(days=60)


def test_more_objects_than_a_page_are_all_listed_once_in_order(place: Place) -> None:
    expected = [a_key(hour=hour, shard=shard) for hour in range(11) for shard in range(100)]
    place.fill(*reversed(expected))
    assert keys(listed(place.store)) == expected


def test_a_failpoint_stands_behind_every_project(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[tuple[Failpoint, str]] = []
    monkeypatch.setattr(landing_store, "failpoint", lambda point, qualifier: passed.append((point, qualifier)))
    listed(folder.store, projects=("10001", "10002"))
    assert passed == [(Failpoint.DURING_LISTING, f"regular/{project}") for project in ("10001", "10002")]


def test_what_nobody_will_ask_for_is_listed_cheaply_and_told(place: Place) -> None:
    """One object dated 2006 and one dated 2062, beside two true days: named, and neither moves the start."""
    today, long_ago, far = DAY + timedelta(days=8), date(2006, 1, 1), date(2062, 1, 1)
    days = (long_ago, DAY, DAY + timedelta(days=1), today + timedelta(days=1), far)
    place.fill(*(a_key(day=day) for day in days))
    listing = place.store.list(Source.REGULAR, ["10001"], DAY, DAY, asked_for(Settings(), today))
    assert [one.batch.arrival_date for one in listing.strays] == [long_ago, far]
    assert first_believable(listing.arrival_days["10001"], today) == DAY
    told = describe_strays([one.key for one in listing.strays])
    assert told.startswith(f"2 objects arrived on days that no load will read, first {a_key(day=long_ago)}")
    assert "TIDEMARK_CALENDAR_START" in told


def test_of_many_strays_the_first_and_the_last_are_kept(folder: Place) -> None:
    days = [date(2006, 1, 1) + timedelta(days=number) for number in range(250)]
    folder.fill(*(a_key(day=day) for day in days), a_key(day=days[0], project="10002"))
    strays = folder.store.list(Source.REGULAR, ["10001", "10002"], DAY, DAY, asked_for(Settings(), DAY)).strays
    expected = [*(("10001", day) for day in (*days[:100], *days[150:])), ("10002", days[0])]
    assert [(one.batch.project_id, one.batch.arrival_date) for one in strays] == expected
    told = describe_strays([one.key for one in strays])
    assert told.startswith("at least 201 objects arrived on days that no load will read")


def test_a_week_in_a_long_history_costs_a_few_pages(bucket: Place, s3_server: Server) -> None:
    bucket.fill(*(a_key(day=DAY + timedelta(days=at), hour=hour) for at in range(-500, 501) for hour in range(4)))
    s3_server.requests.clear()
    listing = listed(bucket.store, first=DAY, last=DAY + timedelta(days=6))
    assert len(listing.deliveries) == 28
    assert min(listing.arrival_days["10001"]) == DAY - timedelta(days=500)
    assert s3_server.listings == 4


@pytest.mark.parametrize(
    ("odd", "count_of_good"),
    [
        (f"10001//10001_{DAY}_5#0.json.gz", 3),
        (f"10001//10001_{DAY}_5#0.json.gz", 1100),
        (f"10001/10001_{DAY}_5/../x", 3),
        (f"10001/10001_{DAY}\x01", 3),
    ],
)
def test_a_key_that_cannot_be_read_hides_no_other_in_a_bucket(bucket: Place, odd: str, count_of_good: int) -> None:
    expected = [a_key(shard=shard) for shard in range(count_of_good)]
    bucket.fill(*expected, a_key(day=DAY + timedelta(days=1)))
    plain = listed(bucket.store)
    bucket.fill(odd)
    listing = listed(bucket.store)
    assert keys(listing) == expected
    assert (listing.deliveries, [found.key for found in listing.odd_objects]) == (plain.deliveries, [odd])
    assert "//" not in odd or "copy the object to a key without" in listing.odd_objects[0].detail


@pytest.mark.parametrize("odd", [b"10001_2026-02-02_5\n#0.json.gz", b"\xff.json.gz"])
def test_a_file_name_that_cannot_be_read_hides_no_other_in_a_folder(folder: Place, odd: bytes) -> None:
    folder.put(a_key(), b"x")
    plain = listed(folder.store)
    Path(os.fsdecode(os.fsencode(folder.store.url) + b"/10001/" + odd)).write_bytes(b"x")
    listing = listed(folder.store)
    assert listing.deliveries == plain.deliveries
    assert [found.oddity for found in listing.odd_objects] == [Oddity.UNKNOWN_NAME]
    listing.odd_objects[0].key.encode("utf-8")


def test_a_folder_placeholder_is_no_delivery(bucket: Place) -> None:
    first = a_key(day=DAY - timedelta(days=1))
    for key in ("10001/", first, a_key(shard=1), f"{a_key(shard=1)}/", f"{a_key(shard=2)}/"):
        bucket.put(key, b"x" if key.endswith("gz") else b"")
    listing = listed(bucket.store)
    assert [(delivery.key, delivery.size_bytes) for delivery in listing.deliveries] == [(a_key(shard=1), 1)]
    assert [found.key for found in listing.odd_objects] == [f"{a_key(shard=2)}/"]


def test_whether_an_object_is_readable_costs_one_byte(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put(a_key(), os.urandom(3_000_000))
    found, read = the_delivery(place), []
    kind = type(place.store._place)
    whole_read = kind.read

    def noting(*args: Any, **options: Any) -> Any:
        taken = whole_read(*args, **options)
        read.append(len(taken.getbuffer()))
        return taken

    monkeypatch.setattr(kind, "read", noting)
    assert place.store.is_readable(found)
    assert read == [1]
    place.put(a_key(), b"other")
    assert not place.store.is_readable(found)
    place.delete(a_key())
    assert not place.store.is_readable(found)


def test_nobody_can_tell_whether_an_object_is_readable_where_landing_is_out_of_reach() -> None:
    found = Delivery(BatchKey(Source.REGULAR, "10001", DAY), 5, 0, a_key(), '"e"', 1)
    with an_s3_that_answers(403, "AccessDenied") as store:
        assert not store.is_readable(found)
    with pytest.raises(LandingUnavailableError):
        a_bucket_at("http://127.0.0.1:1", 1).is_readable(found)


def test_an_object_overwritten_or_deleted_since_it_was_listed_has_moved(place: Place) -> None:
    place.put(a_key(), b"old")
    found = the_delivery(place)
    for done, change in (
        ("overwritten", lambda: place.put(a_key(), b"newer")),
        ("deleted", lambda: place.delete(found.key)),
    ):
        change()
        with pytest.raises(ObjectMovedError, match=done):
            whole(place.store, found.key, found.etag)


def test_a_file_rewritten_while_it_is_read_has_moved(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.put(a_key(), b"old")
    found = the_delivery(folder)
    copy = landing_folder._copied

    def copy_then_rewrite(*args: Any) -> Any:
        copied = copy(*args)
        folder.put(a_key(), b"new content")
        return copied

    monkeypatch.setattr(landing_folder, "_copied", copy_then_rewrite)
    with pytest.raises(ObjectMovedError):
        whole(folder.store, found.key, found.etag)


def test_a_store_in_use_travels_to_other_processes(place: Place, tmp_path: Path) -> None:
    place.put(a_key(), b"content")
    found = the_delivery(place)
    assert whole(place.store, found.key, found.etag) == b"content"
    (tmp_path / "store").write_bytes(pickle.dumps(place.store))
    program = (
        "import pathlib, pickle, sys; store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes());"
        "sys.stdout.buffer.write(store.open(sys.argv[2], sys.argv[3]).read()); assert 'dagster' not in sys.modules"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store"), found.key, found.etag]
    done = subprocess.run(command, capture_output=True, check=False, cwd=Path(__file__).parents[3])
    assert (done.stdout, done.stderr) == (b"content", b"")


def test_an_object_too_large_for_memory_reads_back_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (landing_folder, landing_places):
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 1000)
    content = os.urandom(9_000_000)
    place.put(a_key(), content)
    with place.store.open(a_key(), the_delivery(place).etag) as found:
        assert not isinstance(found, io.BytesIO)
        assert found.read() == content


def test_a_folders_versions_are_named_as_before(folder: Place) -> None:
    """The ledger holds versions in obstore's form; other names would make every object be read again."""
    folder.put(a_key(), b"content")
    (meta,) = obstore.list(LocalStore(prefix=folder.store.url)).collect()
    assert the_delivery(folder).etag == meta["e_tag"]


def test_a_link_that_leads_out_is_named_and_never_read(folder: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.pem").write_bytes(b"BEGIN PRIVATE KEY")
    (secret / a_key().partition("/")[2]).write_bytes(b"x")
    folder.put(a_key(), b"x")
    root = Path(folder.store.url)
    (root / a_key(shard=2)).symlink_to(secret / "key.pem")
    (root / a_key(shard=3)).symlink_to("../../secret/key.pem")
    (root / "10001/more").symlink_to(secret)
    (root / "10002").symlink_to(secret)
    listing = listed(folder.store, projects=("10001", "10002"))
    assert keys(listing) == [a_key()]
    named = {found.key: found for found in listing.odd_objects}
    assert named.keys() == {a_key(shard=2), a_key(shard=3), "10001/more", "10002"}
    assert all((one.oddity, "leads out of landing" in one.detail) == (Oddity.LINK, True) for one in named.values())
    with pytest.raises(UnreadableObjectError, match="leads out of landing"):
        whole(folder.store, a_key(shard=2), "e")


@pytest.mark.parametrize("swapped", ["file", "folder", "back and forth"])
def test_a_link_put_in_place_after_the_listing_is_not_followed(
    folder: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    folder.put(a_key(), b"x")
    found = the_delivery(folder)
    root, outside = Path(folder.store.url), tmp_path / "outside"
    outside.mkdir()
    os.link(root / a_key(), outside / Path(a_key()).name)

    def swap() -> None:
        victim = root / a_key() if swapped == "file" else (root / a_key()).parent
        victim.rename(tmp_path / "aside")
        victim.symlink_to(outside / Path(a_key()).name if swapped == "file" else outside)

    if swapped == "back and forth":
        # Between resolving and opening the file.
        resolve = Folder._resolved

        def resolve_then_swap(place: Folder, key: str) -> Path | None:
            inside = resolve(place, key)
            swap()
            return inside

        monkeypatch.setattr(Folder, "_resolved", resolve_then_swap)
    else:
        swap()
    with pytest.raises(UnreadableObjectError):
        whole(folder.store, found.key, found.etag)


def test_links_inside_are_followed_and_the_root_may_be_one(folder: Place, tmp_path: Path) -> None:
    folder.put("archive/one", b"content")
    root = Path(folder.store.url)
    (root / "10001").mkdir()
    (root / a_key()).symlink_to("../archive/one")
    (tmp_path / "by link").symlink_to(root)
    store = a_store(str(tmp_path / "by link"))
    (found,) = listed(store).deliveries
    assert whole(store, found.key, found.etag) == b"content"


def test_loops_and_pipes_hang_nothing_and_are_refused_one_by_one(folder: Place) -> None:
    folder.put(a_key(), b"x")
    root = Path(folder.store.url)
    links = {a_key(shard=2): root / a_key(shard=2), a_key(shard=3): "nowhere", "10001/again": "..", "10002": "10002"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / a_key(shard=4))
    listing = listed(folder.store, projects=("10001", "10002"))
    assert keys(listing) == [a_key(), *(a_key(shard=shard) for shard in (2, 3, 4))]
    assert [found.key for found in listing.odd_objects] == ["10001/again", "10002"]
    for found in listing.deliveries[1:]:
        with pytest.raises(UnreadableObjectError):
            whole(folder.store, found.key, found.etag)


@pytest.mark.parametrize(
    ("failure", "is_named"),
    [(PermissionError(13, "Permission denied"), True), (OSError(5, "I/O error"), True), (FileNotFoundError(), False)],
)
def test_a_folder_below_that_cannot_be_listed_hides_nothing_beside_it(
    folder: Place, monkeypatch: pytest.MonkeyPatch, failure: OSError, is_named: bool
) -> None:
    """Another user's folder, or one removed meanwhile, holds no delivery. The project's own folder must be listable."""
    folder.fill(a_key(), "10001/lost+found/x", "10001/lost+found/deeper/y", "10001/more/z")
    refused, scan = ["lost+found"], os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name in refused:
            raise failure
        return scan(path)

    monkeypatch.setattr(landing_folder.os, "scandir", scandir)
    listing = listed(folder.store)
    assert keys(listing) == [a_key()]
    odd = {found.key: (found.oddity, found.detail) for found in listing.odd_objects}
    expected = (Oddity.UNLISTED, f"a folder that cannot be listed ({failure.strerror})")
    assert odd.keys() == {"10001/more/z", *(["10001/lost+found"] if is_named else [])}
    assert odd.get("10001/lost+found", expected) == expected
    refused.append("10001")
    with pytest.raises((LandingAccessError, LandingUnavailableError)):
        listed(folder.store)


def test_nothing_is_touched_before_the_first_use(tmp_path: Path) -> None:
    for url in (str(tmp_path / "missing"), "s3://missing"):
        assert a_store(url).url == url


def test_a_missing_root_is_not_an_empty_landing(folder: Place, tmp_path: Path) -> None:
    listed(folder.store)
    Path(folder.store.url).rename(f"{folder.store.url} gone")
    with pytest.raises(LandingAccessError):
        listed(folder.store)
    (tmp_path / "file").write_text("x")
    for url in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(LandingAccessError, match="TIDEMARK_LANDING_URL"):
            listed(a_store(str(url)))


def test_a_missing_bucket_is_not_an_empty_landing(bucket: Place) -> None:
    refusals(a_store("s3://no-such-bucket"), LandingAccessError, "NoSuchBucket")


def test_fields_of_the_resource_win_over_variables(
    bucket: Place, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put(a_key(), b"x")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("THE_SECRET", "hidden")
    s3 = S3Resource(endpoint_url=s3_server.url, aws_access_key_id="k", aws_secret_access_key=EnvVar("THE_SECRET"))
    store = a_store(bucket.store.url, s3=s3)
    assert keys(listed(store)) == [a_key()]
    bucket.put("10001//odd", b"x")
    assert keys(listed(pickle.loads(pickle.dumps(store)))) == [a_key()]
    assert "hidden" not in repr(store._place)


def test_workers_are_told_where_the_bucket_is_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a worker without variables knows endpoint and region; keys are its own affair."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store.internal:9000")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    sent = pickle.dumps(a_store("s3://bucket", s3=S3Resource()))
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    place = pickle.loads(sent)._place
    assert (place.endpoint_url, place.region_name) == ("http://store.internal:9000", "eu-central-1")
    assert b"hidden" not in sent


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(LandingAccessError, match="no AWS credentials"):
        listed(a_store("s3://bucket"))
    with pytest.raises(LandingAccessError, match="profile"):
        listed(a_store("s3://bucket", s3=S3Resource(profile_name="nobody")))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        *((status, code, LandingAccessError) for status, code in (
            (403, "AccessDenied"), (401, "Unauthorized"), (400, "ExpiredToken"), (400, "AuthorizationHeaderMalformed"),
            (301, "PermanentRedirect"),
        )),
        *((status, code, LandingUnavailableError) for status, code in (
            (400, "RequestTimeout"), (429, "TooManyRequests"), (500, "InternalError"), (503, "SlowDown"),
        )),
    ],
)  # fmt: skip
def test_a_refusal_asks_for_a_person_and_a_bad_moment_for_time(
    status: int, code: str, error: type[TidemarkError]
) -> None:
    with an_s3_that_answers(status, code) as store:
        on_list, on_read = refusals(store, error)
    assert (on_list.subject, on_read.subject) == ("s3://bucket", a_key())
    assert "\n" not in str(on_list) + str(on_read)
    assert status == 301 or code in str(on_read)


@pytest.mark.parametrize(
    ("status", "code", "is_its_own"),
    [
        (403, "AccessDenied", True), (403, "InvalidObjectState", True), (400, "InvalidRequest", True),
        (400, "KMS.DisabledException", True), (400, "ExpiredToken", False), (400, "AuthorizationHeaderMalformed", False),
        (403, "SignatureDoesNotMatch", False), (401, "Unauthorized", False), (400, "ThrottlingException", False),
    ],
)  # fmt: skip
def test_a_refused_get_is_the_objects_unless_it_names_the_connection(status: int, code: str, is_its_own: bool) -> None:
    with (
        an_s3_that_answers(status, code, attempts=1) as store,
        pytest.raises((LandingAccessError, LandingUnavailableError)) as refused,
    ):
        whole(store, a_key(), '"e"')
    assert isinstance(refused.value, UnreadableObjectError) == is_its_own
    assert isinstance(refused.value, LandingUnavailableError) == (code == "ThrottlingException")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EBADMSG, errno.ENAMETOOLONG])
def test_a_file_that_the_disk_cannot_read_is_one_file(
    folder: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder.put(a_key(), b"x")
    found = the_delivery(folder)

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Folder, "_descriptor", refuse)
    with pytest.raises(UnreadableObjectError, match=f"^{a_key()}: landing refused"):
        whole(folder.store, found.key, found.etag)


def test_a_placeholder_that_cannot_be_asked_for_stops_no_listing() -> None:
    """S3 refuses details of an empty object with a client's key: it is read, or refused, by itself."""
    body = f"<Contents><Key>{a_key()}</Key><Size>0</Size>{_REST}</Contents>"
    answer = (200, f"<ListBucketResult>{body}</ListBucketResult>")
    with a_server_that_answers(lambda path: answer if "list-type" in path else (400, "")) as url:
        assert keys(listed(a_bucket_at(url, 1))) == [a_key()]


@pytest.mark.parametrize(
    ("status", "error"), [(403, LandingAccessError), (404, LandingAccessError), (503, LandingUnavailableError)]
)
def test_a_failure_of_the_plain_listing_reads_the_same(status: int, error: type[TidemarkError]) -> None:
    with (
        an_s3_that_answers(status, "Because", first_listing=("10001//x",)) as store,
        pytest.raises(error, match="Because"),
    ):
        listed(store)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (RuntimeError("the session has expired"), LandingAccessError),
        (EndpointConnectionError(endpoint_url="https://sts"), LandingUnavailableError),
    ],
)
def test_credentials_that_cannot_be_renewed_are_told_from_a_bad_moment(
    failure: Exception, error: type[TidemarkError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def renew(_: object) -> None:
        raise failure

    monkeypatch.setattr("obstore.auth.boto3.Boto3CredentialProvider.__call__", renew)
    with pytest.raises(error):
        listed(a_store("s3://bucket", s3=S3Resource(endpoint_url="http://127.0.0.1:1")))


def test_a_bundle_of_certificates_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(SettingsError, match="AWS_CA_BUNDLE"):
        listed(a_store("s3://bucket", s3=S3Resource(region_name="eu-west-1")))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_a_network_failure_is_a_bad_moment(url: str) -> None:
    refusals(a_bucket_at(url), LandingUnavailableError)


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(SettingsError, match="names no bucket"):
        a_store("s3:///exports")


def test_a_marker_that_a_folder_would_hide_is_refused(tmp_path: Path) -> None:
    pattern = "{prefix}_{date}#{hour}"
    with pytest.raises(SettingsError, match="hides"):
        a_store(str(tmp_path), pattern=pattern)
    assert a_store("s3://bucket", pattern=pattern)


def test_a_bucket_with_many_projects_is_listed_as_project_by_project(bucket: Place) -> None:
    """Outcome: the listing of all projects, odd ones included, is that of each, in the same order."""
    projects = [str(10_001 + number) for number in range(20)]
    for number, project in enumerate(projects[:-1]):
        for hour in range(1 + number % 3):
            bucket.put(f"{project}/{project}_{DAY}_{hour}#0.json.gz", b"x" * (number + 1))
    bucket.put("10003/0odd.txt", b"x")
    together = bucket.store.list(Source.REGULAR, projects, DAY, DAY)
    apart = [bucket.store.list(Source.REGULAR, [project], DAY, DAY) for project in projects]
    assert together.deliveries == tuple(found for one in apart for found in one.deliveries)
    assert together == Listing.joined(apart)
    assert len(together.deliveries) == sum(1 + number % 3 for number in range(19))
    assert [odd.key for odd in together.odd_objects] == ["10003/0odd.txt"]
    assert together.arrival_days == {project: frozenset({DAY}) for project in projects[:-1]}


NAMES = [str(number) for number in range(40)]


def test_several_are_under_way_and_answers_come_in_the_order_of_the_names() -> None:
    """Scenario: the first sixteen wait for each other. Outcome: all are asked for, and none ahead of these."""
    together, asked = threading.Barrier(16, timeout=30), []

    def ask(name: str) -> str:
        asked.append(name)
        if int(name) < 16:
            together.wait()
        return f"of {name}"

    answers = each_at_once(ask, NAMES)
    assert next(answers) == ("0", "of 0")
    assert set(asked) == set(NAMES[:16])
    assert list(answers) == [(name, f"of {name}") for name in NAMES[1:]]


def test_what_one_of_them_raises_is_raised() -> None:
    def ask(name: str) -> str:
        if name == "3":
            raise LandingUnavailableError(name, "is away", "Try again")
        return name

    answers = each_at_once(ask, NAMES)
    assert [next(answers)[0] for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(LandingUnavailableError, match="is away"):
        next(answers)
