"""Nothing disappears and nothing is counted twice (law 7), from the bytes in landing to the rows in refined.events."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.identity import RowFate
from pipeline_assets.domain.slices import Digest, Source
from sample_export.account import REASONS, ExportAccount
from sample_export.objects import account_of, write_export, write_recovery
from sample_export.spec import ExportSpec, Recovery
from tests.support.builders import RAW_AND_REFINED, Pipeline, a_pipeline
from tests.support.reference import fates, raw_row

pytestmark = pytest.mark.slow

SPEC = ExportSpec(
    first_day=date(2026, 2, 2), days=4, events_per_day=120, hours=(0, 1, 8, 13, 22, 23), late_share=0.05,
    tail_share=0.005, delivery_duplicate_share=0.1, send_duplicate_share=0.1, moved_share=0.4, bad_lines_per_day=3,
    blank_lines_per_day=4, lost_days=(date(2026, 2, 3),), lost_share=0.1,
)  # fmt: skip
DAYS = SPEC.arrival_days
RECOVERY = Recovery(first_day=DAYS[1], last_day=DAYS[2], corrected_share=0.3)

Key = tuple[Any, ...]
"""(source, project, arrival day), with figures named as in LINES; or (project, event day), as in ROWS."""
ARRIVAL, SLICE = 3, 2
LINES = ("lines", "rows", "quarantined", "blank")
ROWS = ("raw", "refined", *REASONS)


@dataclass(frozen=True)
class Witness:
    """Figures of one place, independent of the others; figures it cannot know are absent."""

    name: str
    figures: Mapping[Key, Mapping[str, int]]


@dataclass(frozen=True)
class Moment:
    witnesses: tuple[Witness, ...]
    account: ExportAccount

    def keys(self, length: int) -> list[Key]:
        return sorted({key for witness in self.witnesses for key in witness.figures if len(key) == length})

    def said(self, key: Key, figure: str) -> dict[str, int]:
        return {
            witness.name: witness.figures.get(key, {}).get(figure, 0)
            for witness in self.witnesses
            if any(figure in figures for figures in witness.figures.values())
        }


def the_objects(landing: Path) -> Witness:
    """The bytes, by gzip and json alone; slices have the number of rows to file."""
    found: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    for path in landing.rglob("*.json.gz"):
        prefix, day, _ = path.name.split("_")
        project, is_backfill = prefix.removesuffix("-backfill"), prefix.endswith("-backfill")
        arrival = ("backfill" if is_backfill else "regular", project, date.fromisoformat(day))
        lines = gzip.decompress(path.read_bytes()).split(b"\n")
        assert lines.pop() == b"", f"{path.name} ends within a line"
        for line in lines:
            event_day = _event_day(line)
            kind = "rows" if event_day else "quarantined" if line.strip() else "blank"
            found[arrival].update(("lines", kind))
            if event_day:
                found[project, event_day]["raw"] += 1
    return Witness("objects", found)


def _event_day(line: bytes) -> date | None:
    try:
        return date.fromisoformat(json.loads(line)["event_time"][:10])
    except (ValueError, KeyError, TypeError):
        return None


def the_exporter(account: ExportAccount) -> Witness:
    found: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    for key, counts in account.arrivals.items():
        found[key].update({name: getattr(counts, name) for name in LINES})
    for key, count in account.events.items():
        found[key].update({"refined": count, "raw": count})
    for (project, day, reason), count in account.duplicates.items():
        found[project, day].update({reason: count, "raw": count})
    return Witness("exporter", found)


def the_tables(pipeline: Pipeline) -> Witness:
    """The rows as another engine reads them; outcomes by the plain rule over raw. No table holds blank lines."""
    from pyiceberg.catalog.sql import SqlCatalog

    settings = pipeline.settings
    catalog = SqlCatalog(
        settings.catalog_name, uri=settings.catalog_url, warehouse=f"file://{Path(settings.warehouse_url)}"
    )
    found: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    try:
        raw = {
            source: catalog.load_table(f"raw.{source.value}_events").scan().to_arrow().to_pylist() for source in Source
        }
        quarantine = catalog.load_table("raw.quarantine").scan().to_arrow().to_pylist()
        refined = catalog.load_table("refined.events").scan().to_arrow().to_pylist()
    finally:
        catalog.close()
    for source, rows in raw.items():
        for row in rows:
            found[source.value, row["project_id"], row["_arrival_date"]]["rows"] += 1
    for row in quarantine:
        found[row["source"], row["project_id"], row["arrival_date"]]["quarantined"] += 1
    for row in refined:
        found[row["project_id"], row["event_date"]]["refined"] += 1
    collected = [raw_row(source, row, _content(row)) for source, rows in raw.items() for row in rows]
    for row, outcome in fates(collected, settings):
        figures = found[row.project_id, row.event_date]
        figures.update(("raw", "winner" if outcome is RowFate.WINNER else outcome.value))
    for key, figures in found.items():
        assert figures.pop("winner", 0) == figures["refined"], f"{key}: other winners than rows in refined"
    return Witness("tables", found)


def _content(row: Mapping[str, Any]) -> tuple[int, int]:
    delivered = [row[name] for name in sorted(row) if not name.startswith("_") or name == "_extra"]
    content = hashlib.sha256(repr(delivered).encode()).digest()
    return int.from_bytes(content[:8]), int.from_bytes(content[8:16])


def the_ledger(pipeline: Pipeline) -> Witness:
    """The records in plain SQL; where one figure is recorded several times, all must agree."""
    found: defaultdict[Key, Counter[str]] = defaultdict(Counter)
    filed, digests, published = Counter[Key](), Counter[Key](), Counter[Key]()
    with pipeline.ledger.engine.connect() as connection:
        for row in _select(connection, "deliveries"):
            if row["is_accepted"]:
                key = row["source"], row["project_id"], date.fromisoformat(row["arrival_date"])
                found[key].update({name: row[name] for name in LINES})
        for row in _select(connection, "batch_days"):
            rows = Digest.parse(row["digest"]).rows
            filed[row["source"], row["project_id"], date.fromisoformat(row["arrival_date"])] += rows
            digests[row["project_id"], date.fromisoformat(row["event_date"])] += rows
        for row in _select(connection, "slices"):
            key = row["project_id"], date.fromisoformat(row["event_date"])
            figures, rows = json.loads(row["figures"] or "{}"), Digest.parse(row["digest"]).rows
            assert figures.get("rows", 0) == rows or row["table_name"].startswith("aggregates/"), f"{row}"
            if row["table_name"].startswith("raw/"):
                published[key] += rows
            if row["table_name"] == "refined/events":
                reasons = {reason: int(figures.get(reason, 0)) for reason in REASONS}
                found[key].update({"raw": int(figures.get("raw_rows", 0)), "refined": rows, **reasons})
    assert filed == {key: figures["rows"] for key, figures in found.items() if len(key) == ARRIVAL}, "deliveries differ"
    assert digests == published, "batch days and raw slices differ"
    assert published == {key: figures["raw"] for key, figures in found.items() if len(key) == SLICE}, "refined differs"
    return Witness("ledger", found)


def _select(connection: sa.Connection, table: str) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM tidemark_{table}")).mappings()]


def _moment(pipeline: Pipeline, account: ExportAccount) -> Moment:
    witnesses = (the_objects(pipeline.landing), the_exporter(account), the_tables(pipeline), the_ledger(pipeline))
    return Moment(witnesses, account)


@pytest.fixture(scope="module")
def moments(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Moment]]:
    """Four days in two runs, the second with facts of the first's days; then a recovery of two days that lost events."""
    with a_pipeline(
        spark, tmp_path_factory.mktemp("conservation"), projects=SPEC.projects, local_bytes=0, only=RAW_AND_REFINED
    ) as p:
        write_export(SPEC, p.landing)
        for first, last in (DAYS[:2], DAYS[2:]):
            p.must_load(first, last)
        regular = _moment(p, account_of(SPEC))
        write_recovery(SPEC, p.landing, RECOVERY.first_day, RECOVERY.last_day, corrected_share=RECOVERY.corrected_share)
        p.must_load(RECOVERY.first_day, RECOVERY.last_day, source=Source.BACKFILL)
        yield {"regular": regular, "recovered": _moment(p, account_of(SPEC, RECOVERY))}


at_both_moments = pytest.mark.parametrize("name", ["regular", "recovered"])


@at_both_moments
def test_every_line_is_a_row_quarantined_or_blank(moments: dict[str, Moment], name: str) -> None:
    """Outcome: per source and arrival day the parts add up to the lines, and all four witnesses agree."""
    moment = moments[name]
    sources = {source for source, _, _ in moment.keys(ARRIVAL)}
    assert sources == ({"regular"} if name == "regular" else {"regular", "backfill"})
    for key in moment.keys(ARRIVAL):
        said = {figure: moment.said(key, figure) for figure in LINES}
        for figure, counts in said.items():
            assert len(set(counts.values())) == 1, f"{key}: {figure} is {counts}"
            assert len(counts) >= 3, f"too few witnesses of {figure}"
            assert min(counts.values()) > 0, f"{key}: {figure} does not occur, so nothing is shown"
        counts = {figure: next(iter(counts.values())) for figure, counts in said.items()}
        assert counts["lines"] == counts["rows"] + counts["quarantined"] + counts["blank"], f"{key}: {counts}"


@at_both_moments
def test_every_row_is_an_event_or_a_duplicate_with_a_reason(moments: dict[str, Moment], name: str) -> None:
    """Scenario: rows delivered twice, sent twice, moved, late, recovered. Outcome: raw rows = events + duplicates."""
    moment = moments[name]
    occurred = Counter[str]()
    for key in moment.keys(SLICE):
        said = {figure: moment.said(key, figure) for figure in ROWS}
        for figure, counts in said.items():
            assert len(set(counts.values())) == 1, f"{key}: {figure} is {counts}"
            assert len(counts) == (4 if figure == "raw" else 3), f"other witnesses of {figure} than expected: {counts}"
        counts = {figure: next(iter(counts.values())) for figure, counts in said.items()}
        assert counts["raw"] == sum(counts[figure] for figure in ROWS[1:]), f"{key}: {counts}"
        occurred.update(counts)
    assert min(occurred[figure] for figure in ROWS) > 0, f"not every reason occurs, so nothing is shown: {occurred}"
    assert min(day for _, day in moment.keys(SLICE)) < DAYS[0], "no fact is late enough to be older than the export"


def test_a_recovery_brings_back_what_was_lost_and_adds_nothing_else(moments: dict[str, Moment]) -> None:
    """Scenario: a recovery holds lost events and all others of its days. Outcome: refined grows by the lost ones alone."""
    before, after = moments["regular"].account, moments["recovered"].account
    assert before.lost_events > 0 == after.lost_events
    assert after.events.total() - before.events.total() == before.lost_events
    complete = account_of(replace(SPEC, lost_days=()))
    assert after.events == complete.events
