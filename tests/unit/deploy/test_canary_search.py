"""The search for secrets finds them in every form, and the searched deployment has a canary in every secret."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from pipeline_assets.domain.masking import EXPORT_CREDENTIALS, URL_SETTINGS, scrubbed
from tests.support.canaries import canaries, found_below, found_in, watched_command_lines
from tests.support.canary_deployment import DATABASES, SECRETS

WANTED = canaries(SECRETS)
PLACES_WITHOUT_SECRETS = {"landing_url", "warehouse_url", "export_api_url"}
"""URLs that are refused with a secret in them."""


def test_every_secret_of_the_product_has_a_canary() -> None:
    expected = {f"TIDEMARK_{name.upper()}" for name in URL_SETTINGS if name not in PLACES_WITHOUT_SECRETS}
    expected |= {"TIDEMARK_NOTIFY_URLS", "TIDEMARK_NOTIFY_SECRET", "TIDEMARK_SPARK_CONFIG"}
    expected |= {"DAGSTER_POSTGRES_URL", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    assert expected <= set(SECRETS)
    assert sum(1 for name in SECRETS if EXPORT_CREDENTIALS.fullmatch(name)) == 2
    assert set(DATABASES.values()) <= set(SECRETS)
    assert len({one.word for one in WANTED.values()}) == len(SECRETS)


def known_forms(value: str) -> list[str]:
    """The forms that the product removes."""
    coded = base64.b64encode(value.encode()).decode()
    return [value, quote(value, safe=""), quote_plus(value), json.dumps(value), coded]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_in_every_form(name: str) -> None:
    value = WANTED[name].value
    texts = [*known_forms(value), repr(value), value.encode().hex(), f"x{value}y"]
    # Anywhere in a text that is encoded as a whole.
    texts += [base64.b64encode(f"{'k' * before}{value}{'s' * 5}".encode()).decode() for before in range(6)]
    for text in texts:
        assert [find.secret for find in found_in(text.encode(), "here", WANTED)] == [name], text
    assert found_in(gzip.compress(value.encode()), "here", WANTED)
    assert found_in(value.encode("utf-16-le"), "here", WANTED)
    assert not found_in(b"C4n4ry is the first word of all of them", "here", WANTED)


def test_files_their_names_and_command_lines_are_searched(tmp_path: Path) -> None:
    first, second, third = (WANTED[name] for name in SECRETS[:3])
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log").write_text(f"password={first.value}")
    (tmp_path / f"run-{second.word}").write_text("")
    (tmp_path / "apart").write_text(third.value)
    finds, files = found_below(tmp_path, WANTED, [tmp_path / "apart"])
    assert ({find.secret for find in finds}, files) == ({first.name, second.name}, 2)
    with watched_command_lines(WANTED, 0.01) as watched:
        asleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", third.value])
        try:
            while not watched.finds:
                assert asleep.poll() is None
        finally:
            asleep.kill()
            asleep.wait()
    assert {find.secret for find in watched.finds} == {third.name}


def test_what_is_found_is_what_the_product_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same secret in the forms that the product knows."""
    value = WANTED["AWS_SECRET_ACCESS_KEY"].value
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", value)
    for text in known_forms(value):
        assert found_in(text.encode(), "here", WANTED)
        assert not found_in(scrubbed(f"said: {text}").encode(), "here", WANTED)
