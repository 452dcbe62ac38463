"""Build a slice from its current inputs without publishing it, and compare it with the published one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.changes import Baseline, Cause, CauseKind, KeyChange, explain_change, is_bounded
from pipeline_assets.domain.checks import Check, Evaluation, number
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.inspection.pages import render
from pipeline_assets.load.build.builder import kept
from pipeline_assets.load.build.rebuild import builder_of
from pipeline_assets.load.build.refined_audit import MOVED, key_change
from pipeline_assets.load.runtime import Runtime, TableReport
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, cause_of, slices_to_look_at
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, ancestors
from pipeline_assets.tables.table import Measure, Table
from pipeline_assets.transforms.digests import (
    ADDED,
    CHANGED,
    REMOVED,
    checked_hashes,
    digest_aggregates,
    digest_of,
    key_changes,
)
from resources.iceberg.errors import FAILURES
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class Sample:
    """One key that would be added, removed or changed."""

    change: str
    cause: str
    name: str
    values: Mapping[str, tuple[str | None, str | None]]
    """Column -> (published, proposed) value, for columns that differ."""


@dataclass(frozen=True)
class Difference:
    """One slice as published, and as a load would build it now."""

    table: str
    key: Slice
    standing: str
    todo: str
    published: Digest
    proposed: Digest
    measures: Mapping[str, tuple[float, float]]
    """Measure -> (published, proposed)."""
    keys: KeyChange
    evaluation: Evaluation
    is_bounded: bool
    """Whether change bounds apply; they do not for provisional days and small slices."""
    samples: tuple[Sample, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same rows."""
        return self.published == self.proposed

    @property
    def verdict(self) -> str:
        """The result of `change_is_explained`, in words."""
        if not self.is_bounded:
            return "not bounded: the day was provisional, or the slice is small"
        return "keeps within bounds" if self.evaluation.is_passed else f"refused: {self.evaluation.reason}"


def lines_of(difference: Difference, *, with_values: bool = True) -> Iterator[str]:
    """The difference as lines of text; without values, a sample lists its differing columns and does not name its row."""
    found = difference
    yield f"{found.table} {found.key}"
    yield f"  on record: {found.standing}"
    yield f"  a load of the day: {found.todo}"
    yield ""
    yield f"  {'':<24}{'published':>16}{'proposed':>16}{'change':>12}"
    for name, (before, after) in found.measures.items():
        yield f"  {name:<24}{before:>16,.12g}{after:>16,.12g}{_share(before, after):>12}"
    yield ""
    keys = found.keys
    yield f"  keys only published: {keys.totals['keys_removed']:,}{_by(keys.removed)}"
    yield f"  keys only proposed:  {keys.totals['keys_added']:,}{_by(keys.added)}"
    yield f"  keys that differ:    {keys.totals['keys_changed']:,}{_by(keys.changed)}"
    yield f"  keys that are equal: {keys.kept:,}"
    yield ""
    yield f"  {found.verdict}"
    for sample in found.samples:
        yield ""
        # A row's name is delivered data as well: its ids, its time.
        yield f"  {sample.change} ({sample.cause}): {sample.name if with_values else ', '.join(sample.values)}"
        for column, (before_value, after_value) in sample.values.items() if with_values else ():
            yield f"    {column}: {before_value} -> {after_value}"


def _share(before: float, after: float) -> str:
    if before == after:
        return ""
    return "new" if not before else f"{(after - before) / abs(before):+.1%}"


def _by(causes: Mapping[str, int]) -> str:
    said = ", ".join(f"{cause} {count:,}" for cause, count in sorted(causes.items(), key=lambda part: -part[1]))
    return f" ({said})" if said else ""


def write_page(difference: Difference, folder: Path) -> Path:
    """Write the page as HTML to a file in the folder, created if missing; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    key, keys = difference.key, difference.keys
    parts = (
        ("kept", "equal", {"": keys.kept}),
        ("changed", "different", keys.changed),
        ("removed", "only published", keys.removed),
        ("added", "only proposed", keys.added),
    )
    whole = sum(sum(causes.values()) for _, _, causes in parts) or 1
    path = folder / f"{difference.table.replace('/', '.')}_{key.event_date}_{key.project_id}.html"
    path.write_text(render("diff.html", found=difference, parts=parts, whole=whole), "utf-8")
    return path


_LONGEST_VALUE = 200


def samples_of(
    table: Table, live: DataFrame, proposed: DataFrame, changes: DataFrame, keys: KeyChange, most: int
) -> Iterator[Sample]:
    """At most a third of `most` samples, at least one, per kind of change in `changes` (of `key_changes`), by key hash."""
    builder = builder_of(table)
    place = ("_key_a", "_key_b")
    chosen = {}
    for change in (CHANGED, REMOVED, ADDED):
        first = changes.where(F.col("change") == change).orderBy(*place).limit(max(1, most // 3))
        chosen[change] = first.select(*place, "is_moved").collect()
    firsts = [row["_key_a"] for rows in chosen.values() for row in rows]
    if not firsts:
        return
    old, new = (
        {(row["_key_a"], row["_key_b"]): row for row in found.where(F.col("_key_a").isin(firsts)).collect()}
        for found in (builder.with_keys(live), builder.with_keys(proposed))
    )
    causes = {ADDED: keys.added, REMOVED: keys.removed, CHANGED: keys.changed}
    for change, rows in chosen.items():
        other_cause = next((cause for cause in causes[change] if cause != MOVED), "")
        for row in rows:
            left, right = (side.get((row["_key_a"], row["_key_b"])) for side in (old, new))
            shown = right or left
            if shown is not None:
                named = [f"{name} {shown[name]}" for name in builder.naming_columns if shown[name] is not None]
                cause = MOVED if row["is_moved"] else other_cause
                yield Sample(change, cause, ", ".join(named), _values(table, left, right))


def _values(table: Table, left: Row | None, right: Row | None) -> dict[str, tuple[str | None, str | None]]:
    def text(row: Row | None, column: str) -> str | None:
        if row is None or row[column] is None:
            return None
        value = str(row[column])
        return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"

    both = {column: (text(left, column), text(right, column)) for column in table.content_columns}
    return {column: values for column, values in both.items() if values[0] != values[1]}


@dataclass(frozen=True)
class State:
    """A slice as published, or as built from one set of inputs and settings."""

    rows: DataFrame
    digest: Digest
    figures: Mapping[str, float]


def state_of(table: Table, key: Slice, rows: DataFrame) -> State:
    """Measure the slice among these rows in one pass; a caller that compares it with another state persists the rows."""
    own = rows.where(slices_condition(table, [key]))
    hashed, also = checked_hashes(own, table.content_columns)
    measures = {"rows": Measure(lambda: F.count(F.lit(1))), **table.measures}
    totals = [measure.total().alias(name) for name, measure in measures.items() if name != "rows"]
    (measured,) = hashed.agg(*digest_aggregates(), *also, *totals).collect()
    found = measured.asDict()
    digest = digest_of(found) if found["rows"] else EMPTY
    return State(own, digest, {name: float(number(found[name])) for name in measures})


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
    """Compare the published slice with a build from its current inputs; publishes nothing.

    An aggregate is built from refined.events as current raw rows would make it, or, with `on_published`, as published. Raises
    UsageError for a table that is not derived, or a slice that is empty on both sides and not on record.
    """
    known = (*DERIVED, *(table for table in AS_OF_TABLES if runtime.ledger.head(table.key) is not None))
    table = next((table for table in known if table.key == name), None)
    if table is None:
        raise UsageError(name, "is not a derived table", f"There are {', '.join(table.key for table in known)}")
    key, ledger, settings = Slice(day, project), runtime.ledger, runtime.settings
    heads = {pinned.key: runtime.lakehouse.head(pinned) for pinned in (*ancestors(table), table)}
    facts = Facts.read(ledger, settings, slices_to_look_at(ledger, settings, [project], [day]), [table], now)
    plan = next(plan for plan in decide(facts, table, [key], {}, now) if plan.key == key)
    is_settled = all(ledger.head(name) in (Head(head), None) for name, head in heads.items())
    live, builder = runtime.lakehouse.read(table, heads[name]), builder_of(table)
    own = live.where(slices_condition(table, [key]))
    near = table.kind.exchange_days(settings)
    with builder.proposed(runtime, key, heads, on_published=on_published) as proposal:
        contents = (builder.contents(own), builder.contents(proposal.rows))
        with kept(key_changes(*contents, proposal.published_near, proposal.proposed_near, near)) as changes:
            states = state_of(table, key, own), state_of(table, key, proposal.rows)
            found = _difference(settings, table, plan, states, changes, is_settled)
            if not samples:
                return found
            shown = samples_of(table, states[0].rows, states[1].rows, changes, found.keys, samples)
            return replace(found, samples=tuple(shown))


def _difference(
    settings: Settings, table: Table, plan: SlicePlan, states: tuple[State, State], changes: DataFrame, is_settled: bool
) -> Difference:
    before, after, record = *states, plan.record
    if record is None and not before.figures["rows"] and not after.figures["rows"]:
        hint = "Check day and project"
        raise UsageError(f"{table.key} {plan.key}", "has no rows, neither published nor to come", hint)
    counts = {
        (row["change"], row["is_moved"]): row["count"]
        for row in changes.groupBy("change", "is_moved").count().collect()
    }
    has_new_code = record is not None and record.code_version not in (None, table.code_version(settings))
    cause = cause_of(record.input_state if record else None, plan.present, has_new_code=has_new_code)
    keys = key_change(cause if is_settled else Cause.of(CauseKind.UNKNOWN), counts)
    old, new = ({name: state.figures[name] for name in table.measures} for state in states)
    known = record.baseline.of(new) if record is not None and record.baseline is not None else Baseline(old)
    evaluation = explain_change(
        table.key,
        known if before.figures["rows"] else Baseline(),
        new,
        keys if table.kind.bounds_keys else None,
        content=str(after.digest),
        was_final=plan.was_final,
        accepted_reason=None,
        cause=cause.text,
        settings=settings,
    )
    why = plan.reason or plan.cause.text
    return Difference(
        table.key,
        plan.key,
        "not loaded" if record is None else ": ".join(filter(None, (record.verdict.value, record.reason))),
        f"{_NEXT_LOAD[plan.todo]}{f' ({why})' if why else ''}" if is_settled else _UNSETTLED,
        before.digest,
        after.digest,
        {name: (before.figures[name], after.figures[name]) for name in before.figures},
        keys,
        evaluation,
        is_bounded(old, new, was_final=plan.was_final, settings=settings),
    )


_LEAVES, _WAITS = "would leave it as it is", "would leave it waiting"
_NEXT_LOAD = {Todo.REBUILD: "would build it", Todo.CHECK: "would compare it with the days near it"}
_NEXT_LOAD |= {Todo.KEEP: _LEAVES, Todo.HOLD: _LEAVES, Todo.WAIT: _WAITS, Todo.WAIT_TIED: _WAITS}
_NEXT_LOAD[Todo.KEEP_REFUSED] = "would leave it refused, unless the change is accepted"
_UNSETTLED = (
    "would look first at what changed in the tables since it was recorded, by a run that died or a foreign hand"
)


def refused_changes(runtime: Runtime, report: TableReport, now: datetime, most: int) -> Iterator[Difference]:
    """Build the first `most` slices whose change this load refused first again, for their differences; failures are logged."""
    refused = (one for one in report.outcomes if one.verdict is Verdict.REFUSED and not one.is_repeat)
    failed = ((one, {of.check for of in one.evaluations if not of.is_passed}) for one in refused)
    for outcome in [one for one, checks in failed if checks == {Check.CHANGE_IS_EXPLAINED}][:most]:
        day, project = outcome.key.event_date, outcome.key.project_id
        try:
            yield compare(runtime, outcome.table, day, project, now, samples=9, on_published=True)
        except (TidemarkError, *FAILURES) as error:
            runtime.log(
                f"{outcome.table} {outcome.key}: cannot be compared with what is published: {shown(error, 300)}"
            )
