"""The grammar of keys reads its own output, and has an answer for every other text."""

from __future__ import annotations

import ast
import pickle
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipeline_assets
from pipeline_assets.domain.deliveries import BatchKey, Delivery, Marker, Oddity, UnrecognizedObject
from pipeline_assets.domain.errors import SettingsError
from pipeline_assets.domain.slices import Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.formats.base import EVENT_TIME, ColumnType, ExportColumn, IdentityColumns
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.tables.events import CONTENT

DEFAULT = "{prefix}_{date}_{hour}_complete"
PATTERNS = (
    DEFAULT, "_SUCCESS.{prefix}.{date}.{hour}", "{date}{hour}{prefix}.done", "{hour}{prefix}{date}",
    "{{{hour}}}_{date}_{prefix}.*+(",
)  # fmt: skip
GRAMMAR = KeyGrammar(DEFAULT)
DAY = date(2026, 2, 2)

sources, patterns, hours = st.sampled_from(Source), st.sampled_from(PATTERNS), st.integers(0, 23)
projects = st.from_regex(r"[0-9]{1,8}", fullmatch=True)
batches = st.builds(BatchKey, sources, projects, st.dates())


def a_batch(*, source: Source = Source.REGULAR, project_id: str = "10001", day: date = DAY) -> BatchKey:
    return BatchKey(source, project_id, day)


def parsed(key: str, source: Source = Source.REGULAR, size: int = 7) -> Any:
    return GRAMMAR.parse(source, "10001", key, "e", size)


@given(patterns, batches, hours, st.integers(0, 10**18 - 1))
def test_a_delivery_and_a_marker_read_back_as_they_were_written(
    pattern: str, batch: BatchKey, hour: int, shard: int
) -> None:
    grammar = KeyGrammar(pattern)
    key, marker = grammar.format_delivery(batch, hour, shard), grammar.format_marker(batch, hour)
    expected = [Delivery(batch, hour, shard, key, "e", 7), Marker(batch, hour, marker)]
    assert [grammar.parse(batch.source, batch.project_id, name, "e", 7) for name in (key, marker)] == expected


@given(patterns, sources, st.text() | projects, st.text(), st.booleans())
@example(DEFAULT, Source.REGULAR, "10001", "10001_2026-02-02_5#" + "9" * 5000 + ".json.gz", True)
@example(DEFAULT, Source.REGULAR, "10001", "10001_0000-00-00_5_complete", True)
@example(DEFAULT, Source.REGULAR, "10001", "10001_2026-02-02_5#1.json.gz\n", True)
def test_every_text_has_an_answer(pattern: str, source: Source, project: str, text: str, is_inside: bool) -> None:
    key = f"{source.prefix(project)}/{text}" if is_inside else text
    answer = KeyGrammar(pattern).parse(source, project, key, "e", 0)
    assert answer.key == key


@given(patterns, batches, hours, st.integers(0, 99), st.dates(), st.dates())
def test_a_name_lies_in_the_window_of_a_stem_when_its_day_does(
    pattern: str, batch: BatchKey, hour: int, shard: int, one: date, other: date
) -> None:
    grammar = KeyGrammar(pattern)
    first, last = min(one, other), max(one, other)
    stems = grammar.stems(batch.source, batch.project_id)
    for key in (grammar.format_delivery(batch, hour, shard), grammar.format_marker(batch, hour)):
        assert any(after < key < before for after, before in (stem.whole for stem in stems))
        is_found = any(after < key < before for after, before in (stem.window(first, last) for stem in stems))
        if first <= batch.arrival_date <= last:
            assert is_found
        elif pattern == DEFAULT:
            # Other patterns may share a window with other days' deliveries: read, then left out.
            assert not is_found


@pytest.mark.parametrize(("end", "hour", "shard"), [
    ("5#1.json.gz", 5, 1), ("05#1.json.gz", 5, 1), ("23#0.json.gz", 23, 0), ("0#4711.json.gz", 0, 4711),
    ("5.json.gz", 5, 0), ("7%230.json.gz", 7, 0), ("07%2312.json.gz", 7, 12),
    ("5_complete", 5, None), ("05_complete", 5, None),
])  # fmt: skip
def test_deliveries_and_markers_are_read_however_hour_and_shard_are_written(
    end: str, hour: int, shard: int | None
) -> None:
    """A manual backfill may write ordinary names."""
    backfill = Source.BACKFILL
    for prefix, source in (("10001", Source.REGULAR), ("10001", backfill), ("10001-backfill", backfill)):
        batch, key = a_batch(source=source), f"{source.prefix('10001')}/{prefix}_2026-02-02_{end}"
        expected = Marker(batch, hour, key) if shard is None else Delivery(batch, hour, shard, key, "e", 7)
        assert parsed(key, source) == expected


@pytest.mark.parametrize(("key", "oddity", "reason"), [
    ("10001/10001-backfill_2026-02-02_5#1.json.gz", Oddity.WRONG_PREFIX, "10001-backfill"),
    ("10001/10002_2026-02-02_5#1.json.gz", Oddity.WRONG_PREFIX, "10002"),
    ("10001/10001-backfill_2026-02-02_5_complete", Oddity.WRONG_PREFIX, "10001-backfill"),
    ("10001/-189524_2020-01-25_17.json.gz", Oddity.MERGED_IDS, ""),
    ("10001-backfill/-189524_2020-01-25_17.json.gz", Oddity.MERGED_IDS, ""),
])  # fmt: skip
def test_a_name_of_another_source_or_project_is_not_loaded(key: str, oddity: Oddity, reason: str) -> None:
    answer = parsed(key, Source.BACKFILL if key.startswith("10001-backfill/") else Source.REGULAR)
    assert (answer.oddity, reason in answer.detail) == (oddity, True)


@pytest.mark.parametrize(("key", "reason"), [
    ("10001/10001_2026-02-30_5#1.json.gz", "2026-02-30 is not a date"),
    ("10001/10001_2026-02-02_24#1.json.gz", "hour 24"),
    ("10001/10001_2026-02-02_24_complete", "hour 24"),
    ("10001/10001_2026-2-2_5#1.json.gz", "grammar"),
    ("10001/10001_2026-02-02_5#-1.json.gz", "grammar"),
    ("10001/10001_2026-02-02_5#1.json.gz.tmp", "grammar"),
    ("10001/10001_2026-02-02_\N{ARABIC-INDIC DIGIT FIVE}#1.json.gz", "grammar"),
    ("10001/archive/10001_2026-02-02_5#1.json.gz", "folder below 10001/"),
    ("10001//10001_2026-02-02_5#1.json.gz", "`//`"),
    ("10002/10002_2026-02-02_5#1.json.gz", "does not lie in 10001/"),
    ("10001", "does not lie in 10001/"),
    ("10001/", "grammar"),
])  # fmt: skip
def test_any_other_name_is_reported_with_what_is_expected(key: str, reason: str) -> None:
    answer = parsed(key)
    assert (answer.oddity, reason in answer.detail) == (Oddity.UNKNOWN_NAME, True)
    assert "expected 10001/10001_YYYY-MM-DD_H#n.json.gz or 10001/10001_YYYY-MM-DD_H_complete" in answer.detail


@pytest.mark.parametrize(
    "end",
    ["", "#", "#0", "#0.json", "#0.json.gz.tmp", "%25230.json.gz", "_0.json.gz", " (1).json.gz", "#x.json.gz", "\n"],
)
@pytest.mark.parametrize("source", Source)
def test_a_cut_or_changed_name_still_says_whose_hour_it_is(end: str, source: Source) -> None:
    key = f"{source.prefix('10001')}/{source.prefix('10001')}_2026-02-02_7{end}"
    answer = parsed(key, source)
    assert (answer.oddity, answer.batch, answer.hour) == (Oddity.UNKNOWN_NAME, a_batch(source=source), 7)
    # Without a byte it has no event, like another exporter's marker.
    assert parsed(key, source, 0).batch is None


@pytest.mark.parametrize(
    "name",
    [
        "10001_2026-02-02_24", "10001_2026-02-30_7", "10001_2026-02-02", "10001_2026-02-02_7.parquet", "notes.txt",
        "10001_2026-02-02_7_manifest.json", "10002_2026-02-02_7", "-1_2026-02-02_7.json.gz",
    ],
)  # fmt: skip
def test_any_other_name_says_no_hour_nor_does_the_vendors_marker_where_other_markers_are_set(name: str) -> None:
    assert parsed(f"10001/{name}").batch is None
    marker, grammar = "10001/10001_2026-02-02_7_complete", KeyGrammar(PATTERNS[1])
    answer: Any = grammar.parse(Source.REGULAR, "10001", marker, "e", 3)
    assert (type(answer), answer.batch) == (UnrecognizedObject, None)


@pytest.mark.parametrize(("pattern", "reason"), [
    ("{prefix}_{date}_complete", r"lacks \{hour\}"),
    ("complete", r"lacks \{prefix\}, \{date\}, \{hour\}"),
    ("{prefix}_{date}_{hour}_{hour}", "twice"),
    ("{prefix}_{date}_{hour}_{minute}", "unknown"),
    ("{prefix}_{date}_{hour:02d}", "formats a placeholder"),
    ("{prefix}_{date}_{hour", "unbalanced"),
    ("markers/{prefix}_{date}_{hour}", "slash"),
    ("{prefix}_{date}_{hour}.json.gz", "name of a data file"),
    ("{prefix}_{date}_{hour}#0.json.gz", "name of a data file"),
    ("-{prefix}_{date}_{hour}.json.gz", "name of a data file"),
])  # fmt: skip
def test_a_pattern_that_cannot_work_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as refused:
        KeyGrammar(pattern)
    assert refused.value.subject == "TIDEMARK_MARKER_PATTERN"


ROOT = Path(pipeline_assets.__file__).resolve().parents[1]
EVERY_FORMAT_HAS = {EVENT_TIME, "event_type", "platform"}
"""Columns that our tables and aggregates expect of every exporter."""
MAY_NAME_COLUMNS = {
    "pipeline_assets/transforms/fold.py": "what revenue and a user are is the aggregates' own business",
    "pipeline_assets/tables/dimension.py": "so is what an item is",
    "resources/spark/jars.py": "writes an export of its own, to warm the JVM with",
}
OTHER_MEANINGS = {"app", "data", "region", "schema", "plan", "language", "library", "groups"}
"""Columns whose names are common words with other meanings."""


@pytest.mark.parametrize(("changes", "unknown"), [
    ({"received_column": "arrived"}, "arrived"),
    ({"rank_columns": ("server_upload_time", "later")}, "later"),
    ({"transport_columns": ("road",)}, "road"),
    ({"many_valued_columns": ("many",)}, "many"),
    ({"identity": IdentityColumns("insert_id", ("tenant",), "uuid")}, "tenant"),
    ({"columns": (ExportColumn("insert_id", ColumnType.STRING),)}, EVENT_TIME),
], ids=["lateness", "rank", "transport", "many-valued", "identity", "columns"])  # fmt: skip
def test_a_role_that_no_column_plays_is_refused(changes: dict[str, object], unknown: str) -> None:
    with pytest.raises(ValueError, match=rf"does not deliver: .*\b{unknown}\b"):
        replace(EXPORT_FORMAT, **changes)  # type: ignore[arg-type]


def test_what_a_task_closes_over_travels_to_other_processes_and_stays_small() -> None:
    assert pickle.loads(pickle.dumps((EXPORT_FORMAT, GRAMMAR))) == (EXPORT_FORMAT, GRAMMAR)
    assert len(pickle.dumps((EXPORT_FORMAT.line_parser, EXPORT_FORMAT.block_parser, EXPORT_FORMAT.keys))) < 500


def test_tables_hold_the_columns_of_the_format_in_its_order() -> None:
    assert CONTENT[:-1] == EXPORT_FORMAT.column_names


def test_nobody_names_a_column_of_the_exporter_past_the_format() -> None:
    names = {*EXPORT_FORMAT.column_names} - EVERY_FORMAT_HAS - OTHER_MEANINGS
    named = []
    for file in (*ROOT.glob("pipeline_assets/**/*.py"), *ROOT.glob("resources/**/*.py")):
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith("pipeline_assets/formats/") and path not in MAY_NAME_COLUMNS:
            nodes = ast.walk(ast.parse(file.read_text("utf-8")))
            constants = [node for node in nodes if isinstance(node, ast.Constant) and node.value in names]
            named += [f"{path}:{node.lineno} {node.value}" for node in constants]
    assert not named
