"""An exclusion names bytes that were read."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.operations.decisions import hash_of
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, LandingFolder, events_on
from tests.unit.load.test_batches import DAY, an_exclusion


@pytest.mark.parametrize(
    ("etag", "sha256", "named_etag", "named_sha256", "is_named"),
    [
        ("e1", "s1", "e1", "s1", True),
        ("e2", "s1", "e1", "s1", True),
        ("e1", "s2", "e1", "s1", False),
        ("e1", None, "e1", "s1", True),
        ("e1", "s1", "e1", None, True),
        ("unread e1", None, "e1", "s1", True),
        ("unread e2", None, "e1", "s1", False),
        ("", None, "", None, False),
        ("e2", "s1", "", None, False),
    ],
)
def test_an_exclusion_names_bytes_and_where_they_are_unknown_one_version(
    etag: str, sha256: str | None, named_etag: str, named_sha256: str | None, is_named: bool
) -> None:
    assert replace(an_exclusion(etag=named_etag), sha256=named_sha256).names(etag, sha256) is is_named


def test_a_version_is_read_before_it_is_excluded_and_refused_where_it_cannot_be(tmp_path: Path) -> None:
    folder = LandingFolder()
    folder.landing, folder.grammar = tmp_path, KeyGrammar(Settings().marker_pattern)
    key = folder.deliver(DAY, events_on(DAY, 3))
    landing = LandingStore.from_settings(Settings(landing_url=str(tmp_path)))
    (listed,) = landing.list(Source.REGULAR, [PROJECT], DAY, DAY).deliveries
    assert hash_of(landing, listed.key, listed.etag) == hashlib.sha256((tmp_path / key).read_bytes()).hexdigest()
    folder.deliver(DAY, events_on(DAY, 4))
    with pytest.raises(UsageError, match="cannot be read, so its bytes cannot be excluded: it was overwritten"):
        hash_of(landing, listed.key, listed.etag)
