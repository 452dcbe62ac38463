"""The client of the vendor's Export API: every documented answer, and undocumented ones."""

from __future__ import annotations

import base64
import html
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from pipeline_assets.domain.days import Hour, HourRange
from pipeline_assets.domain.errors import (
    Backoff,
    DiskFullError,
    ExportAccessError,
    ExportAnswerError,
    ExportContentError,
    ExportRefusedError,
    ExportUnavailableError,
    SettingsError,
    TidemarkError,
)
from pipeline_assets.domain.masking import scrubbed
from pipeline_assets.domain.settings import Settings
from resources import export_api as client
from resources.export_api import Download, ExportApi
from resources.guarded_http import guarded_client
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.cases import cases
from tests.support.export_api import Answer, Vendor, a_vendor, a_vendor_with_keys

DAY = date(2026, 2, 2)
HOURS = HourRange(Hour(DAY, 5), Hour(DAY, 7))
PAGE = b"<!doctype html><html><title>Down</title><body>We will be back</body></html>"


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with a_vendor_with_keys(monkeypatch, PROJECT) as found:
        found.add(PROJECT, Hour(DAY, 6), a_body(events_on(DAY, 5)))
        yield found


class Asking:
    """A client that notes its pauses without sleeping."""

    def __init__(self, vendor: Vendor, **settings: object) -> None:
        self.said: list[str] = []
        self.pauses: list[float] = []
        known = Settings(projects=(PROJECT,), **{"export_api_url": vendor.url, "export_min_free_bytes": 0, **settings})
        backoff = Backoff(known.export_attempts, first_seconds=0.5)
        self.api = ExportApi(known, self.said.append, backoff, self.pauses.append)

    def __call__(self, hours: HourRange = HOURS) -> bytes | Download:
        with self.api.fetch(PROJECT, hours) as answer:
            return answer if answer.file is None else answer.file.read()


_KEYS = "Invalid API key.*TIDEMARK_EXPORT_KEY_10001 and TIDEMARK_EXPORT_SECRET_10001"
_UNNAMED = r"{} .* \(Entity too large\), which the Export API never does"
_HTML = {"Content-Type": "text/html; charset=utf-8"}


_LOGIN = {"Location": "https://login.example/?token=abcdefgh"}


@cases(("answer", "error", "said"), {
    "refused keys stop at once and name the variables": (Answer(401, b"Invalid API key"), ExportAccessError, _KEYS),
    "so does what keys may not read": (Answer(403, b"Invalid API key"), ExportAccessError, _KEYS),
    "too large, as no document names it": (Answer(413, b"Entity too large"), ExportAnswerError, _UNNAMED.format(413)),
    "too long, as no document names it": (Answer(414, b"Entity too large"), ExportAnswerError, _UNNAMED.format(414)),
    "unprocessable, as no document names it": (Answer(422, b"Entity too large"), ExportAnswerError, _UNNAMED.format(422)),
    "a pause of hours is not waited for":
        (Answer(429, b"", {"Retry-After": "86400"}), ExportUnavailableError, "asks to wait for 86,400 s"),
    "a page is refused in one sentence":
        (Answer(200, PAGE, _HTML), ExportAnswerError, r"a page answered instead of the Export API \(Down We will be back\)"),
    "what is no zip is refused": (Answer(200, b"\x1f\x8b\x08", {"Content-Type": "application/gzip"}), ExportContentError,
                                  "is no zip archive, but application/gzip"),
    "a redirect is not followed": (Answer(302, b"", _LOGIN), ExportAnswerError, r"points to https://login\.example/"),
})  # fmt: skip
def test_an_answer_that_time_cannot_mend_is_told_and_asked_for_once(
    vendor: Vendor, answer: Answer, error: type[TidemarkError], said: str
) -> None:
    vendor.always(answer)
    asking = Asking(vendor)
    with pytest.raises(error, match=said) as caught:
        asking()
    assert "abcdefgh" not in str(caught.value)
    assert (len(vendor.asked), asking.pauses) == (1, [])


def test_an_archive_is_streamed_and_counted(vendor: Vendor) -> None:
    asking, counted = Asking(vendor), []
    with asking.api.fetch(PROJECT, HOURS, counted.append) as answer:
        assert answer.file is not None
        assert answer.file.read(2) == b"PK"
        assert sum(counted) == answer.file.seek(0, 2) > 100
    assert answer.file.closed
    assert [one.path for one in vendor.asked] == ["/api/2/export?start=20260202T05&end=20260202T07"]


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_that_trickles_without_end_is_given_up(
    vendor: Vendor, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is for silence, and there is none."""
    monkeypatch.setattr(client, "_LONGEST_ANSWER_SECONDS", 0.3)
    vendor.always(Answer(status, b"PK" + b"." * 200, trickle_seconds=0.02))
    begun = time.monotonic()
    with pytest.raises(ExportUnavailableError, match="the answer was not whole after"):
        Asking(vendor, export_attempts=2)()
    assert time.monotonic() - begun < 3
    assert len(vendor.asked) == 2


def test_a_url_with_a_path_is_asked_as_it_is(vendor: Vendor) -> None:
    assert isinstance(Asking(vendor, export_api_url=f"{vendor.url}/api/2/export")(), bytes)
    with pytest.raises(ExportAnswerError, match="does not ask for keys as the Export API does"):
        Asking(vendor, export_api_url=f"{vendor.url}/api/3/export")()


def test_no_data_is_believed_of_a_server_that_asks_for_keys_alone(vendor: Vendor) -> None:
    """Scenario: another server answers 404 to everything, in plain text. Outcome: that is no answer."""
    vendor.is_another_server = True
    with pytest.raises(ExportAnswerError, match=r"404 Not Found.*TIDEMARK_EXPORT_API_URL"):
        Asking(vendor)()


def test_a_timeout_of_one_hour_passes(vendor: Vendor) -> None:
    vendor.fail(Answer(504), Answer(504))
    asking = Asking(vendor)
    assert isinstance(asking(HourRange(Hour(DAY, 6), Hour(DAY, 6))), bytes)
    assert len(asking.pauses) == 2


def test_no_data_is_an_answer_with_its_time(vendor: Vendor) -> None:
    answer = Asking(vendor)(HourRange(Hour(DAY, 9), Hour(DAY, 9)))
    assert isinstance(answer, Download)
    assert datetime.now(UTC) - answer.answered_at < timedelta(minutes=1)
    # By a vendor's clock that lags behind ours.
    behind = datetime.fromisoformat("2026-02-02T10:00:00+00:00")
    vendor.always(Answer(404, b"", {"Date": format_datetime(behind)}))
    assert Asking(vendor)() == replace(answer, answered_at=behind)


def test_missing_keys_are_named_and_nobody_is_asked(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_EXPORT_SECRET_10001", " ")
    with pytest.raises(SettingsError, match="TIDEMARK_EXPORT_SECRET_10001: is not set"):
        Asking(vendor)()
    assert not vendor.asked


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(400, b"start lies outside of the retention of this project"), "(start lies outside of the retention of"),
        (Answer(400), "the vendor answered 400 Bad Request without a word of why"),
        (Answer(504), "the vendor answered 504 Gateway Timeout without a word of why"),
        (Answer(400, b"The limit size is 4GB. Shorten the time ranges"), "(The limit size is 4GB. Shorten the time ranges)"),
        (Answer(400, b'{"error":"data retention limit: 365 days"}'), '({"error":"data retention limit: 365 days"})'),
        (Answer(400, b'{"error":"expired"' + b"," * 9000), '({"error":"expired",'),
        (Answer(400, b"Start is larger than end; the page size is 20"), "(Start is larger than end; the page size is 20)"),
        (Answer(400, b"<html><title>400 Request Header Or Cookie Too Large</title></html>"), "(400 Request Header Or"),
        (
            Answer(400, b"<style>p{}</style><script>if (a < b)</script>Bad&nbsp;&lt;start&gt;", {"Content-Type": "text/html"}),
            "(a page: Bad <start>)",
        ),
        (Answer(200, b'{"error": "soon"}', {"Content-Type": "application/json"}), '(application/json: {"error": "soon"})'),
        (Answer(200, b"export is being built", {"Content-Type": "text/plain; charset=utf-8"}), "(text/plain: export is being"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_its_words_and_not_asked_again(vendor: Vendor, answer: Answer, said: str) -> None:
    vendor.always(answer)
    with pytest.raises(ExportRefusedError) as caught:
        Asking(vendor)()
    assert said in caught.value.reason
    assert "have it export that to the bucket by hand" in caught.value.hint
    assert len(vendor.asked) == 1


def test_hostile_words_are_short_plain_and_without_keys(vendor: Vendor) -> None:
    """Scenario: a 400 with pages of text, a key where the reading ends, and control characters."""
    ((key, secret),) = vendor.keys.values()
    for key_at in (0, 190, client._BODY_BYTES - 10):
        text = "<br>" * (key_at // 4) + f"{key}\x1b[2J\u202e" + html.escape(secret) + "x" * 90_000
        vendor.fail(Answer(400, text.encode()))
        with pytest.raises(ExportRefusedError) as caught:
            Asking(vendor)()
        told = str(caught.value)
        assert (told.isprintable(), len(told) < 600, key[:8] in told, secret[:8] in told) == (True, True, False, False)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_an_overloaded_vendor_is_asked_again_after_growing_pauses(vendor: Vendor, status: int) -> None:
    vendor.fail(Answer(status), Answer(status), Answer(status))
    asking = Asking(vendor)
    assert isinstance(asking(), bytes)
    bounds = [(0.25, 0.5), (0.5, 1.0), (1.0, 2.0)]
    assert all(low <= pause <= high for pause, (low, high) in zip(asking.pauses, bounds, strict=True))
    assert all(words in asking.said[0] for words in (f"the vendor answered {status}", "(1 of 6)"))


def test_the_pause_that_the_vendor_asks_for_is_kept(vendor: Vendor) -> None:
    soon = format_datetime(datetime.now().astimezone() + timedelta(seconds=100))
    vendor.fail(Answer(429, b"", {"Retry-After": "7"}), Answer(503, b"", {"Retry-After": soon}))
    asking = Asking(vendor)
    assert isinstance(asking(), bytes)
    assert (7 <= asking.pauses[0] <= 7.5, 90 <= asking.pauses[1] <= 101) == (True, True)


def test_waiting_is_bounded(vendor: Vendor) -> None:
    vendor.always(Answer(503))
    asking = Asking(vendor, export_attempts=3)
    with pytest.raises(ExportUnavailableError, match="503 Service Unavailable; asked 3 times"):
        asking()
    assert (len(vendor.asked), len(asking.pauses)) == (3, 2)


def test_a_cut_answer_is_asked_for_again(vendor: Vendor) -> None:
    whole = Asking(vendor)()
    assert isinstance(whole, bytes)
    vendor.fail(Answer(200, whole, cut_after=len(whole) // 2), Answer(200, b""))
    asking = Asking(vendor)
    # The second answer does not begin with the first one's bytes.
    assert asking() == whole
    assert ("was cut off" in asking.said[0], "is empty" in asking.said[1]) == (True, True)


def test_silence_ends_by_the_timeout(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.export_api._SILENCE_SECONDS", 1.0)
    vendor.fail(Answer(200, silence_seconds=2.0))
    asking = Asking(vendor)
    assert isinstance(asking(), bytes)
    assert "did not answer in time (ReadTimeout)" in asking.said[0]


def test_a_vendor_out_of_reach_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_vendor(PROJECT) as gone:
        environment = gone.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ExportUnavailableError, match="the vendor is out of reach"):
        Asking(gone, export_attempts=2, export_api_url=environment["TIDEMARK_EXPORT_API_URL"])()


def test_a_full_disk_stops_before_it_is_full(vendor: Vendor) -> None:
    with pytest.raises(DiskFullError, match="would leave less than"):
        Asking(vendor, export_min_free_bytes=1 << 60)()


def test_keys_are_in_no_text(vendor: Vendor, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: the server repeats the keys, logs are at their loudest. Outcome: neither output holds them."""
    ((key, secret),) = vendor.keys.values()
    wire = base64.b64encode(f"{key}:{secret}".encode()).decode()
    vendor.fail(Answer(503, f"{key} {secret}".encode()))
    vendor.always(Answer(403, f"no access for {key}:{secret}".encode()))
    asking = Asking(vendor)
    with caplog.at_level(logging.DEBUG), pytest.raises(TidemarkError) as caught:
        asking()
    told = " ".join([str(caught.value), scrubbed(" ".join(asking.said)), caplog.text, repr(asking.api.__dict__)])
    assert [said in told for said in ("no access for", key, secret, wire)] == [True, False, False, False]
    assert scrubbed(f"Basic {wire}") == "Basic ***"


def test_what_comes_with_a_refusal_of_keys_is_not_read(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the keyless question gets an endless body. Outcome: its status counts; the body is not read."""
    whole = vendor.answer
    endless = Answer(401, b"x" * 10, {"Content-Length": str(10**12), "Content-Encoding": "gzip"}, is_announced=False)
    monkeypatch.setattr(vendor, "answer", lambda path, keys: endless if keys is None else whole(path, keys))
    assert isinstance(Asking(vendor)(HourRange(Hour(DAY, 9), Hour(DAY, 9))), Download)


def test_an_answer_without_an_end_is_cut_off_at_the_vendors_limit(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_LARGEST_ANSWER", 1000)
    vendor.fail(Answer(200, b"PK\x03\x04" + b"x" * 5000))
    with pytest.raises(ExportContentError, match="larger than 1,000 bytes, more than the vendor exports at once"):
        Asking(vendor)()


def test_the_time_of_an_answer_is_that_of_its_beginning(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    answered_at = client._answered_at
    monkeypatch.setattr(client, "_answered_at", lambda response: order.append("time") or answered_at(response))
    vendor.fail(Answer(200, b"PK\x05\x06" + bytes(18)))
    with Asking(vendor).api.fetch(PROJECT, HOURS, lambda _: order.append("bytes")):
        assert order == ["time", "bytes"]


def test_keys_go_to_no_machine_that_serves_its_own(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    def guarded(url: str, timeout: float) -> httpx.Client:
        return guarded_client(url, timeout, lambda host, port: ["169.254.169.254"])

    monkeypatch.setattr(client, "guarded_client", guarded)
    asking = Asking(vendor, export_api_url="https://analytics.example")
    with pytest.raises(ExportAnswerError, match=r"was not asked for: the API's name leads to 169\.254\.169\.254"):
        asking()
    assert (vendor.asked, asking.pauses) == ([], [])
