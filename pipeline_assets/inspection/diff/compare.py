"""Build a slice from its present inputs without publishing it, and compare it with what is published.

Contains: how the slice stands, and the comparison.
Add here: another figure to look at before a change is accepted.
Does not contain: what is proposed (propose.py), single keys (samples.py), wording (difference.py)
and the page (page.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from pipeline_assets.domain.change_rule import explain_change, is_bounded
from pipeline_assets.domain.changes import Baseline
from pipeline_assets.domain.checks import number
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import EMPTY, Slice
from pipeline_assets.inspection.diff.difference import Difference
from pipeline_assets.inspection.diff.propose import proposed_rows
from pipeline_assets.inspection.diff.samples import samples_of
from pipeline_assets.load.build.key_changes import key_change
from pipeline_assets.load.request import LoadRequest
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide_all
from pipeline_assets.load.staleness.facts import read_facts
from pipeline_assets.load.staleness.inputs import cause_of
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED, table_by_key
from pipeline_assets.tables.table import AggregateTable, Measure, Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.key_changes import (
    event_contents,
    key_changes,
    row_contents,
)
from resources.iceberg.metadata import slices_condition

_PINNED = "diff"
_UNKNOWN = "changed since it was recorded"


def compare(
    runtime: Runtime,
    name: str,
    day: date,
    project: str,
    now: datetime,
    *,
    samples: int = 20,
    on_published: bool = False,
) -> Difference:
    """The slice as published and as its inputs say now; publishes nothing.

    An aggregate is proposed from refined.events as raw says now, or `on_published` from it as it is published, as a load does
    that leaves refined.events alone. Raises UsageError for a table that is not derived, or a slice that is empty on both sides
    and of which nothing is on record.
    """
    table = next((table for table in DERIVED if table.key == name), None)
    if table is None:
        raise UsageError(name, "is not a derived table", f"There are {', '.join(table.key for table in DERIVED)}")
    key = Slice(day, project)
    heads = {
        one: runtime.lakehouse.head(table_by_key(one)) for one in {name, REFINED_EVENTS.key, *REFINED_EVENTS.upstream}
    }
    standing = _standing(runtime, table, key, now, heads)
    live = runtime.lakehouse.read(table, heads[name]).where(slices_condition(table, [key]))
    with proposed_rows(runtime, table, key, heads, on_published=on_published) as (proposed, near):
        if isinstance(table, AggregateTable):
            before, after = (row_contents(rows, table.key_columns, table.content_columns) for rows in (live, proposed))
        else:
            before, after = (event_contents(rows) for rows in (live, proposed))
        changes = key_changes(before, after, *near, runtime.settings.dedupe_window_days).persist()
        try:
            return _difference(runtime, table, standing, live, proposed, changes, samples)
        finally:
            changes.unpersist()


@dataclass(frozen=True)
class _Standing:
    """What is on record of the slice."""

    decision: SlicePlan
    told: str
    is_settled: bool
    """Whether the ledger knows the tables as they are; else a load looks first at what changed behind its back."""


def _standing(runtime: Runtime, table: Table, key: Slice, now: datetime, heads: Mapping[str, int]) -> _Standing:
    request = LoadRequest((key.event_date,), (key.project_id,), frozenset({table.key}), _PINNED, now)
    facts = read_facts(runtime, request)
    decision = next(found for found in decide_all(runtime, request, table, facts) if found.key == key)
    is_settled = all(runtime.ledger.head(name) in (head, None) for name, head in heads.items())
    record = decision.record
    if record is None:
        return _Standing(decision, "not loaded", is_settled)
    return _Standing(decision, f"{record.verdict.value}{': ' + record.reason if record.reason else ''}", is_settled)


def _difference(
    runtime: Runtime,
    table: Table,
    standing: _Standing,
    live: DataFrame,
    proposed: DataFrame,
    changes: DataFrame,
    samples: int,
) -> Difference:
    before, after = _measured(table, live), _measured(table, proposed)
    decision, record = standing.decision, standing.decision.record
    if record is None and not before["rows"] and not after["rows"]:
        raise UsageError(
            f"{table.key} {decision.key}", "has no rows, neither published nor to come", "Check day and project"
        )
    counts = {
        (row["change"], row["is_moved"]): row["count"]
        for row in changes.groupBy("change", "is_moved").count().collect()
    }
    has_new_code = record is not None and record.code_version not in (None, table.code_version(runtime.settings))
    cause = cause_of(
        table, (record.input_state if record else None) or {}, decision.present, has_new_code=has_new_code
    )  # fmt: skip
    keys = key_change(cause if standing.is_settled else _UNKNOWN, counts)
    figures = [{name: number(found[name]) for name in _expressions(table)} for found in (before, after)]
    # What a load bounds: rows of refined.events, the declared measures of an aggregate.
    bounded = set(table.measures) if isinstance(table, AggregateTable) else {"rows"}
    old, new = ({name: value for name, value in found.items() if name in bounded} for found in figures)
    was_final = decision.was_final
    known = record.baseline.of(new) if record is not None and record.baseline is not None else Baseline(old)
    evaluation = explain_change(
        table.key, known if before["rows"] else Baseline(), new, keys if table.key == REFINED_EVENTS.key else None,
        content=str(digest_of(after)), was_final=was_final, accepted_reason=None, cause=cause, settings=runtime.settings,
    )  # fmt: skip
    return Difference(
        table.key, decision.key, standing.told, _told(standing), digest_of(before) if before["rows"] else EMPTY,
        digest_of(after) if after["rows"] else EMPTY, {name: (figures[0][name], figures[1][name]) for name in figures[0]},
        keys, evaluation, is_bounded(old, new, was_final=was_final, settings=runtime.settings),
        tuple(samples_of(table, live, proposed, changes, keys, samples)) if samples else (),
    )  # fmt: skip


def _expressions(table: Table) -> Mapping[str, Measure]:
    declared = table.measures if isinstance(table, AggregateTable) else {}
    return {"rows": Measure(lambda: F.count(F.lit(1))), **declared}


def _measured(table: Table, rows: DataFrame) -> dict[str, Any]:
    own = [measure.total().alias(name) for name, measure in _expressions(table).items() if name != "rows"]
    (found,) = with_row_hashes(rows, table.content_columns).agg(*digest_aggregates(), *own).collect()
    return dict(found.asDict())


_TOLD = {
    Todo.REBUILD: "would build it", Todo.CHECK: "would compare it with the days near it", Todo.KEEP: "would leave it as it is",
    Todo.KEEP_REFUSED: "would leave it refused, unless the change is accepted", Todo.HOLD: "would leave it as it is",
    Todo.WAIT: "would leave it waiting", Todo.WAIT_TIED: "would leave it waiting",
}  # fmt: skip


def _told(standing: _Standing) -> str:
    decision = standing.decision
    if not standing.is_settled:
        return (
            "would look first at what changed in the tables since it was recorded, by a run that died or a foreign hand"
        )
    why = decision.reason or decision.cause
    return f"{_TOLD[decision.todo]}{f' ({why})' if why else ''}"
