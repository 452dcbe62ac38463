"""A name's address is checked when connecting: requests go to the checked address, or nowhere."""

from __future__ import annotations

import ssl
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from pipeline_assets.domain.errors import SettingsError
from resources import guarded_http
from resources.guarded_http import Answer, ForbiddenAddressError, addresses_of, guarded_client
from tests.support.s3 import served
from tests.support.webhook import a_webhook

FORBIDDEN = (
    ["169.254.169.254"], ["127.0.0.1", "169.254.169.254"], ["fd00:ec2::254"], ["::ffff:169.254.169.254"], ["0.0.0.0"]
)  # fmt: skip


class Names:
    """Resolves names by the test's answers, in order."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("url", "answer", "said"),
    [
        *[("https://hooks.example/x", answer, r"leads to .*, which is ") for answer in FORBIDDEN],
        ("http://localhost/x", ["10.0.0.7"], "in the clear"),
    ],
)
def test_a_name_that_leads_to_a_machines_keys_is_not_asked_and_none_elsewhere_in_the_clear(
    url: str, answer: list[str], said: str
) -> None:
    client = guarded_client(url, resolve=Names(answer))
    with client, pytest.raises(ForbiddenAddressError, match=said):
        client.get(url)


def test_a_name_that_changes_its_mind_is_asked_where_it_was_looked_at() -> None:
    """Scenario: a name leads here, then to a machine's keys. Outcome: one question a request; the next goes nowhere."""
    hosts: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hosts.append(self.headers["Host"])
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/latest")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with served(Answer) as server:
        url = server.replace("127.0.0.1", "localhost")
        names = Names(["::1", "127.0.0.1"], ["169.254.169.254"])
        with guarded_client(url, resolve=names) as client:
            answer = client.get(url)
            assert (answer.status_code, answer.history) == (302, [])
            with pytest.raises(ForbiddenAddressError):
                client.get(url)
    assert (hosts, len(names.asked)) == ([url.removeprefix("http://")], 2)


def test_a_webhook_whose_name_leads_there_is_told_nothing_and_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(["169.254.169.254"])
    monkeypatch.setattr(guarded_http, "guarded_client", lambda url: guarded_client(url, resolve=names))
    answer = guarded_http.post("https://hooks.example/secret", b"{}", None, attempts=3, deadline=time.monotonic() + 5)
    said = "its name leads to 169.254.169.254, which is where a machine or its cloud serves its own keys"
    assert (answer, len(names.asked)) == (Answer(is_taken=False, reason=said), 1)


def test_this_machine_is_never_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with a_webhook() as hook:
        hook.secret = None
        assert guarded_http.post(hook.url, b'{"notices": []}', None, attempts=1, deadline=time.monotonic() + 5).is_taken
    # The proxy, which is not there, resolves other names.
    with guarded_client("https://hooks.example/x") as client, pytest.raises(httpx.ConnectError):
        client.get("https://hooks.example/x")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("http", "https", "all", "no"):
        for name in (f"{kind}_proxy", f"{kind}_PROXY".upper()):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_without_a_scheme_is_asked_by_http(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As curl and requests read it."""
    monkeypatch.setenv(name, "someone:s3cret-word@127.0.0.1:1")
    with guarded_client("https://hooks.example/x") as client, pytest.raises(httpx.ConnectError):
        client.get("https://hooks.example/x")


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("server", ["socks5://{}proxy.example:1", "ftp://{}proxy.example", "http://{}proxy.example:p"])
def test_a_proxy_that_cannot_be_used_is_named_without_what_it_holds(
    server: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, server.format("someone:s3cret-word@"))
    with pytest.raises(SettingsError) as refused:
        guarded_client("https://hooks.example/x")
    assert str(refused.value).startswith(f"{name}: names a proxy that cannot be used. ")
    assert "s3cret-word" not in "".join(traceback.format_exception(refused.value))
    answer = guarded_http.post("https://hooks.example/x", b"{}", None, attempts=3, deadline=time.monotonic() + 5)
    assert answer == Answer(is_taken=False, reason=f"it cannot be reached: {name} names a proxy that cannot be used")


def test_a_name_that_is_none_is_out_of_reach() -> None:
    def nowhere(host: str, port: int) -> list[str]:
        raise OSError(f"no such name: {host}:{port}")

    client = guarded_client("https://hooks.example/x", resolve=nowhere)
    with client, pytest.raises(httpx.ConnectError, match="cannot be resolved"):
        client.get("https://hooks.example/x")
    assert "127.0.0.1" in addresses_of("localhost", 80)
    assert guarded_http.addresses_of("127.0.0.1", 80) == ["127.0.0.1"]


@contextmanager
def a_tls_server(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and its name's self-signed certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject, now, day = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), datetime.now(UTC), timedelta(1)
    made = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now - day, now + day)
    certificate = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
    signed = certificate.sign(key, hashes.SHA256())
    pem, form = folder / "server.pem", serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + private)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with served(Answer, context=context) as url:
        yield url.removeprefix("http://127.0.0.1"), pem


def test_the_certificate_is_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the connection is made to an address."""
    with a_tls_server("hooks.example", tmp_path) as (port, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        url = f"https://hooks.example{port}/x"
        with guarded_client(url, resolve=Names(["127.0.0.1"])) as client:
            assert client.get(url).status_code == 204
        other = f"https://other.example{port}/x"
        client = guarded_client(other, resolve=Names(["127.0.0.1"]))
        with client, pytest.raises(httpx.ConnectError, match=r"(?i)certificate verify failed"):
            client.get(other)
