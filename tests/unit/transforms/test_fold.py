"""Aggregates are folded exactly: against plain Python, in shares, and with controls that a wrong fold fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_assets.domain.checks import Check, Totals
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.identity import named
from pipeline_assets.domain.revenue import NO_MONEY, RevenueRule
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.tables.registry import AGGREGATES
from pipeline_assets.tables.table import AggregateTable
from pipeline_assets.transforms import fold_tasks
from pipeline_assets.transforms.data_files import ARROW_TYPES, FileLayout
from pipeline_assets.transforms.file_rows import SliceFile
from pipeline_assets.transforms.fold import Fold, Folded, SliceFold, columns_of, joined, rows_with, shares_of
from resources.iceberg.lake_objects import LakeObjects
from tests.support.row_hash import row_hash

SETTINGS = Settings()
RULE = RevenueRule.of(SETTINGS)
TABLES = {table.key: table for table in AGGREGATES}
COUNTS, REVENUE, USERS = "aggregates/event_counts", "aggregates/daily_revenue", "aggregates/active_users"
TYPES = {column.name: column.type for column in REFINED_EVENTS.columns}
KEY = Slice(date(2026, 2, 1), "10001")
EXACT = Context(prec=60)
REPEATS = SETTINGS.event_types_without_revenue[0]

BAGS = (
    None, "{}", '{"note": "revenue"}', '{"revenue": 2.5, "currency": "EUR"}',
    '{"revenue": "0.000001"}', '{"price": 3, "quantity": 2}',
    '{"$revenue": 9999999999999999999999, "currency": "EUR"}',
    '{"revenue": "much"}', '{"revenue": -1, "currency": " "}', '{"revenue"',
    r'{"\u0072evenue": 7, "currency": "A"}',
)  # fmt: skip
_TEXT_IDS = st.sampled_from([None, "", " ", "x", "y", "a:1"])
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "event_type": st.sampled_from([None, "", "a", "b", REPEATS]),
            "platform": st.sampled_from([None, "", " ", "unknown", "iOS", "Web"]),
            "amplitude_id": st.sampled_from([None, None, 0, 1, 2, -1, 2**63 - 1]),
            "user_id": _TEXT_IDS,
            "device_id": _TEXT_IDS,
            "data": st.sampled_from([None, "{}", '{"merged_amplitude_id": 1}', '{"merged_amplitude_id": "x"}']),
            "_extra": st.sampled_from([None, '{"merged_amplitude_id": 77}']),
            "event_properties": st.sampled_from(BAGS),
        }
    ),
    min_size=1,
    max_size=40,
)


def _fold(*keys: str) -> SliceFold:
    folds = {key: TABLES[key].fold for key in keys or (COUNTS, REVENUE, USERS)}
    return SliceFold({key: fold for key, fold in folds.items() if fold is not None}, RULE)


def _rows(events: list[dict[str, Any]]) -> pa.Table:
    arrays = {name: pa.array([e[name] for e in events], ARROW_TYPES[TYPES[name]]) for name in columns_of(_fold().facts)}
    return pa.Table.from_pydict(arrays)


def _event(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(columns_of(_fold().facts)) | {"event_type": "a"} | values


def _user(event: dict[str, Any]) -> tuple[str, Any] | None:
    merged = 1 if event["data"] == '{"merged_amplitude_id": 1}' else 77 if event["_extra"] else None
    number = event["amplitude_id"] if merged is None else merged
    if number is not None:
        return "a", number
    ids = [("u", event["user_id"]), ("d", event["device_id"])]
    return next(((kind, one) for kind, one in ids if named(one)), None)


def _expected(events: list[dict[str, Any]]) -> dict[str, Folded]:
    counts, revenue, users = defaultdict(list), defaultdict(list), defaultdict(set)
    unreadable = 0
    for event in events:
        user, bag = _user(event), event["event_properties"]
        counts[event["event_type"],].append(user)
        if user is not None:
            users[named(event["platform"]) or "unknown",].add(user)
        is_sale = event["event_type"] != REPEATS and bag is not None and any(trace in bag for trace in RULE.traces)
        money = RULE.money_of(bag) if is_sale else NO_MONEY
        if money.amount is not None:
            revenue[money.currency,].append((int(money.amount.scaleb(6)), user))
        unreadable += money.is_claimed and money.amount is None
    sums = {
        key: (sum(units for units, _ in sales), len(sales), len({user for _, user in sales if user}))
        for key, sales in revenue.items()
    }
    controls = {
        "revenue": sum(units for units, *_ in sums.values()),
        "purchases": sum(map(len, revenue.values())),
        "unreadable_revenue": unreadable,
        "events_that_repeat_revenue": sum(event["event_type"] == REPEATS for event in events),
    }
    counted = {key: (len(of_key), len({one for one in of_key if one})) for key, of_key in counts.items()}
    active = {key: (len(found),) for key, found in users.items()}
    return {
        COUNTS: Folded(counted, {"events": len(events)}),
        REVENUE: Folded(sums, controls),
        USERS: Folded(active, {"active_users": sum(map(len, users.values()))}),
    }


@settings(max_examples=50)
@given(EVENTS, st.integers(1, 3), st.integers(1, 4))
def test_a_fold_counts_as_plain_python_does(events: list[dict[str, Any]], batches: int, shares: int) -> None:
    """Scenario: nulls, blanks, merged and look-alike ids, amounts of 22 digits; in batches or shares."""
    fold, rows = _fold(), _rows(events)
    step = -(-len(events) // batches)
    parts = [fold.narrow(rows.slice(start, step)) for start in range(0, len(events), step)]
    divided = [(part, shares_of(part, shares)) for part in parts]
    told = [fold.of([part.filter(pa.array(of == share)) for part, of in divided]) for share in range(shares)]
    assert joined(told) == fold.of(parts) == _expected(events)


def test_each_fold_reads_only_its_facts() -> None:
    """Outcome: a fold alone equals the one beside others, from fewer columns."""
    events = [_event(amplitude_id=number, event_properties=BAGS[3]) for number in (1, 2)]
    for key in TABLES:
        alone = _fold(key)
        rows = alone.narrow(_rows(events).select(columns_of(alone.facts)))
        assert alone.of([rows]) == {key: _expected(events)[key]}


def test_events_are_divided_about_evenly() -> None:
    """Scenario: users by number, by text, unknown ones, and a fold that counts no users."""
    numbers = _rows([_event(amplitude_id=700_000_000_000 + number) for number in range(4_000)])
    texts = _rows([_event(user_id=f"user-{number}") for number in range(4_000)])
    unknown = _rows([_event()] * 4_000)
    for rows in (numbers, texts, unknown):
        assert np.bincount(shares_of(_fold(COUNTS).narrow(rows), 4)).min() > 800
    assert np.bincount(shares_of(unknown.select(["event_type"]), 4)).tolist() == [1_000] * 4


PARTS = ["a", "ab", "ba", "é", "\\", "aba", "$a", "a.b", "[a]", "a\nb", "a b", "(?i)a", "a|b", "\\E", "\x00"]


@settings(max_examples=80)
@given(
    st.lists(st.none() | st.sampled_from(PARTS) | st.text("ab\\é$.[]\n A|\x00", max_size=6), max_size=12),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
)
def test_one_search_for_several_parts_finds_what_one_for_each_finds(texts: list[str | None], parts: list[str]) -> None:
    """Scenario: parts with the signs of patterns, nulls. Outcome: the texts that contain a part."""
    found = rows_with(pa.array(texts, pa.string()), parts)
    assert found.tolist() == [text is not None and any(part in text for part in parts) for text in texts]


def _one_less(folded: Folded) -> Folded:
    key, values = next(iter(folded.rows.items()))
    return replace(folded, rows={**folded.rows, key: (values[0] - 1, *values[1:])})


def _one_group_less(folded: Folded) -> Folded:
    return replace(folded, rows=dict(list(folded.rows.items())[1:]))


@pytest.mark.parametrize("key", TABLES)
@pytest.mark.parametrize("broken", [_one_less, _one_group_less])
def test_a_wrong_fold_does_not_reconcile(key: str, broken: Any, tmp_path: Path) -> None:
    """Scenario: a fold counts one too few, or forgets a group. Outcome: its files differ from its controls."""
    event = _event(platform="Web", amplitude_id=1, event_properties=BAGS[3])
    rows = _rows([event, {**event, "event_type": "b", "platform": None, "event_properties": BAGS[5]}])
    table, right = TABLES[key], _fold(key)
    fold = right.folds[key]
    wrong = SliceFold({key: Fold(fold.facts, lambda facts: broken(fold.function(facts)))}, RULE)

    def evaluation(one: SliceFold) -> Any:
        (told,) = fold_tasks.write_slices(_tables(table, tmp_path), [(KEY, one.of([one.narrow(rows)]))])
        written = told[1][key]
        assert Check.RECONCILES_WITH_REFINED.evaluate is not None
        return Check.RECONCILES_WITH_REFINED.evaluate(Totals(written.totals, written.controls, SETTINGS))

    assert evaluation(right).is_passed
    assert not evaluation(wrong).is_passed


def _tables(table: AggregateTable, folder: Path) -> dict[str, fold_tasks.FoldedTable]:
    types = {column.name: column.type for column in table.columns}
    layout = FileLayout(
        table_uuid="t", folder="data", field_ids={name: at for at, name in enumerate(types, 1)}, types=types,
        required=frozenset(), many_valued=frozenset(), day_column="event_date",
        spec_id=0, sort_order_id=1,
    )  # fmt: skip
    form = fold_tasks.TableRows(types, table.key_columns, table.partition_columns, table.write_order)
    store = LakeObjects(f"file://{folder}")
    return {table.key: fold_tasks.FoldedTable(form, layout, store, table.content_columns, tuple(table.measures))}


SALES = st.tuples(st.integers(-(10**30), 10**30), st.integers(0, 2**40), st.integers(0, 9))


@settings(max_examples=10)
@given(rows=st.dictionaries(st.tuples(st.none() | st.text(max_size=3)), SALES, min_size=1, max_size=6))
def test_what_is_read_back_is_what_was_folded(tmp_path_factory: Any, rows: Any) -> None:
    """Scenario: amounts of 30 digits, null and empty names. Outcome: the rows' digest and totals, by reference hashes."""
    table, folder = TABLES[REVENUE], tmp_path_factory.mktemp("files")
    tables, other = _tables(table, folder), replace(KEY, project_id="2")
    folded = [(KEY, {REVENUE: Folded(rows, {"revenue": 7})}), (other, {REVENUE: Folded(rows)})]
    told = dict(fold_tasks.write_slices(tables, folded))
    first, second = told[KEY][REVENUE], told[other][REVENUE]
    assert first.controls == {"revenue": Decimal("0.000007")}
    types = {column.name: column.type for column in table.columns if column.name in table.content_columns}
    content = [(*key, EXACT.scaleb(Decimal(units), -6), *counts) for key, (units, *counts) in rows.items()]
    hashes = [row_hash(dict(zip(types, row, strict=True)), types) for row in content]
    for written in (first, second):
        digest = written.digest
        assert [digest.rows, digest.sum_a, digest.sum_b] == [len(rows), *map(sum, zip(*hashes, strict=True))]
        assert written.totals == {
            "revenue": EXACT.scaleb(Decimal(sum(units for units, *_ in rows.values())), -6),
            "purchases": sum(count for _, count, _ in rows.values()),
        }
        tables[REVENUE].discard(written)
    assert not list(folder.rglob("*.parquet"))


def test_a_slice_without_rows_has_controls_and_no_file(tmp_path: Path) -> None:
    """Scenario: a day without revenue. Outcome: the control says that no file is missing."""
    told = fold_tasks.write_slices(_tables(TABLES[REVENUE], tmp_path), [(KEY, {REVENUE: Folded({}, {"purchases": 0})})])
    assert told == [(KEY, {REVENUE: fold_tasks.WrittenSlice(controls={"purchases": 0})})]
    assert not list(tmp_path.rglob("*.parquet"))


def test_files_of_a_task_that_fails_are_deleted(tmp_path: Path) -> None:
    """Scenario: the second slice of a task cannot be read. Outcome: the error, and no file of the first one."""

    def slices() -> Iterator[tuple[Slice, dict[str, Folded]]]:
        yield KEY, {REVENUE: Folded({("EUR",): (1, 1, 1)})}
        raise LakehouseError("refined/events", "a file is gone", "Look for it")

    with pytest.raises(LakehouseError):
        fold_tasks.write_slices(_tables(TABLES[REVENUE], tmp_path), slices())
    assert not list(tmp_path.rglob("*.parquet"))


@settings(max_examples=15)
@given(events=EVENTS, files=st.integers(1, 3), count=st.integers(1, 4))
def test_a_slice_in_shares_is_the_slice_as_a_whole(
    tmp_path_factory: Any, events: list[dict[str, Any]], files: int, count: int
) -> None:
    """Outcome: one task and shares that read each file once fold every row once, to the same rows and controls."""
    folder, fold, rows = tmp_path_factory.mktemp("refined"), _fold(), _rows(events)
    step = -(-len(events) // files)
    slice_files = []
    for start in range(0, len(events), step):
        pq.write_table(part := rows.slice(start, step), folder / f"{start}.parquet", row_group_size=7)
        slice_files.append(SliceFile("refined/events", KEY, f"{start}.parquet", 1, len(part)))
    types = {name: TYPES[name] for name in columns_of(fold.facts)}
    read = partial(fold_tasks.read_facts, LakeObjects(f"file://{folder}"), fold, types)
    tables = {key: one for table in TABLES.values() for key, one in _tables(table, folder).items()}

    ((key, folded, whole),) = fold_tasks.fold_slices(read, fold, tables, [slice_files])
    of_share: dict[int, list[bytes]] = defaultdict(list)
    for number, told in fold_tasks.divide_facts(read, {KEY: range(5, 5 + count)}, slice_files):
        of_share[number].append(told)
    shares = [fold_tasks.fold_share(fold, [KEY] * (5 + count), number, told) for number, told in of_share.items()]

    assert (key, folded) == (KEY, len(events)) == (shares[0][0], sum(rows for _, rows, _ in shares))
    ((_, divided),) = fold_tasks.write_slices(tables, [(KEY, joined(told for _, _, told in shares))])
    first, second = ({name: replace(one, files=()) for name, one in made.items()} for made in (divided, whole))
    assert first == second
