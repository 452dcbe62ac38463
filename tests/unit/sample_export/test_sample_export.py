"""The sample exporter is seeded, stable under range, as odd as real exports, and its account is true."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.identity import RowFate
from pipeline_assets.formats.amplitude.columns import DELIVERED_KEYS
from sample_export import demo
from sample_export.account import REASONS, ExportAccount
from sample_export.demo_account import expected_figures
from sample_export.events import KEYS
from sample_export.objects import account_of, iter_export, write_export, write_recovery
from sample_export.spec import ExportSpec, Recovery

SPEC = ExportSpec(
    projects=("10001",), days=3, events_per_day=300, late_share=0.1, tail_share=0.05, delivery_duplicate_share=0.1,
    send_duplicate_share=0.1, moved_share=0.3, bad_lines_per_day=2, blank_lines_per_day=4,
)  # fmt: skip
DAYS = SPEC.arrival_days
Counts = Counter[tuple[str, date]]


def _export(spec: ExportSpec) -> tuple[dict[str, bytes], ExportAccount]:
    account = ExportAccount()
    return {exported.key: exported.body for exported in iter_export(spec, account)}, account


def _folder(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.gz")}


def _lines(objects: dict[str, bytes]) -> list[tuple[str, bytes]]:
    bodies = {key: gzip.decompress(body) for key, body in sorted(objects.items()) if key.endswith(".gz")}
    return [(key, line) for key, body in bodies.items() for line in body.split(b"\n")[:-1]]


def _rows(objects: dict[str, bytes]) -> list[dict[str, Any]]:
    found = []
    for key, line in _lines(objects):
        with suppress(ValueError):
            row = json.loads(line)
            found += [row | {"_key": key}] if isinstance(row, dict) and "event_time" in row else []
    return found


@pytest.fixture(scope="module")
def exported() -> tuple[dict[str, bytes], ExportAccount, list[dict[str, Any]]]:
    """Objects, account and rows of SPEC."""
    objects, account = _export(SPEC)
    return objects, account, _rows(objects)


def _day(time: str) -> date:
    return date.fromisoformat(time[:10])


def _place(key: str) -> tuple[date, int]:
    """Day and hour of arrival."""
    _, day, hour = key.split("_")[:3]
    return _day(day), int(hour.partition("#")[0])


def _arrival(key: str) -> date:
    return _place(key)[0]


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["server_upload_time"], row["processed_time"]


def _same_event(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of one event each, by the vendor's documentation: insert id, device and app; else the uuid."""
    found: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_insert = (row["app"], row["device_id"], row["$insert_id"])
        found[row["uuid"] if row["$insert_id"] is None else by_insert].append(row)
    return list(found.values())


def _revenue(row: dict[str, Any]) -> Decimal:
    bag = row["event_properties"]
    if "price" in bag:
        return Decimal(str(bag["price"])) * bag["quantity"]
    return Decimal(str(bag.get("$revenue", bag.get("revenue", 0))))


def _recount(rows: list[dict[str, Any]]) -> tuple[Counts, Counter[tuple[str, date, str]], Counts, Decimal]:
    """Events, duplicates by reason, late events and revenue, by the plainest rule over rows."""
    events, duplicates, late, revenue = Counts(), Counter[tuple[str, date, str]](), Counts(), Decimal(0)
    for copies in _same_event(rows):
        copies.sort(key=_rank)
        days = [_day(row["event_time"]) for row in copies]
        project = str(copies[-1]["app"])
        events[project, days[-1]] += 1
        late[project, days[-1]] += copies[-1]["server_upload_time"][:10] > copies[-1]["event_time"][:10]
        revenue += _revenue(copies[-1])
        for place, (row, day) in enumerate(zip(copies[:-1], days[:-1], strict=True)):
            reason = "send_duplicate" if day == days[-1] else "superseded_by_other_day"
            if any(better["uuid"] == row["uuid"] for better in copies[place + 1 :]):
                reason = "delivery_duplicate"
            duplicates[project, day, reason] += 1
    return events, duplicates, late, revenue


def _counted(account: ExportAccount) -> tuple[Any, ...]:
    return account.events, account.duplicates, account.late, sum(account.revenue.values())


def test_equal_specs_give_equal_bytes_and_days_do_not_depend_on_the_range() -> None:
    whole, _ = _export(SPEC)
    assert whole == _export(SPEC)[0]
    assert whole != _export(replace(SPEC, seed=8))[0]
    for day in DAYS:
        one_day, _ = _export(replace(SPEC, first_day=day, days=1))
        assert one_day == {key: body for key, body in whole.items() if _arrival(key) == day}


def test_rows_have_all_keys_and_every_hour_a_marker(exported: Any) -> None:
    objects, _, rows = exported
    assert set(KEYS) == set(DELIVERED_KEYS)
    assert all(row.keys() - {"_key"} == set(KEYS) for row in rows)
    markers = Counter(_arrival(key) for key in objects if key.endswith("_complete"))
    assert markers == dict.fromkeys(DAYS, 24)


def test_first_copies_lie_in_their_hour_and_repeated_ones_also_later(exported: Any) -> None:
    by_upload: defaultdict[tuple[str, str], list[tuple[date, int]]] = defaultdict(list)
    for row in exported[2]:
        by_upload[row["uuid"], row["server_upload_time"]].append(_place(row["_key"]))
    kinds: Counter[str] = Counter()
    for (_, time), found in by_upload.items():
        own, places = (_day(time), int(time[11:13])), sorted(found)
        if own[0] < DAYS[0]:
            continue  # the first copy lies before the range
        assert places[0] == own
        assert len(places) <= 2
        for day, hour in places[1:]:
            is_later = day == own[0] and hour > own[1]
            kinds["within" if (day, hour) == own else "later" if is_later else f"after {(day - own[0]).days} days"] += 1
    assert kinds["within"] > kinds["later"] > kinds["after 1 days"] > 0
    assert len(kinds) == 3


def test_events_are_sent_again_after_hours_and_days_and_some_move_across_midnight(exported: Any) -> None:
    gaps, moves = Counter[int](), Counter[int]()
    for rows in _same_event(exported[2]):
        sends = sorted({row["uuid"]: row for row in rows}.values(), key=_rank)
        for first, again in pairwise(sends):
            assert _rank(first) < _rank(again)
            for name, counted in (("server_upload_time", gaps), ("event_time", moves)):
                counted[(_day(again[name]) - _day(first[name])).days] += 1
            assert again["event_time"] < again["server_upload_time"]
    assert set(gaps) == {0, 1}
    assert set(moves) == {-1, 0, 1}


def test_a_few_people_cause_much_but_nobody_most() -> None:
    objects, _ = _export(replace(SPEC, days=1, events_per_day=5000))
    people = Counter(row["amplitude_id"] for row in _rows(objects))
    share = [count / people.total() for _, count in people.most_common()]
    assert 0.02 < share[0] < 0.06
    assert 0.1 < sum(share[:50]) < 0.3
    assert len(share) > 1000


def test_the_account_equals_a_recount_and_names_the_pipelines_reasons(exported: Any) -> None:
    objects, account, rows = exported
    assert set(REASONS) == set(RowFate) - {RowFate.WINNER}
    assert _counted(account) == _recount(rows)
    assert account.events.total() + account.duplicates.total() == len(rows)
    assert account.objects == sum(key.endswith(".gz") for key in objects)
    assert min(account.duplicates_by_reason.values()) > 0
    assert account.late.total() > 0
    assert account.corrections > 0
    assert min(day for _, day in account.events) < date(2025, 12, 20)


def test_every_line_is_on_account_of_its_arrival_day(exported: Any) -> None:
    objects, account, found = exported
    rows = Counter(_arrival(row["_key"]) for row in found)
    lines = Counter(_arrival(key) for key, _ in _lines(objects))
    blank = Counter(_arrival(key) for key, line in _lines(objects) if not line.strip())
    told = {key: (one.lines, one.rows, one.blank, one.quarantined) for key, one in account.arrivals.items()}
    assert told == {("regular", "10001", day): (lines[day], rows[day], blank[day], 2) for day in DAYS}
    assert {*blank.values()} == {4}
    assert (account.lines, account.bad_lines, account.blank_lines) == (lines.total(), 6, 12)


@pytest.mark.parametrize("hours", [(10,), (3, 4), (23,)])
def test_few_hours_are_enough(hours: tuple[int, ...]) -> None:
    objects, account = _export(replace(SPEC, hours=hours, shards=1))
    assert {_place(key)[1] for key in objects if key.endswith(".gz")} == set(hours)
    assert (account.events, account.duplicates) == _recount(_rows(objects))[:2]


def test_a_broken_line_has_whole_ones_beside_it_on_every_day() -> None:
    """Scenario: a hundred days with empty hours. Outcome: no object is refused for its broken line."""
    few = {"first_day": date(2026, 6, 1), "days": 100, "events_per_day": 40, "hours": (1, 9, 17)}
    spec = ExportSpec(projects=("10001",), bad_lines_per_day=2, **few)
    texts = [gzip.decompress(one.body).split(b"\n")[:-1] for one in iter_export(spec, ExportAccount())]
    last_lines = [lines[-1] for lines in texts if lines]
    assert len(last_lines) < 100 * 3 * spec.shards
    assert all("event_time" in json.loads(line) for line in last_lines)


def test_a_recovery_overlaps_and_brings_what_was_lost(tmp_path: Path) -> None:
    day = DAYS[1]
    spec = replace(SPEC, lost_days=(day,), lost_share=0.2)
    objects, account = _export(spec)
    delivered = {row["uuid"] for row in _rows(objects)}
    recovered = write_recovery(spec, tmp_path, day, day, corrected_share=0.5)
    rows = _rows(_folder(tmp_path))
    assert all(row["_key"].startswith(f"10001-backfill/10001-backfill_{day}_") for row in rows)
    again = {row["uuid"] for row in rows}
    # Events sent again on the recovered day first arrived the day before.
    assert recovered.events.total() == len(_same_event(rows)) >= 300
    assert (recovered.lost_events, len(again & delivered) > 200) == (0, True)
    assert len(again - delivered) >= account.lost_events > 20


@pytest.mark.parametrize("corrected_share", [0.0, 0.5])
def test_the_account_of_both_exports_equals_a_recount(tmp_path: Path, corrected_share: float) -> None:
    spec = replace(SPEC, lost_days=(DAYS[0], DAYS[1]), lost_share=0.2)
    exported = write_export(spec, tmp_path)
    alone = account_of(spec)
    assert replace(alone, objects=exported.objects) == exported

    recovery = Recovery(first_day=DAYS[1], last_day=DAYS[2], corrected_share=corrected_share)
    recovered = write_recovery(spec, tmp_path, DAYS[1], DAYS[2], corrected_share=corrected_share)
    both = account_of(spec, recovery)
    assert _counted(both) == _recount(_rows(_folder(tmp_path)))
    assert both.arrivals == exported.arrivals | recovered.arrivals
    assert 0 < both.lost_events < exported.lost_events
    uncorrected = account_of(spec, replace(recovery, corrected_share=0.0))
    assert (both.revenue == uncorrected.revenue) == (corrected_share == 0)


def test_the_demo_ends_yesterday_with_the_same_figures() -> None:
    """Scenario: two days with a leap day between. Outcome: equal figures, equal objects but for dates; without a
    recovery the account still has its zero."""
    told = []
    for today in (date(2026, 1, 15), date(2028, 3, 9)):
        spec, recovery = demo.story(today)
        assert spec.arrival_days[-1] == today - timedelta(days=1)
        account = account_of(spec, recovery)
        first = spec.first_day
        objects = [one for one in iter_export(spec, ExportAccount()) if not one.key.endswith("_complete")]
        events = {(project, (day - first).days): n for (project, day), n in account.events.items()}
        lines = [len(gzip.decompress(one.body).splitlines()) for one in objects]
        told.append((expected_figures(account), events, lines))
    assert told[0] == told[1]
    alone = expected_figures(account_of(spec))
    assert (alone.keys(), alone["rows in raw.backfill_events"]) == (told[1][0].keys(), "0")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's folder of data, not made yet."""
    data = tmp_path / "data"
    for name, value in {"DATA": data, "OURS": data / ".demo", "_STACK": data / "stack"}.items():
        monkeypatch.setattr(demo, name, value)
    return data


def test_the_demo_empties_what_is_its_own_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: others' data, an earlier demo's, each beside a set of `make up`; a complete demo with and without
    others' exports. Outcome: folders with others' data are refused whole; of the rest all goes but the set."""
    monkeypatch.setattr(demo, "tell", lambda *_: False)
    (data / "stack" / "postgres").mkdir(parents=True)
    (data / "warehouse").mkdir()
    (data / "catalog.db").write_text("theirs")
    assert demo.main() == 1
    assert sorted(path.name for path in data.iterdir()) == ["catalog.db", "stack", "warehouse"]
    (data / ".demo").touch()
    assert demo.main() == 1
    assert sorted(path.name for path in data.iterdir()) == [".demo", "stack"]
    assert (data / "stack" / "postgres").is_dir()

    def told(*_: object) -> bool:
        (data / "landing").mkdir()
        (data / "landing" / "1.json.gz").write_bytes(b"the demo's")
        return True

    monkeypatch.setattr(demo, "tell", told)
    assert [demo.main(), demo.main()] == [0, 0]
    (data / "landing" / "2.json.gz").write_bytes(b"theirs")
    assert demo.main() == 1
    assert (data / "landing" / "2.json.gz").exists()


def test_the_demo_names_wrong_settings_before_it_empties_anything(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data.mkdir()
    (data / ".demo").touch()
    (data / "catalog.db").write_text("of an earlier demo")
    (tmp_path / "tidemark.toml").write_text("jars_dirs = 'misspelt'")
    monkeypatch.chdir(tmp_path)
    assert demo.main() == 1
    assert "jars_dirs: is not a setting. Correct its name or remove it" in " ".join(capsys.readouterr().out.split())
    assert (data / "catalog.db").exists()
