"""Build a slice from its present inputs without publishing it, and compare it with what is published.

Lives here: what is proposed, and the comparison. Put here: another thing to look at before a change is accepted. Keep out: its
wording (difference.py) and the page (page.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row
from resources.iceberg import slices_condition

from pipeline_assets.domain.checks import KeyChange, explain_change, is_bounded
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.slices import EMPTY, Slice, neighbourhood
from pipeline_assets.load_path.derived.build_refined import build_refined
from pipeline_assets.load_path.derived.explain_keys import MOVED, key_change
from pipeline_assets.load_path.diff.difference import Difference, Sample
from pipeline_assets.load_path.ground import read_ground
from pipeline_assets.load_path.input_state import cause_of
from pipeline_assets.load_path.request import LoadRequest, Workbench
from pipeline_assets.load_path.standing import Decision, Todo, decide_all
from pipeline_assets.tables.refined_events import MEANING, REFINED_EVENTS
from pipeline_assets.tables.registry import DERIVED, table_by_key
from pipeline_assets.tables.table import AggregateTable, Table
from pipeline_assets.transforms.key_changes import (
    ADDED,
    CHANGED,
    REMOVED,
    event_contents,
    key_changes,
    named_keys,
    row_contents,
    with_event_keys,
    with_keys,
)
from pipeline_assets.transforms.measure import digest_aggregates, digest_of, number, with_row_hashes
from pipeline_assets.transforms.shared_keys import IDENTITY

_PINNED = "diff"
_UNKNOWN = "changed since it was recorded"
_LONGEST_VALUE = 200


def compare(
    bench: Workbench,
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
        one: bench.lakehouse.head(table_by_key(one)) for one in {name, REFINED_EVENTS.key, *REFINED_EVENTS.upstream}
    }
    standing = _standing(bench, table, key, now, heads)
    live = bench.lakehouse.read(table, heads[name]).where(slices_condition(table, [key]))
    with _proposed(bench, table, key, heads, on_published=on_published) as (proposed, near):
        if isinstance(table, AggregateTable):
            before, after = (row_contents(rows, table.key_columns, table.content_columns) for rows in (live, proposed))
        else:
            before, after = (event_contents(rows, MEANING) for rows in (live, proposed))
        changes = key_changes(before, after, *near, bench.settings.dedupe_window_days).persist()
        try:
            return _difference(bench, table, standing, live, proposed, changes, samples)
        finally:
            changes.unpersist()


@dataclass(frozen=True)
class _Standing:
    """What is on record of the slice."""

    decision: Decision
    told: str
    is_settled: bool
    """Whether the ledger knows the tables as they are; else a load looks first at what changed behind its back."""


def _standing(bench: Workbench, table: Table, key: Slice, now: datetime, heads: Mapping[str, int]) -> _Standing:
    request = LoadRequest((key.event_date,), (key.project_id,), frozenset({table.key}), _PINNED, now)
    ground = read_ground(bench, request)
    decision = next(found for found in decide_all(bench, request, table, ground) if found.key == key)
    is_settled = all(bench.ledger.head(name) in (head, None) for name, head in heads.items())
    record = decision.record
    if record is None:
        return _Standing(decision, "not loaded", is_settled)
    return _Standing(decision, f"{record.verdict.value}{': ' + record.reason if record.reason else ''}", is_settled)


@contextmanager
def _proposed(
    bench: Workbench, table: Table, key: Slice, heads: Mapping[str, int], *, on_published: bool
) -> Iterator[tuple[DataFrame, tuple[DataFrame, DataFrame]]]:
    """The slice's rows as they would be built, and the keys near it as published and as proposed."""
    is_slice = slices_condition(REFINED_EVENTS, [key])
    published = bench.lakehouse.read(REFINED_EVENTS, heads[REFINED_EVENTS.key])
    if isinstance(table, AggregateTable) and on_published:
        with _kept(_aggregated(bench, table, published.where(is_slice))) as rows:
            yield rows, _nowhere(rows, table)
        return
    window = bench.settings.dedupe_window_days
    # What an aggregate is made of is the day itself; only an event may move to another one.
    around = [key] if isinstance(table, AggregateTable) else sorted(neighbourhood([key], window))
    build = build_refined(bench, {name: heads[name] for name in REFINED_EVENTS.upstream}, around)
    try:
        if isinstance(table, AggregateTable):
            with _kept(_aggregated(bench, table, build.rows.where(is_slice))) as rows:
                yield rows, _nowhere(rows, table)
            return
        with _kept(build.rows) as refined:
            is_near = slices_condition(REFINED_EVENTS, around)
            identities = ("event_date", "project_id", *IDENTITY)
            near = (named_keys(published.where(is_near).select(*identities)), named_keys(refined.select(*identities)))
            yield refined.where(is_slice), near
    finally:
        build.release()


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, computed once: they are counted, compared and sampled."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def _aggregated(bench: Workbench, table: AggregateTable, refined: DataFrame) -> DataFrame:
    assert table.build is not None
    return table.build(refined, bench.settings).select(*[column.name for column in table.columns])


def _nowhere(rows: DataFrame, table: AggregateTable) -> tuple[DataFrame, DataFrame]:
    """Keys near an aggregate's slice: none, its rows do not move."""
    empty = row_contents(rows, table.key_columns, table.content_columns).limit(0)
    keys = empty.select("event_date", "project_id", "_key_a", "_key_b")
    return keys, keys


def _difference(
    bench: Workbench,
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
    has_new_code = record is not None and record.code_version not in (None, table.code_version(bench.settings))
    cause = cause_of(
        table, (record.input_state if record else None) or {}, decision.present, has_new_code=has_new_code
    )  # fmt: skip
    keys = key_change(cause if standing.is_settled else _UNKNOWN, counts)
    figures = [{name: number(found[name]) for name in _expressions(table)} for found in (before, after)]
    # What a load bounds: rows of refined.events, the declared measures of an aggregate.
    bounded = set(table.measures or ()) if isinstance(table, AggregateTable) else {"rows"}
    old, new = ({name: value for name, value in found.items() if name in bounded} for found in figures)
    was_final = record is not None and record.is_final
    evaluation = explain_change(
        table.key, old if before["rows"] else {}, new, keys if table.key == REFINED_EVENTS.key else None,
        was_final=was_final, accepted_reason=None, cause=cause, settings=bench.settings,
    )  # fmt: skip
    return Difference(
        table.key, decision.key, standing.told, _told(standing), digest_of(before) if before["rows"] else EMPTY,
        digest_of(after) if after["rows"] else EMPTY, {name: (figures[0][name], figures[1][name]) for name in figures[0]},
        keys, evaluation, is_bounded(old, new, was_final=was_final, settings=bench.settings),
        tuple(_samples(table, live, proposed, changes, keys, samples)) if samples else (),
    )  # fmt: skip


def _expressions(table: Table) -> Mapping[str, Any]:
    declared = (table.measures or {}) if isinstance(table, AggregateTable) else {}
    return {"rows": lambda: F.count(F.lit(1)), **declared}


def _measured(table: Table, rows: DataFrame) -> dict[str, Any]:
    own = [expression().alias(name) for name, expression in _expressions(table).items() if name != "rows"]
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


def _samples(
    table: Table, live: DataFrame, proposed: DataFrame, changes: DataFrame, keys: KeyChange, most: int
) -> Iterator[Sample]:
    """Some keys of each kind of change, those that a run finds first by their hash, with the columns that differ."""
    each = max(1, most // 3)
    columns = (
        table.key_columns if isinstance(table, AggregateTable) else ("insert_id", "uuid", "event_type", "event_time")
    )
    for change in (CHANGED, REMOVED, ADDED):
        chosen = (
            changes.where(F.col("change") == change)
            .orderBy("_key_a", "_key_b").limit(each).select("_key_a", "_key_b", "is_moved").collect()
        )  # fmt: skip
        if not chosen:
            continue
        moved = {(row["_key_a"], row["_key_b"]): row["is_moved"] for row in chosen}
        old, new = (_rows_of(table, frame, list(moved)) for frame in (live, proposed))
        for pair, has_moved in moved.items():
            left, right = old.get(pair), new.get(pair)
            shown = right or left
            if shown is None:
                continue
            name = ", ".join(f"{column} {shown[column]}" for column in columns if shown[column] is not None)
            yield Sample(change, MOVED if has_moved else _other_cause(keys, change), name, _values(table, left, right))


def _other_cause(keys: KeyChange, change: str) -> str:
    causes = {ADDED: keys.added, REMOVED: keys.removed, CHANGED: keys.changed}[change]
    return next((cause for cause in causes if cause != MOVED), "")


def _rows_of(table: Table, frame: DataFrame, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Row]:
    firsts = [pair[0] for pair in pairs]
    names = table.key_columns if isinstance(table, AggregateTable) else ()
    named = with_keys(frame, names) if names else with_event_keys(frame, MEANING)
    rows = named.where(F.col("_key_a").isin(firsts)).collect()
    return {(row["_key_a"], row["_key_b"]): row for row in rows}


def _values(table: Table, left: Row | None, right: Row | None) -> dict[str, tuple[str | None, str | None]]:
    def text(row: Row | None, column: str) -> str | None:
        if row is None or row[column] is None:
            return None
        value = str(row[column])
        return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"

    found = {column: (text(left, column), text(right, column)) for column in table.content_columns}
    return {column: values for column, values in found.items() if values[0] != values[1]}
