"""What a procedure is asked to join is named by literals: a project that somebody else wrote into a table is text."""

from __future__ import annotations

from datetime import date

from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.registry import table_by_key
from resources.iceberg.procedures import _filters

DAY = date(2026, 2, 2)
REFINED = table_by_key("refined/events")


def test_a_filter_holds_a_project_as_text() -> None:
    assert _filters(REFINED, {Slice(DAY, "10001")}) == ["project_id = '10001' AND event_date IN (DATE '2026-02-02')"]
    for hostile in ("1' OR '1'='1", '1", options => map()) --', "\\' OR TRUE --", "${env:HOME}"):
        (found,) = _filters(REFINED, {Slice(DAY, hostile)})
        literal = found.removeprefix("project_id = ").removesuffix(" AND event_date IN (DATE '2026-02-02')")
        assert literal[0] == literal[-1] == "'"
        assert not set(literal[1:-1]) & set("'\"$;()")
