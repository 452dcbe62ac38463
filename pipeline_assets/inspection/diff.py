"""Build a slice from its current inputs without publishing it, and compare it with the published one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyspark.sql.functions as F
from pyspark.sql import DataFrame, Row

from pipeline_assets.domain.acceptance import Acceptances
from pipeline_assets.domain.changes import Baseline, Cause, CauseKind, KeyChange, explain_change, is_bounded
from pipeline_assets.domain.checks import Check, Evaluation, number
from pipeline_assets.domain.errors import TidemarkError, UsageError
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.records import Head
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Verdict
from pipeline_assets.inspection.pages import render
from pipeline_assets.load.build.key_changes import MOVED, key_change
from pipeline_assets.load.build.rebuild import builder_of
from pipeline_assets.load.runtime import Outcome, Runtime, TableReport
from pipeline_assets.load.staleness.decide import SlicePlan, Todo, decide
from pipeline_assets.load.staleness.facts import Facts, cause_of, slices_to_look_at
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, ancestors
from pipeline_assets.tables.table import Measure, Table
from pipeline_assets.transforms.digests import digest_aggregates, digest_of, with_row_hashes
from pipeline_assets.transforms.key_changes import ADDED, CHANGED, REMOVED, key_changes
from resources.iceberg.errors import FAILURES
from resources.iceberg.metadata import slices_condition


@dataclass(frozen=True)
class Sample:
    """One key that would be added, removed or changed."""

    change: str
    """`added`, `removed` or `changed`."""
    cause: str
    name: str
    """The row's identifying columns, for display."""
    values: Mapping[str, tuple[str | None, str | None]]
    """Column -> (published, proposed) value, for columns that differ."""


@dataclass(frozen=True)
class Difference:
    """One slice as published, and as a load would build it now."""

    table: str
    key: Slice
    standing: str
    """The recorded verdict with its reason."""
    todo: str
    """What a load would do with the slice."""
    published: Digest
    proposed: Digest
    measures: Mapping[str, tuple[float, float]]
    """Measure -> (published, proposed)."""
    keys: KeyChange
    evaluation: Evaluation
    """`change_is_explained`, evaluated for the proposed slice."""
    is_bounded: bool
    """Whether change bounds apply; they do not for provisional days and small slices."""
    samples: tuple[Sample, ...]

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
    """The difference as lines of text; without values, a sample lists only its differing columns and does not name its row."""
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
        if not with_values:
            # The name of a row is delivered data as well: its ids, its time, a currency.
            yield f"  {sample.change} ({sample.cause}): {', '.join(sample.values)}"
            continue
        yield f"  {sample.change} ({sample.cause}): {sample.name}"
        for column, (before_value, after_value) in sample.values.items():
            yield f"    {column}: {before_value} -> {after_value}"


def _share(before: float, after: float) -> str:
    if before == after:
        return ""
    return "new" if not before else f"{(after - before) / abs(before):+.1%}"


def _by(causes: Mapping[str, int]) -> str:
    said = ", ".join(f"{cause} {count:,}" for cause, count in sorted(causes.items(), key=lambda part: -part[1]))
    return f" ({said})" if said else ""


def page_of(difference: Difference) -> str:
    """The whole page as HTML, including its style."""
    keys = difference.keys
    parts = (
        ("kept", "equal", {"": keys.kept}),
        ("changed", "different", keys.changed),
        ("removed", "only published", keys.removed),
        ("added", "only proposed", keys.added),
    )
    whole = sum(sum(causes.values()) for _, _, causes in parts) or 1
    return render("diff.html", found=difference, parts=parts, whole=whole)


def write_page(difference: Difference, folder: Path) -> Path:
    """Write the page to a file in the folder, which is created if missing; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    key = difference.key
    path = folder / f"{difference.table.replace('/', '.')}_{key.event_date}_{key.project_id}.html"
    path.write_text(page_of(difference), "utf-8")
    return path


_LONGEST_VALUE = 200


def samples_of(
    table: Table, live: DataFrame, proposed: DataFrame, changes: DataFrame, keys: KeyChange, most: int
) -> Iterator[Sample]:
    """At most a third of `most` samples (at least one) for each kind of change, chosen by the smallest key hashes.

    `changes`: the result of `key_changes` for the two frames, which hold the table's columns.
    """
    chosen = {change: _first(changes, change, max(1, most // 3)) for change in (CHANGED, REMOVED, ADDED)}
    pairs = [(row["_key_a"], row["_key_b"]) for rows in chosen.values() for row in rows]
    if not pairs:
        return
    old, new = (_rows_of(table, frame, pairs) for frame in (live, proposed))
    for change, rows in chosen.items():
        for row in rows:
            pair = (row["_key_a"], row["_key_b"])
            left, right = old.get(pair), new.get(pair)
            shown = right or left
            if shown is not None:
                cause = MOVED if row["is_moved"] else _other_cause(keys, change)
                yield Sample(change, cause, _name(table, shown), _values(table, left, right))


def _first(changes: DataFrame, change: str, most: int) -> list[Row]:
    of_kind = changes.where(F.col("change") == change).orderBy("_key_a", "_key_b").limit(most)
    return of_kind.select("_key_a", "_key_b", "is_moved").collect()


def _name(table: Table, row: Row) -> str:
    columns = builder_of(table).naming_columns
    return ", ".join(f"{name} {row[name]}" for name in columns if row[name] is not None)


def _other_cause(keys: KeyChange, change: str) -> str:
    causes = {ADDED: keys.added, REMOVED: keys.removed, CHANGED: keys.changed}[change]
    return next((cause for cause in causes if cause != MOVED), "")


def _rows_of(table: Table, frame: DataFrame, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Row]:
    firsts = [pair[0] for pair in pairs]
    rows = builder_of(table).with_keys(frame).where(F.col("_key_a").isin(firsts)).collect()
    return {(row["_key_a"], row["_key_b"]): row for row in rows}


def _values(table: Table, left: Row | None, right: Row | None) -> dict[str, tuple[str | None, str | None]]:
    def text(row: Row | None, column: str) -> str | None:
        if row is None or row[column] is None:
            return None
        value = str(row[column])
        return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"

    both = {column: (text(left, column), text(right, column)) for column in table.content_columns}
    return {column: values for column, values in both.items() if values[0] != values[1]}


_UNKNOWN = Cause.of(CauseKind.UNKNOWN)


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

    By default an aggregate is built from refined.events as the current raw rows would make it. With `on_published` it is
    built from the published refined.events, like a load that leaves refined.events alone. Raises UsageError for a table
    that is not derived, or a slice that is empty on both sides and not on record.
    """
    known = (*DERIVED, *(table for table in AS_OF_TABLES if runtime.ledger.head(table.key) is not None))
    table = next((table for table in known if table.key == name), None)
    if table is None:
        raise UsageError(name, "is not a derived table", f"There are {', '.join(table.key for table in known)}")
    key = Slice(day, project)
    heads = {pinned.key: runtime.lakehouse.head(pinned) for pinned in (*ancestors(table), table)}
    recorded = _recorded(runtime, table, key, now, heads)
    live = runtime.lakehouse.read(table, heads[name]).where(slices_condition(table, [key]))
    builder = builder_of(table)
    with builder.proposed(runtime, key, heads, on_published=on_published) as proposal:
        changes = key_changes(
            builder.contents(live),
            builder.contents(proposal.rows),
            proposal.published_near,
            proposal.proposed_near,
            table.kind.exchange_days(runtime.settings),
        ).persist()
        try:
            return _difference(runtime, table, recorded, live, proposal.rows, changes, samples)
        finally:
            changes.unpersist()


@dataclass(frozen=True)
class _Recorded:
    plan: SlicePlan
    verdict: str
    """The verdict with its reason, in words."""
    is_settled: bool
    """Whether the ledger agrees with the current tables; if not, a load first examines what else changed them."""


def _recorded(runtime: Runtime, table: Table, key: Slice, now: datetime, heads: Mapping[str, int]) -> _Recorded:
    ledger, settings = runtime.ledger, runtime.settings
    slices = slices_to_look_at(ledger, settings, [key.project_id], [key.event_date])
    facts = Facts.read(ledger, settings, slices, [table], now)
    plan = next(plan for plan in decide(facts, table, [key], Acceptances(), now) if plan.key == key)
    is_settled = all(ledger.head(name) in (Head(head), None) for name, head in heads.items())
    record = plan.record
    if record is None:
        return _Recorded(plan, "not loaded", is_settled)
    return _Recorded(plan, f"{record.verdict.value}{': ' + record.reason if record.reason else ''}", is_settled)


def _difference(
    runtime: Runtime,
    table: Table,
    recorded: _Recorded,
    live: DataFrame,
    proposed: DataFrame,
    changes: DataFrame,
    samples: int,
) -> Difference:
    before, after = _measured(table, live), _measured(table, proposed)
    plan, record = recorded.plan, recorded.plan.record
    if record is None and not before["rows"] and not after["rows"]:
        raise UsageError(
            f"{table.key} {plan.key}", "has no rows, neither published nor to come", "Check day and project"
        )
    counts = {
        (row["change"], row["is_moved"]): row["count"]
        for row in changes.groupBy("change", "is_moved").count().collect()
    }
    has_new_code = record is not None and record.code_version not in (None, table.code_version(runtime.settings))
    cause = cause_of(record.input_state if record else None, plan.present, has_new_code=has_new_code)
    keys = key_change(cause if recorded.is_settled else _UNKNOWN, counts)
    figures = [{name: number(measured[name]) for name in measures_of(table)} for measured in (before, after)]
    old, new = ({name: value for name, value in state.items() if name in table.measures} for state in figures)
    was_final = plan.was_final
    known = record.baseline.of(new) if record is not None and record.baseline is not None else Baseline(old)
    evaluation = explain_change(
        table.key,
        known if before["rows"] else Baseline(),
        new,
        keys if table.kind.bounds_keys else None,
        content=str(digest_of(after)),
        was_final=was_final,
        accepted_reason=None,
        cause=cause.text,
        settings=runtime.settings,
    )
    return Difference(
        table.key,
        plan.key,
        recorded.verdict,
        _next_load(recorded),
        digest_of(before) if before["rows"] else EMPTY,
        digest_of(after) if after["rows"] else EMPTY,
        {name: (figures[0][name], figures[1][name]) for name in figures[0]},
        keys,
        evaluation,
        is_bounded(old, new, was_final=was_final, settings=runtime.settings),
        tuple(samples_of(table, live, proposed, changes, keys, samples)) if samples else (),
    )


def measures_of(table: Table) -> Mapping[str, Measure]:
    """The measures by which two states of a slice are compared: its rows, and the table's measures."""
    return {"rows": Measure(lambda: F.count(F.lit(1))), **table.measures}


def _measured(table: Table, rows: DataFrame) -> dict[str, Any]:
    own = [measure.total().alias(name) for name, measure in measures_of(table).items() if name != "rows"]
    (measured,) = with_row_hashes(rows, table.content_columns).agg(*digest_aggregates(), *own).collect()
    return dict(measured.asDict())


_NEXT_LOAD = {
    Todo.REBUILD: "would build it",
    Todo.CHECK: "would compare it with the days near it",
    Todo.KEEP: "would leave it as it is",
    Todo.KEEP_REFUSED: "would leave it refused, unless the change is accepted",
    Todo.HOLD: "would leave it as it is",
    Todo.WAIT: "would leave it waiting",
    Todo.WAIT_TIED: "would leave it waiting",
}


def _next_load(recorded: _Recorded) -> str:
    plan = recorded.plan
    if not recorded.is_settled:
        return (
            "would look first at what changed in the tables since it was recorded, by a run that died or a foreign hand"
        )
    why = plan.reason or plan.cause.text
    return f"{_NEXT_LOAD[plan.todo]}{f' ({why})' if why else ''}"


_SAMPLES = 9


def refused_changes(runtime: Runtime, report: TableReport, now: datetime, most: int) -> Iterator[Difference]:
    """The differences of the first `most` slices whose change this load refused, if no earlier load had refused it.

    Each slice is built again for this: refusals are rare, and the staged data is gone by then. A slice that cannot be
    compared is logged and skipped, so that the load can still report the refusal.
    """
    refused = [outcome for outcome in report.outcomes if _is_refused_change(outcome)]
    for outcome in refused[:most]:
        day, project = outcome.key.event_date, outcome.key.project_id
        try:
            yield compare(runtime, outcome.table, day, project, now, samples=_SAMPLES, on_published=True)
        except (TidemarkError, *FAILURES) as error:
            runtime.log(
                f"{outcome.table} {outcome.key}: cannot be compared with what is published: {shown(error, 300)}"
            )


def _is_refused_change(outcome: Outcome) -> bool:
    failed = {evaluation.check for evaluation in outcome.evaluations if not evaluation.is_passed}
    return outcome.verdict is Verdict.REFUSED and not outcome.is_repeat and failed == {Check.CHANGE_IS_EXPLAINED}
