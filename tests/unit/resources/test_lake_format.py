"""The warehouse's mark counts the format of what was written; any other one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.settings import Settings
from resources.iceberg.lake_identity import FORMAT, MARKER, PROPERTY, Mark, Purpose, is_one_lake, read_mark
from resources.iceberg.lake_objects import LakeObjects

ID = "5f0c3a52-9d0e-4f0a-9d53-0d6a34a1a111"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(warehouse_url=str(tmp_path / "warehouse"))


def mark(settings: Settings, **fields: object) -> bytes:
    body = json.dumps({"id": ID, **fields}).encode()
    LakeObjects.of(settings).replace(MARKER, body)
    return body


def test_a_mark_tells_its_format_and_no_secret(settings: Settings) -> None:
    Mark(ID, ID).here(settings).of_ledger("L", "postgresql://me:secret@host/db?sslmode=require").write(settings)
    body = LakeObjects.of(settings).get(MARKER) or b""
    written = json.loads(body)
    assert (written["format"], written["lake"], written["place"]) == (FORMAT, ID, settings.warehouse_url)
    assert written["ledger_url"] == "postgresql://host/db"
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("written", "age", "hint"),
    [
        ({"format": FORMAT + 1, "added_by_then": {"id": 7}}, "a newer", "pip install --upgrade tidemark-pipeline"),
        ({"format": FORMAT - 1}, "an earlier", "into a new, empty warehouse"),
        ({}, "an earlier", "into a new, empty warehouse"),
    ],
)
def test_a_warehouse_of_another_format_is_refused_and_left_alone(
    settings: Settings, written: dict[str, object], age: str, hint: str
) -> None:
    body = mark(settings, lake=ID, **written)
    for ask in (read_mark, lambda known: is_one_lake(known, {PROPERTY: ID}, list, Purpose.LOOK, None)):
        with pytest.raises(LakehouseError) as refusal:
            ask(settings)
        assert refusal.value.subject.endswith(f"/_tidemark/{MARKER}")
        versions = f"(format {written.get('format', 1)}; this one knows {FORMAT})"
        assert refusal.value.reason == f"{age} Tidemark wrote this warehouse {versions}, and nothing was touched"
        assert hint in refusal.value.hint
    assert LakeObjects.of(settings).get(MARKER) == body


def test_a_mark_whose_format_is_no_number_is_no_mark(settings: Settings) -> None:
    mark(settings, format="new")
    with pytest.raises(LakehouseError, match="is no identity of a warehouse"):
        read_mark(settings)
