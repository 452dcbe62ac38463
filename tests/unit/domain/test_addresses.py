"""No URL that Tidemark sends to leads to a machine's own keys, in any spelling."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_assets.domain import places
from pipeline_assets.domain.settings import Settings

LINK_LOCAL = ip_network("169.254.0.0/16")
FORBIDDEN = [
    "169.254.169.254", "169.254.170.2", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "100.100.100.200", "168.63.129.16",
    "192.0.0.192", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::169.254.169.254", "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "::ffff:0:169.254.169.254",
    "2606:4700::5efe:169.254.169.254", "2606:4700::200:5efe:169.254.169.254", "0.0.0.0", "0.0.0.1", "::ffff:0.1.2.3", "::",
    "224.0.0.1", "ff02::1", "255.255.255.255",
]  # fmt: skip
SPELLED = [
    "2852039166", "0xa9fea9fe", "0xA9.0xFE.0xA9.0xFE", "169.254.43518", "0251.0376.0251.0376", "169.254.169.254.",
]  # fmt: skip
NAMES = ["metadata.google.internal", "METADATA.google.internal.", "instance-data", "metadata"]
ALLOWED = [
    "8.8.8.8", "10.1.2.3", "192.168.0.9", "fd12:3456::1", "2606:4700::1111", "2606:4700::5efe:8.8.8.8", "127.0.0.1", "::1",
]  # fmt: skip


@pytest.mark.parametrize("host", [*FORBIDDEN, *SPELLED, *NAMES])
def test_where_keys_are_served_or_no_machine_stands_nothing_is_sent_in_any_spelling(host: str) -> None:
    refusal = places.refusal_of_address if host in FORBIDDEN else places.refusal_of_host
    assert refusal(host) is not None
    url = f"https://[{host}]/x" if ":" in host else f"https://{host}/x"
    assert "names a host that" in str(places.refusal_of_web_address(url))
    for name, value in (("notify_urls", (url,)), ("export_api_url", url)):
        with pytest.raises(ValueError, match="host"):
            Settings(**{name: value})


@pytest.mark.parametrize("host", ["2002:7f00:1::", "64:ff9b::127.0.0.1", "2606:4700::5efe:127.0.0.1", "::127.0.0.1"])
def test_what_a_relay_brings_to_this_machine_is_not_this_machine(host: str) -> None:
    assert not places.is_loopback(host)
    assert "in the clear" in str(places.refusal_of_web_address(f"http://[{host}]/x"))


@pytest.mark.parametrize("address", ALLOWED)
def test_machines_of_a_company_and_of_the_world_may_be_told(address: str) -> None:
    assert places.refusal_of_address(address) is None
    host = f"[{address}]" if ":" in address else address
    assert Settings(notify_urls=(f"https://{host}/x",)).notify_urls


@pytest.mark.parametrize(("url", "said"), [
    ("https://user:word@hooks.example/x", "before its host"),
    ("https://hooks.example@169.254.169.254/x", "before its host"),
    ("https://user@hooks.example/x", "before its host"),
    ("http://hooks.example/x", "in the clear"),
    ("http://127.0.0.1.example/x", "in the clear"),
    ("http://localhost.example/x", "in the clear"),
    ("https://hooks.example\\@169.254.169.254/", "is not http"),
    ("https://hooks..example/x", "is no name of a host"),
    ("https://-hooks.example/x", "is no name of a host"),
    ("https://hooks.example/x#y", "is not http"),
    ("file:///etc/passwd", "is not http"),
    ("gopher://hooks.example/x", "is not http"),
    ("https://hooks.example:0/x", "is not http"),
    ("https:///x", "is not http"),
    ("https://hooks.example/a\r\nHost: b", "is not http"),
])  # fmt: skip
def test_a_url_that_means_two_things_is_refused(url: str, said: str) -> None:
    assert said in str(places.refusal_of_web_address(url))
    with pytest.raises(ValueError):
        Settings(notify_urls=(url,))


@given(st.ip_addresses())
@example(IPv4Address("169.254.0.1"))
@example(IPv6Address("::ffff:169.254.0.1"))
def test_every_spelling_of_an_address_has_the_answer_of_the_address(address: IPv4Address | IPv6Address) -> None:
    spelled = [str(address)] if address.version == 4 else [str(address), address.exploded, f"{address}%eth0"]
    answers = {places.refusal_of_address(text) for text in spelled}
    assert len(answers) == 1
    if address.version == 4:
        mapped = IPv6Address(f"::ffff:{address}")
        assert (places.refusal_of_address(str(mapped)) is None) == (answers == {None})
        assert places.is_loopback(str(mapped)) == address.is_loopback
        if address in LINK_LOCAL:
            assert answers != {None}


_URL_PARTS = [
    *["http", "https", "file", "://", ":", "/", "//", "@", "\\", "#", "?", "%", "%2f", "[", "]", ".", ".."],
    *["localhost", "127.0.0.1", "hooks.example", "443", "0", "x", "é"],
]
PIECES = st.sampled_from([*_URL_PARTS, *FORBIDDEN, *SPELLED, *NAMES, " ", "\r\n", "\0"])


@given(st.lists(PIECES, max_size=9).map("".join) | st.text(max_size=60))
@example("https://hooks.example")
def test_whatever_is_taken_is_what_every_reader_takes_it_for(url: str) -> None:
    """Outcome: every text has an answer; an accepted URL has a literal host, the same for the client that asks it."""
    import httpx

    if places.refusal_of_web_address(url) is not None:
        with pytest.raises(ValueError):
            Settings(notify_urls=(url,))
        return
    parsed, asked = urlsplit(url), httpx.URL(url)
    assert (places.is_web_address(url), places.is_private_address(url)) == (True, True)
    assert ("@" in parsed.netloc, asked.userinfo, asked.scheme) == (False, b"", parsed.scheme)
    assert asked.host == (parsed.hostname or "").rstrip() != ""
    assert asked.host not in NAMES
    with suppress(ValueError):
        assert places.refusal_of_address(str(ip_address(asked.host))) is None


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with a blank and a percent sign in its name, and a link to it."""
    lake = tmp_path / "my%20 lake"
    (lake / "raw").mkdir(parents=True)
    (tmp_path / "link").symlink_to(lake)
    return lake


def test_every_spelling_of_a_folder_names_it(lake: Path, tmp_path: Path) -> None:
    encoded = f"{tmp_path}/my%2520%20lake"
    spellings = (
        f"{lake}", f"{lake}/", f"{lake}//", f"{tmp_path}//my%20 lake", f"{lake}/../my%20 lake", f"{lake}/raw/..", f"{lake}/.",
        f"file:{lake}", f"file:{lake}/", f"file://{encoded}", f"file:///{encoded}", f"file://{encoded}/raw/%2E%2E",
        f"{tmp_path}/link", f"file:{tmp_path}/link/", f"file://{tmp_path}/link", f"{tmp_path}/link/raw/..",
    )  # fmt: skip
    assert {places.resolved(one) for one in spellings} == {str(lake)}
    for one, other in product(spellings, spellings):
        assert places.is_below(f"{one}/raw/regular_events", other)
        assert not places.is_below(other, f"{one}/raw")


def test_every_spelling_of_a_place_in_a_bucket_names_it_and_the_whole_of_a_machine_or_a_bucket_is_a_place() -> None:
    spellings = ("s3://b/lake", "s3a://b/lake/", "s3n://b//lake", "s3://b/lake//", "s3:/b/lake")
    assert {places.resolved(one) for one in spellings} == {"s3://b/lake"}
    assert all(places.is_below(f"{one}/raw/x", other) for one in spellings for other in (*spellings, "s3://b"))
    assert places.is_below("file:/data/x", "/")


@pytest.mark.parametrize(("location", "place"), [
    ("file:/data/lake2/raw", "/data/lake"), ("/data/lake/../lake2/raw", "/data/lake"),
    ("s3://bucket2/lake/raw", "s3://bucket/lake"), ("s3://bucket/lake%20/raw", "s3://bucket/lake /"),
    ("hdfs://data/lake/raw", "/data/lake"), ("/bucket/lake/raw", "s3://bucket/lake"),
])  # fmt: skip
def test_a_neighbour_is_another_place(location: str, place: str) -> None:
    assert not places.is_below(location, place)


def test_a_place_that_is_gone_is_not_the_one_that_it_was_copied_to(lake: Path, tmp_path: Path) -> None:
    lake.rename(tmp_path / "copy")
    assert places.resolved(f"{lake}") != places.resolved(f"{tmp_path}/copy")
    # The remedy: a link there is the same place.
    lake.symlink_to(tmp_path / "copy")
    assert places.is_below(f"file:{lake}/raw", f"{tmp_path}/copy")
