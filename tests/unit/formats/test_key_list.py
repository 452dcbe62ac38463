"""A key list's first line names its columns; a line without a key is named by its number."""

from __future__ import annotations

import pytest

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.formats import key_list
from pipeline_assets.formats.key_list import read_key_list


def test_columns_go_by_the_names_of_an_export_too() -> None:
    second = 'b,10001,,"2026-02-03"\n'
    found = read_key_list(
        "keys.csv",
        ["\ufeff$insert_id,app,device_id,event_time\r\n", "a,10001,d1,2026-02-02 23:59:59.999\n", "\n", second],
    )
    assert found.columns == ("insert_id", "project", "device_id", "event_date")
    assert found.rows == [("a", "10001", "d1", "2026-02-02"), ("b", "10001", None, "2026-02-03")]
    assert (found.has_days, found.has_projects, found.has_senders, found.faults) == (True, True, True, [])
    alone = read_key_list("keys.csv", ["uuid\n", "a\n"])
    assert (alone.rows, alone.has_days, alone.has_projects, alone.has_senders) == ([("a",)], False, False, False)
    # The project is part of every key, and not a sender.
    assert not read_key_list("keys.csv", ["insert_id,app\n", "a,10001\n"]).has_senders


@pytest.mark.parametrize(
    "first", ["a-key\n", "device_id,event_date\n", "insert_id,colour\n", "insert_id,$insert_id\n", ""]
)
def test_a_list_whose_columns_nobody_names_is_refused(first: str) -> None:
    with pytest.raises(UsageError, match="does not name the columns of a list of keys"):
        read_key_list("keys.csv", [first, "a\n"])


def test_a_line_that_names_nothing_is_told_and_the_others_count() -> None:
    text = 'insert_id,day\na,2026-02-02\n,2026-02-02\nb,soon\nc\n"d,2026-02-02\ne,2026-02-02\n'
    found = read_key_list("keys.csv", text.splitlines(keepends=True))
    assert [row[0] for row in found.rows] == ["a", "e"]
    assert [fault.partition(": ")[::2] for fault in found.faults] == [
        ("keys.csv line 3", "names no key"),
        ("keys.csv line 4", "day 'soon' is none; write it as YYYY-MM-DD"),
        ("keys.csv line 5", "has not the 2 fields of the header"),
        ("keys.csv line 6", "has not the 2 fields of the header"),
    ]
    many = read_key_list("keys.csv", ["insert_id,day\n", *["x\n"] * 100])
    assert (len(many.faults), many.faulty_lines) == (20, 100)


def test_a_list_that_no_memory_may_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_list, "MOST_LINES", 3)
    with pytest.raises(UsageError, match="has more than 3 lines"):
        read_key_list("keys.csv", ["insert_id\n", "a\n", "b\n", "c\n"])
