"""The seam to the exporter: a declaration that does not fit is refused, and nobody names the exporter's columns past it."""

import ast
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline_assets
from pipeline_assets.formats.base import EVENT_TIME, ColumnType, ExportColumn, IdentityColumns
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.tables.refined_events import CONTENT

ROOT = Path(pipeline_assets.__file__).resolve().parents[1]
EVERY_FORMAT_HAS = {EVENT_TIME, "event_type", "platform"}
"""What our tables and aggregates expect of every exporter, under these names."""
MAY_NAME_COLUMNS = {
    "pipeline_assets/transforms/fold.py": "what revenue and a user are is the aggregates' own business",
    "pipeline_assets/tables/dimension.py": "so is what an item is",
    "resources/spark/jars.py": "writes an export of its own, to warm the JVM with",
}
OTHER_MEANINGS = {"app", "data", "region", "schema", "plan", "language", "library", "groups"}
"""Columns whose names are words that mean something else elsewhere."""


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"received_column": "arrived"}, "arrived"),
        ({"rank_columns": ("server_upload_time", "later")}, "later"),
        ({"transport_columns": ("road",)}, "road"),
        ({"many_valued_columns": ("many",)}, "many"),
        ({"identity": IdentityColumns("insert_id", ("tenant",), "uuid")}, "tenant"),
        ({"columns": (ExportColumn("insert_id", ColumnType.STRING),)}, EVENT_TIME),
    ],
    ids=["lateness", "rank", "transport", "many-valued", "identity", "columns"],
)
def test_a_role_that_no_column_plays_is_refused(changes: dict[str, object], unknown: str) -> None:
    with pytest.raises(ValueError, match=rf"does not deliver: .*\b{unknown}\b"):
        replace(EXPORT_FORMAT, **changes)  # type: ignore[arg-type]


def test_what_a_task_closes_over_stays_small() -> None:
    assert pickle.loads(pickle.dumps(EXPORT_FORMAT)) == EXPORT_FORMAT
    assert len(pickle.dumps((EXPORT_FORMAT.line_parser, EXPORT_FORMAT.block_parser, EXPORT_FORMAT.keys))) < 500


def test_tables_hold_the_columns_of_the_format_in_its_order() -> None:
    assert CONTENT[:-1] == EXPORT_FORMAT.column_names


def test_nobody_names_a_column_of_the_exporter_past_the_format() -> None:
    names = {*EXPORT_FORMAT.column_names} - EVERY_FORMAT_HAS - OTHER_MEANINGS
    named = []
    for folder in ("pipeline_assets", "resources"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path.startswith("pipeline_assets/formats/") or path in MAY_NAME_COLUMNS:
                continue
            constants = (
                node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant)
            )
            named += [f"{path}:{node.lineno} {node.value}" for node in constants if node.value in names]
    assert not named
