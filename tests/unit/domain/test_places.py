"""Two URLs name one place, however they are spelt, and a neighbour is another place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_assets.domain.places import is_below, resolved


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
    assert {resolved(one) for one in spellings} == {str(lake)}
    for one in spellings:
        for other in spellings:
            assert is_below(f"{one}/raw/regular_events", other)
            assert not is_below(other, f"{one}/raw")


def test_every_spelling_of_a_place_in_a_bucket_names_it() -> None:
    spellings = ("s3://b/lake", "s3a://b/lake/", "s3n://b//lake", "s3://b/lake//", "s3:/b/lake")
    assert {resolved(one) for one in spellings} == {"s3://b/lake"}
    assert all(is_below(f"{one}/raw/x", other) for one in spellings for other in spellings)


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("file:/data/lake2/raw", "/data/lake"),
        ("/data/lake/../lake2/raw", "/data/lake"),
        ("s3://bucket2/lake/raw", "s3://bucket/lake"),
        ("s3://bucket/lake%20/raw", "s3://bucket/lake /"),
        ("hdfs://data/lake/raw", "/data/lake"),
        ("/bucket/lake/raw", "s3://bucket/lake"),
    ],
)
def test_a_neighbour_is_another_place(location: str, place: str) -> None:
    assert not is_below(location, place)


def test_the_whole_of_a_machine_or_a_bucket_is_a_place() -> None:
    assert is_below("file:/data/x", "/")
    assert is_below("s3://b/raw/x", "s3://b")


def test_a_place_that_is_gone_is_not_the_one_that_it_was_copied_to(lake: Path, tmp_path: Path) -> None:
    lake.rename(tmp_path / "copy")
    assert resolved(f"{lake}") != resolved(f"{tmp_path}/copy")
    # The remedy: what links there is that place.
    lake.symlink_to(tmp_path / "copy")
    assert is_below(f"file:{lake}/raw", f"{tmp_path}/copy")
