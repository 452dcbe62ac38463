"""The load path follows a table's kind, and no module tests for a certain table."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets import tables
from pipeline_assets.domain.checks import Check, CheckRule, Evaluation
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import InputDay, InputState, SliceRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Digest, Slice, Verdict
from pipeline_assets.load.build.aggregate import AggregateBuilder
from pipeline_assets.load.build.builder import Audit, StagedSlices, TablePlan
from pipeline_assets.load.build.rebuild import BUILDERS, builder_of
from pipeline_assets.load.build.verdicts import judge
from pipeline_assets.load.runtime import LoadRequest, Runtime
from pipeline_assets.load.staleness.decide import SlicePlan, Todo
from pipeline_assets.load.staleness.facts import Facts, slices_to_look_at
from pipeline_assets.load.staleness.scan import decide_with_neighbours
from pipeline_assets.tables.aggregates import EVENT_COUNTS
from pipeline_assets.tables.dimension import ITEM
from pipeline_assets.tables.events import QUARANTINE
from pipeline_assets.tables.registry import AS_OF_TABLES, DERIVED, RESTORABLE, ancestors, with_descendants
from pipeline_assets.tables.table import Table, TableKind
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger

ROOT = Path(__file__).resolve().parents[3]
PROJECT, DAY, NOW = "10001", date(2026, 2, 4), datetime(2026, 2, 20, 12, tzinfo=UTC)
BEFORE, LONG_BEFORE = DAY - timedelta(days=1), DAY - timedelta(days=2)
UPSTREAM = "refined/events"


class TwoDays(TableKind):
    """A toy: each slice reads its own day and the one before, and gives rows to the days beside it."""

    name = "two days"

    def input_days(self, upstream: str, day: date, settings: Settings) -> tuple[date, ...]:
        return (day - timedelta(days=1), day)

    def exchange_days(self, settings: Settings) -> int:
        return 1


class LinkedDays(AggregateBuilder):
    """Its builder links two days."""

    def links(self, plan: TablePlan, staged: StagedSlices) -> set[tuple[Slice, Slice]]:
        return {(Slice(BEFORE, PROJECT), Slice(DAY, PROJECT))}


REFUSABLE = CheckRule("refusable")
TWO_DAYS = TwoDays()
TOY = replace(EVENT_COUNTS, key="aggregates/toy", kind=TWO_DAYS, checks=(REFUSABLE, Check.CHANGE_IS_EXPLAINED))


def record(table: str, day: date, **more: Any) -> SliceRecord:
    return SliceRecord(table, Slice(day, PROJECT), Verdict.PUBLISHED, digest=Digest(day.day, 1, 1), **more)


def decided(ledger: Ledger, table: Table) -> dict[date, SlicePlan]:
    settings = Settings(projects=(PROJECT,), dedupe_window_days=0)
    facts = Facts.read(ledger, settings, slices_to_look_at(ledger, settings, [PROJECT], [DAY]), [table], NOW)
    plans = decide_with_neighbours(ledger, facts, table, [Slice(DAY, PROJECT)], {}, NOW)
    return {plan.key.event_date: plan for plan in plans}


def test_inputs_are_of_the_days_that_the_kind_names_and_days_are_looked_at_as_far_as_it_exchanges_rows(
    ledger: Ledger,
) -> None:
    """Scenario: three days of refined events. Outcome: an aggregate reads one of them and looks at it alone; the toy
    reads two, and its neighbours are looked at, and theirs."""
    ledger.record(Changes(slices=[record(UPSTREAM, day) for day in (LONG_BEFORE, BEFORE, DAY)]), "run")
    counts, toys = decided(ledger, EVENT_COUNTS), decided(ledger, TOY)
    assert (counts.keys(), counts[DAY].present.upstream.keys()) == ({DAY}, {InputDay(UPSTREAM, DAY)})
    assert (toys.keys(), toys[DAY].todo) == ({LONG_BEFORE, BEFORE, DAY}, Todo.REBUILD)
    assert toys[DAY].present.upstream.keys() == {InputDay(UPSTREAM, BEFORE), InputDay(UPSTREAM, DAY)}


def test_slices_that_the_kind_links_are_published_together(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a check refuses the first of two days. Outcome: the second waits if the builder links them."""
    days = {day: Slice(day, PROJECT) for day in (BEFORE, DAY)}
    plans = [SlicePlan(days[day], Todo.REBUILD, InputState(), record(TOY.key, day), is_requested=True) for day in days]
    runtime = Runtime(None, ledger, None, Settings(projects=(PROJECT,)))  # type: ignore[arg-type]
    request = LoadRequest((BEFORE, DAY), (PROJECT,), frozenset({TOY.key}), "run", NOW)
    plan = TablePlan(runtime, request, TOY, 1, {}, "run_0", plans, 0.0)

    def audit(day: date) -> Audit:
        refused = Evaluation(REFUSABLE, day == DAY, None if day == DAY else "is bad")
        return Audit(Digest(99, 1, 1), {"events": 99}, {}, (refused,))

    staged = StagedSlices(2, {key: audit(day) for day, key in days.items()})
    for builder, then in ((LinkedDays, Verdict.WAITING), (AggregateBuilder, Verdict.PUBLISHED)):
        monkeypatch.setitem(BUILDERS, TWO_DAYS, builder)
        judged = judge(plan, builder_of(plan.table), staged)
        verdicts = [judged[key].record.verdict for key in sorted(judged)]
        assert verdicts == [Verdict.REFUSED, then]
        assert [judged[key].is_changed for key in sorted(judged)] == [False, then is Verdict.PUBLISHED]


def test_every_derived_table_has_a_builder_and_a_kind_without_one_is_named() -> None:
    assert [builder_of(table).table for table in RESTORABLE] == list(RESTORABLE)
    with pytest.raises(UsageError, match="raw/quarantine: is a delivered table, which nothing builds"):
        builder_of(QUARANTINE)


def test_what_follows_from_a_table_is_read_from_the_declarations() -> None:
    refined, *aggregates = DERIVED
    assert [table.key for table in ancestors(refined)] == ["raw/regular_events", "raw/backfill_events"]
    assert with_descendants(refined) == (*DERIVED, *AS_OF_TABLES)
    follow = ["dimensions/item_snapshot", "dimensions/item_validity", "aggregates/active_item_events"]
    assert [table.key for table in with_descendants(ITEM.snapshot)] == follow
    assert with_descendants(aggregates[-1]) == (aggregates[-1],)
    assert ancestors(aggregates[-1]) == (*ancestors(refined), refined)


ASKED_ELSEWHERE = {
    "pipeline_assets/load/draft.py": "quarantine is in no ledger: what it holds follows from the deliveries that are",
    "pipeline_assets/operations/maintenance.py": "quarantine is in no ledger: its slices and old rows are found in its files",
    "pipeline_assets/orchestration/assets.py": "run config accepts missing deliveries of raw tables, and changes of the others",
    "pipeline_assets/load/build/verdicts.py": "a recovery brings events, so their rows in refined tell what days grow by",
    "pipeline_assets/load/ledger_sync.py": "quarantine is in no ledger, so a new one needs nothing of it",
    "pipeline_assets/cli/terminal.py": "its Table is one of a report",
    "pipeline_assets/drill/drill.py": "the drill delivers to one source, so the other's table stays empty",
}
"""Modules that may test for a table, and the reason."""
AT_HOME = "pipeline_assets/tables/"


DECLARED = {
    name: value
    for module in pkgutil.iter_modules(tables.__path__, "pipeline_assets.tables.")
    for name, value in vars(importlib.import_module(module.name)).items()
}
OBJECTS = {"RAW_TABLES", *(name for name, value in DECLARED.items() if isinstance(value, Table | TableKind))}
CLASSES = {name for name, value in DECLARED.items() if isinstance(value, type) and issubclass(value, Table | TableKind)}
KEYS = {table.key for table in (*DERIVED, *ancestors(DERIVED[0]), QUARANTINE)}


def _names_a_table(node: ast.expr) -> bool:
    """Whether an operand is a table, its key, a kind, its name, or a collection of them."""
    if isinstance(node, ast.Constant):
        return node.value in KEYS
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names_a_table, node.elts))
    if ast.unparse(node).endswith(".kind.name"):
        return True
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return isinstance(node, ast.Name) and node.id in OBJECTS


def lines_that_test(source: str) -> list[int]:
    """Lines that compare with a known table or kind, or test for a class of tables."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(map(_names_a_table, (node.left, *node.comparators))):
            lines.append(node.lineno)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            lines += [node.lineno] if CLASSES & names else []
        if isinstance(node, ast.MatchValue) and _names_a_table(node.value):
            lines.append(node.value.lineno)
        if isinstance(node, ast.MatchClass) and ast.unparse(node.cls) in CLASSES:
            lines.append(node.cls.lineno)
    return lines


@pytest.mark.parametrize(("line", "is_test"), [
    ("if table == REFINED_EVENTS: pass", True),
    ("x = 1 if table.key != REFINED_EVENTS.key else 0", True),
    ('known = [table for table in tables if table.key == "refined/events"]', True),
    ("is_near = table.key in (REFINED_EVENTS.key, other)", True),
    ("names = table.key_columns if isinstance(table, AggregateTable) else ()", True),
    ("assert not isinstance(table.kind, (Refined, Aggregate))", True),
    ("if table.kind is AGGREGATE: pass", True),
    ('if table.kind.name == "refined": pass', True),
    ("if table in RAW_TABLES.values(): pass", True),
    ("match table.key:\n    case REFINED_EVENTS.key: pass", True),
    ("match table:\n    case AggregateTable(): pass", True),
    ("rows = lakehouse.read(REFINED_EVENTS, pin)", False),
    ("days = table.kind.input_days(name, day, settings)", False),
    ("if RAW_TABLES[source].key not in request.tables: pass", False),
    ("if table.key not in request.tables: pass", False),
])  # fmt: skip
def test_a_test_for_a_table_is_found_and_a_use_of_one_is_none(line: str, is_test: bool) -> None:
    assert bool(lines_that_test(line)) is is_test


def test_no_module_tests_which_table_it_has_in_hand() -> None:
    """Ask `table.kind` (tables/table.py) or `builder_of(table)` (load/build/builder.py), which new kinds answer too."""
    found = {}
    for path in (*ROOT.glob("pipeline_assets/**/*.py"), *ROOT.glob("resources/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(AT_HOME) and (lines := lines_that_test(path.read_text("utf-8"))):
            found[name] = lines
    assert found.keys() == ASKED_ELSEWHERE.keys(), found
