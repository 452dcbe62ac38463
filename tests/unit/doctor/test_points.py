"""Each point is red for its fault, yellow where unknown, and green for proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from pipeline_assets.doctor import rules
from pipeline_assets.doctor.rules import Answer, Light, Prefixes, TableHead, worst
from pipeline_assets.domain.changes import CauseKind
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.lateness import Lateness
from pipeline_assets.domain.processes import Process
from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.questions import ReceiverTrouble
from resources.ledger.history import FoundCommit, MarkedDay
from resources.ledger.outbox import Receiver
from resources.ledger.summaries import ArrivedOn, SliceFigures
from resources.publishing import Promise

DAY = date(2026, 3, 31)
NOW = datetime(2026, 4, 1, 8, tzinfo=UTC)
SETTINGS = Settings(projects=("1", "2"))
MiB = 1024**2
GREEN, YELLOW, RED = Light.GREEN, Light.YELLOW, Light.RED


def at(days: float) -> str:
    return (NOW - timedelta(days=days)).isoformat()


def a_head(**changes: Any) -> TableHead:
    known: dict[str, Any] = {"table": "refined/events", "catalog": 7, "ledger": 7, "history_days": 30}
    return TableHead(**{**known, **changes})


def a_process(job: str, days: float, **changes: Any) -> Process:
    known: dict[str, Any] = {"run_id": "r", "job": job, "begun_at": at(days), "identity": None, "is_ended": True}
    return Process(**{**known, **changes})


def foreign(days: float, kind: CauseKind = CauseKind.FOREIGN) -> FoundCommit:
    return FoundCommit("refined/events", DAY, "1", kind, at(days))


def rows(count: int, raw: int) -> SliceFigures:
    return SliceFigures(DAY, "1", count, raw, raw - count, 0, 0.0)


def sizes(*largest_of_all: tuple[int, int]) -> list[ArrivedOn]:
    return [ArrivedOn("1", DAY, 24, whole, largest, 0) for largest, whole in largest_of_all]


def marked(*hours: int, is_closed: bool = True) -> list[MarkedDay]:
    return [MarkedDay("1", DAY, count, is_closed) for count in hours]


WIDE, NARROW = Lateness({0: 9_990, 3: 10}, 30), Lateness({0: 9_000, 5: 1_000}, 30)
LARGE, OLD_HEAD = sizes((60 * MiB, 100 * MiB)), a_head(oldest_at=NOW - timedelta(days=43))
LATER = sizes((200 * MiB, 5000 * MiB))
EARLIER = ArrivedOn("1", DAY - timedelta(days=1), 24, 100 * MiB, 90 * MiB, 0)
REFUSING = ReceiverTrouble(
    "host", "set aside: 3, since 2026-03-31 09:00 UTC: it answered 400", "", "tidemark notify --again"
)
HOURS = [Hour(DAY, hour) for hour in (5, 6, 9)]
WORKING = a_process("daily_load", 0, is_ended=False)

CASES: list[tuple[Callable[..., Answer], tuple[Any, ...], Light, str]] = [
    (rules.idempotent, (0, (), Counter(published=5)), YELLOW, "nothing was loaded twice yet"),
    (rules.idempotent, (0, (), Counter(published=5, unchanged=4)), GREEN, "found 4 unchanged"),
    (rules.idempotent, (3, (), Counter(published=5)), GREEN, "3 slices were published again"),
    (rules.idempotent, (3, ("t 2026-03-31/1",), Counter(unchanged=9)), RED, "other content: t 2026-03-31/1"),
    (rules.one_load_path, ([], [], 0, at(30)), GREEN, "no foreign commit"),
    (rules.one_load_path, ([foreign(2, CauseKind.UNRECORDED_RUN)], [], 3, at(30)), GREEN, "1 changes of runs that died"),
    (rules.one_load_path, ([foreign(2), foreign(50)], [], 0, at(30)), RED, "2 foreign changes of slices are on record, 1 of"),
    (rules.one_load_path, ([foreign(50)], [], 0, at(30)), YELLOW, "refined/events 2026-03-31/1"),
    (rules.one_load_path, ([], ["refined/events"], 0, at(30)), RED, "the newest commit of refined/events"),
    (rules.wide_enough, ({"": WIDE, "1": WIDE, "2": WIDE}, SETTINGS), GREEN, "3 days miss 1 0 %, 2 0 %"),
    (rules.wide_enough, ({"": WIDE, "1": WIDE, "2": NARROW}, SETTINGS), RED, "2: 10 % of the rows of 30 arrival days"),
    (rules.wide_enough, ({"": WIDE, "1": WIDE}, SETTINGS), YELLOW, "2: nothing arrived"),
    (rules.wide_enough, ({"": Lateness({0: 9}, 2)}, SETTINGS), YELLOW, "3 days are set"),
    (rules.stable_keys, ([], [], 0, 0, []), YELLOW, "no rows"),
    (rules.stable_keys, ([rows(990, 1000)], [rows(98, 100)], 0, 0, []), GREEN, "10 were removed as duplicates (20 in"),
    (rules.stable_keys, ([rows(1000, 1000)], [], 10, 0, []), YELLOW, "10 have neither insert_id nor uuid (1 %)"),
    (rules.stable_keys, ([rows(1000, 1000)], [], 0, 1, []), YELLOW, "1 a blank one"),
    (rules.stable_keys, ([rows(1000, 1000)], [], 11, 0, []), RED, "11 have neither"),
    (rules.stable_keys, ([rows(1000, 1000)], [], 0, 0, ["refined/events 2026-03-31/1"]), RED, "keys are twice in refined"),
    (rules.not_skewed, ([], SETTINGS, 6), YELLOW, "no objects"),
    (rules.not_skewed, (sizes((10 * MiB, 200 * MiB)), SETTINGS, 6), GREEN, "10 MiB, 5 % of all that arrived on 2026-03-31"),
    (rules.not_skewed, (sizes((60 * MiB, 63 * MiB)), SETTINGS, 192), GREEN, "95.2 %"),
    (rules.not_skewed, (LARGE, SETTINGS, 12), GREEN, "60 %"),
    (rules.not_skewed, (LARGE, SETTINGS, 192), YELLOW, "24.5 times the work of"),
    (rules.not_skewed, (sizes((5 * MiB, 120 * MiB)), SETTINGS, 192), GREEN, "4.17 %"),
    (rules.not_skewed, ([*LATER, EARLIER], SETTINGS, 48), YELLOW, "on 2026-03-30 an object of 90 MiB"),
    (rules.not_skewed, (sizes((10, 200)), Settings(max_object_bytes=9), 6), RED, "10 B"),
    (rules.markers_on_time, (marked(24, 24), SETTINGS), GREEN, "2 of 2 closed days"),
    (rules.markers_on_time, (marked(24, 23), SETTINGS), YELLOW, "closed by their deadline: 2026-03-31/1 (23)"),
    (rules.markers_on_time, (marked(0, 0), SETTINGS), RED, "no marker was seen at all"),
    (rules.markers_on_time, (marked(5, is_closed=False), SETTINGS), YELLOW, "none of 1 days"),
    (rules.markers_on_time, (marked(0), Settings(hours_complete_by="quiet")), GREEN, "no markers are awaited"),
    (rules.receivers_told, ([], 0), GREEN, "no receiver is configured"),
    (rules.receivers_told, ([Receiver("a", "host", 5, waiting=2)], 1), GREEN, "2 notices wait"),
    (rules.receivers_told, ([Receiver("a", "host", 5, 3, error="404")], 1), RED, "host failed 3 times, last: 404"),
    (rules.receivers_told, ([Receiver("a", "host", 5)], 1, [REFUSING]), RED, "sent; host set aside: 3"),
    (rules.receivers_told, ([], 1), YELLOW, "1 were never told"),
    (rules.recomputed, (5, [], 0, [DAY]), GREEN, "5 of 5 slices of 2026-03-31 are equal"),
    (rules.recomputed, (5, ["refined/events differs"], 1, [DAY]), RED, "3 of 5"),
    (rules.recomputed, (5, [], 2, [DAY]), YELLOW, "2 cannot be replayed"),
    (rules.recomputed, (0, [], 0, []), YELLOW, "no final day"),
    (rules.atomic, ([], [], []), YELLOW, "no table"),
    (rules.atomic, ([a_head(), a_head(ledger=None, catalog=None)], [], []), GREEN, "1 of 1 tables"),
    (rules.atomic, ([a_head(catalog=None, is_listed=False)], [], []), RED, "the catalog does not show refined/events"),
    (rules.atomic, ([a_head(catalog=None, is_listed=None)], [], []), YELLOW, "does not tell of refined/events without Spark"),
    (rules.atomic, ([a_head(catalog=8)], [], [WORKING]), YELLOW, "0 of 1 tables are at the snapshot that the ledger knows; 1"),
    (rules.atomic, ([a_head(branches=("tidemark_x",))], [WORKING], []), YELLOW, "1 staged branches are left"),
    (rules.atomic, ([a_head(deletes=2)], [], []), YELLOW, "another program's delete files hide rows of refined/events (2)"),
    (rules.one_transaction, (Promise.ONE_TRANSACTION,), GREEN, "in one transaction"),
    (rules.one_transaction, (Promise.TABLES_TOGETHER,), GREEN, "in one commit of the REST catalog"),
    (rules.one_transaction, (Promise.TABLE_BY_TABLE,), YELLOW, "another place than the catalog (TIDEMARK_LEDGER_URL)"),
    (rules.separate_prefixes, (Prefixes(9), DAY), GREEN, "9 regular objects"),
    (rules.separate_prefixes, (Prefixes(0), DAY), YELLOW, "0 regular objects"),
    (rules.separate_prefixes, (Prefixes(9, late=[("1", "1/a")]), DAY), YELLOW, "1/a"),
    (rules.separate_prefixes, (Prefixes(9, unplaced=[("1", "1/c_7")]), DAY), RED, "cannot be placed, so no load"),
    (rules.separate_prefixes, (Prefixes(9, [("1", "1/b")], [("1", "1/a")], notes=["1: copied"]), DAY), RED, "a recovery's name"),
    (rules.recovery_possible, (["2"], {}, ["1", "2"], {}), YELLOW, "no keys of the Export API are set for 2"),
    (rules.recovery_possible, ([], {"1": DAY}, ["1", "2"], {}), YELLOW, "never for 2"),
    (rules.recovery_possible, ([], {"1": DAY}, ["1"], {}), GREEN, "1 last of 2026-03-31"),
    (rules.recovery_possible, ([], {"1": DAY}, ["1"], {"1": HOURS}), YELLOW, "06, 1 2026-03-31T09;"),
    (rules.looked_after, ([a_process("maintenance", 1)], [a_head(snapshots=9)], at(90), NOW), GREEN, "9 snapshots are kept"),
    (rules.looked_after, ([a_process("maintenance", 8)], [], at(90), NOW), YELLOW, "maintenance ran last"),
    (rules.looked_after, ([a_process("maintenance", 1, is_ended=False)], [], at(90), NOW), YELLOW, "no maintenance"),
    (rules.looked_after, ([], [], at(3), NOW), GREEN, "less than 7 days ago"),
    (rules.looked_after, ([], [a_head(oldest_at=NOW - timedelta(days=45))], at(3), NOW), RED, "older than they are kept"),
    (rules.looked_after, ([a_process("maintenance", 1)], [OLD_HEAD], at(90), NOW), GREEN, "ran"),
    (rules.decisions_kept, (3, 0, 0), GREEN, "3 decisions"),
    (rules.decisions_kept, (3, 1, 0), YELLOW, "the ledger lacks 1"),
    (rules.decisions_kept, (3, 0, 2), YELLOW, "2 that it knows are not there"),
    (rules.same_clock, (None, NOW), GREEN, "this machine's clock"),
    (rules.same_clock, (NOW - timedelta(seconds=20), NOW), GREEN, "20 s"),
    (rules.same_clock, (NOW + timedelta(minutes=6), NOW), YELLOW, "360 s"),
    (rules.same_clock, (NOW - timedelta(hours=2), NOW), RED, "7200 s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "evidence", "light", "said"), CASES, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_point(rule: Callable[..., Answer], evidence: tuple[Any, ...], light: Light, said: str) -> None:
    point = rule(*evidence)
    assert point.light is light, point
    assert said in point.found
    # Only points that are not green have a remedy.
    assert (point.fix is None) == (light is GREEN)
    assert "\n" not in point.found + (point.fix or "")


def test_what_to_do_names_each_command() -> None:
    """Outcome: one command for each need of a failing receiver; a dead recovery is ended alone; missing keys come first."""
    failing = [Receiver("a", "host", 5, 3, error="404")]
    both = rules.receivers_told(failing, 1, [REFUSING])
    assert both.fix == "Correct the address or the receiver, then: tidemark notify, then tidemark notify --again"
    again = rules.receivers_told([Receiver("a", "host", 5)], 1, [REFUSING])
    assert again.fix == "Correct the address or the receiver, then: tidemark notify --again"
    recovers = (
        "tidemark recover --from 2026-03-31T05 --to 2026-03-31T06 --project 1; "
        "tidemark recover --from 2026-03-31T09 --to 2026-03-31T09 --project 1"
    )
    assert rules.recovery_possible([], {}, ["1"], {"1": HOURS}).fix == recovers
    keys = "Set TIDEMARK_EXPORT_KEY_1 and TIDEMARK_EXPORT_SECRET_1; then: "
    assert rules.recovery_possible(["1"], {}, ["1"], {"1": HOURS}).fix == keys + recovers


def test_every_point_can_be_red_or_yellow_and_green() -> None:
    lights: dict[str, set[Light]] = {}
    for rule, evidence, _, _ in CASES:
        lights.setdefault(rule.__name__, set()).add(rule(*evidence).light)
    assert [name for name, seen in lights.items() if GREEN not in seen or len(seen) < 2] == []


def test_the_worst_light_is_that_of_all() -> None:
    assert worst([GREEN, RED, YELLOW]) is RED
    assert worst([]) is GREEN
