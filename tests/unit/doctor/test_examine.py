"""Each point is red for its fault, yellow where unknown, green for proof; the doctor goes on past what it cannot read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.doctor import rules
from pipeline_assets.doctor.examine import examine
from pipeline_assets.doctor.rules import Answer, Light, Point, Prefixes, TableHead, worst
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.lateness import Lateness
from pipeline_assets.domain.masking import receiver_id
from pipeline_assets.domain.notices import Notice, NoticeKind
from pipeline_assets.domain.processes import Identity, Process
from pipeline_assets.domain.records import DeliveryRecord, InputDay, InputState, PublicationRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from pipeline_assets.inspection.questions import ReceiverTrouble
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.history import FoundCommit, MarkedDay
from resources.ledger.outbox import Receiver
from resources.ledger.store import Ledger
from resources.ledger.summaries import ArrivedOn, SliceFigures
from resources.publishing import Promise
from tests.support.recorded_history import record_history
from tests.support.shell import commands

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
    (rules.not_skewed, (sizes((10 * MiB, 200 * MiB)), SETTINGS, 6), GREEN, "10.5 MB, 5 % of all that arrived on 2026-03-31"),
    (rules.not_skewed, (sizes((60 * MiB, 63 * MiB)), SETTINGS, 192), GREEN, "95.2 %"),
    (rules.not_skewed, (LARGE, SETTINGS, 12), GREEN, "60 %"),
    (rules.not_skewed, (LARGE, SETTINGS, 192), YELLOW, "24.5 times the work of"),
    (rules.not_skewed, (sizes((5 * MiB, 120 * MiB)), SETTINGS, 192), GREEN, "4.17 %"),
    (rules.not_skewed, ([*LATER, EARLIER], SETTINGS, 48), YELLOW, "on 2026-03-30 an object of 94.4 MB"),
    (rules.not_skewed, (sizes((10, 200)), Settings(max_object_bytes=9), 6), RED, "10 bytes"),
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


PROJECTS = ("10001", "10002")
LAST = date(2026, 3, 31)
REFINED = "refined/events"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for project in PROJECTS:
        (tmp_path / "landing" / project).mkdir(parents=True)
    return Settings(
        projects=PROJECTS, landing_url=str(tmp_path / "landing"), warehouse_url=str(tmp_path / "warehouse"),
        catalog_url=f"sqlite:///{tmp_path}/ledger.db",
    )  # fmt: skip


@pytest.fixture
def shell(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    places = {name: getattr(settings, name) for name in ("landing_url", "warehouse_url", "catalog_url")}
    base = {f"TIDEMARK_{name.upper()}": value for name, value in places.items()}
    return commands(**base, TIDEMARK_PROJECTS=",".join(PROJECTS))


def look(ledger: Ledger, settings: Settings, now: datetime = NOW) -> dict[str, Point]:
    return {point.name: point for point in examine(ledger, settings, lambda: LandingStore.from_settings(settings), now)}


def a_publication(
    snapshot: int, digest: Digest, *, table: str = REFINED, cause: CauseKind = CauseKind.FIRST_BUILD
) -> Any:
    inputs = InputState({InputDay("raw/regular_events", LAST): Digest(3, 3, 3)})
    return PublicationRecord(
        table, Slice(LAST, "10001"), snapshot, snapshot - 1, EMPTY, digest, Cause.of(cause), f"run{snapshot}",
        input_state=inputs if cause is CauseKind.FIRST_BUILD else None, code_version="1", published_at=NOW.isoformat(),
    )  # fmt: skip


def test_nothing_loaded_is_no_fault_and_a_landing_that_is_not_there_is(shell: Callable[..., Any]) -> None:
    well = shell("doctor")
    assert well.exit_code == 0, well.output
    assert well.stdout.splitlines()[-1].startswith("0 red, ")
    ill = shell("doctor", "--json", TIDEMARK_LANDING_URL="/nowhere/landing")
    assert ill.exit_code == 1, ill.output
    told = json.loads(ill.stdout)
    assert told["light"] == "red"
    assert len(told["points"]) == 16
    (red,) = [point for point in told["points"] if point["light"] == "red"]
    assert red["name"] == "separate prefixes"
    assert red["found"].startswith("cannot be looked at: /nowhere/landing: ")
    assert shell("doctor", TIDEMARK_PROJECTS="").exit_code == 2


def test_a_history_is_looked_at_in_every_place(ledger: Ledger, settings: Settings, tmp_path: Path) -> None:
    """Scenario: a history with one fault of each kind. Outcome: each is named by its point."""
    record_history(ledger, PROJECTS, LAST, 30)
    ledger.processes.begin("m", "maintenance", Identity("host", None, 7, None), 1)
    ledger.processes.end("m")
    ledger.processes.begin("d", "daily_load", Identity("host", None, 8, None), 1)
    ledger.processes.lose(["d"])
    for stray in ("10001_2026-03-30_6#1.json.gz", "10001-backfill_2026-03-30_5#1.json.gz"):
        (tmp_path / "landing" / "10001" / stray).write_bytes(b"x")
    decision = tmp_path / "warehouse" / "_tidemark" / "decisions" / f"20260301T000000.000000Z-{'0' * 32}.json"
    decision.parent.mkdir(parents=True)
    decision.write_text("{}")
    points = look(ledger, settings)
    assert points["one transaction"].light is Light.GREEN
    elsewhere = settings.model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/other.db"})
    assert look(ledger, elsewhere)["one transaction"].light is Light.YELLOW
    assert points["decisions"].light is Light.RED
    assert decision.name in points["decisions"].found
    for name, said in (
        ("separate prefixes", "1 objects carry a recovery's name"), ("separate prefixes", stray), ("window", "3 days miss 10001"),
        ("markers", "53 of 53 closed days"), ("skew", "objects of 28 arrival days"), ("maintenance", "maintenance ran last"),
    ):  # fmt: skip
        assert said in points[name].found
    lights = [points[name].light for name in ("markers", "keys", "recovery")]
    assert lights == [Light.GREEN, Light.GREEN, Light.YELLOW]
    decision.write_text('{"version": 1, "acts": []}')
    assert "the ledger lacks 1 of them" in look(ledger, settings)["decisions"].found


def test_the_same_inputs_with_other_content_are_a_fault_and_a_foreign_hand_is_another(
    ledger: Ledger, settings: Settings, postgres: str
) -> None:
    """In both databases, which store input JSON differently."""
    with closing(Ledger(postgres)) as other:
        for one in (ledger, other):
            again = [a_publication(1, Digest(5, 1, 1)), a_publication(2, Digest(5, 1, 1))]
            unknown = [a_publication(3, Digest(9, 9, 9), cause=CauseKind.DELIVERY)]
            unknown += [replace(unknown[0], snapshot_id=4, digest_after=Digest(7, 7, 7))]
            one.record(Changes(publications=[*again, *unknown]), "run")
            assert one.checkup.built_again(PROJECTS) == (1, ())
            assert one.checkup.found_commits(PROJECTS) == []
            one.record(Changes(publications=[a_publication(5, Digest(6, 2, 2))]), "run")
            one.record(Changes(publications=[a_publication(6, EMPTY, cause=CauseKind.FOREIGN)]), "run")
            assert one.checkup.built_again(PROJECTS) == (0, (f"{REFINED} {LAST}/10001",))
            (found,) = one.checkup.found_commits(PROJECTS)
            assert (found.kind, found.table, found.day) == (CauseKind.FOREIGN, REFINED, LAST)
            assert one.checkup.of_unfinished_runs(PROJECTS) == 6
    points = look(ledger, settings)
    assert {name for name, point in points.items() if point.light is Light.RED} == {"idempotent", "one load path"}


def test_what_is_late_of_a_landing_is_told_by_time(ledger: Ledger, settings: Settings, tmp_path: Path) -> None:
    """An object written days after its hour's marker may be a recovery: yellow, with the command that shows more."""
    hour_end = datetime(2026, 3, 30, 7, tzinfo=UTC)
    for end, shift in (("_complete", 1), ("#1.json.gz", 0), ("#2.json.gz", 60)):
        (file := tmp_path / "landing" / "10001" / f"10001_2026-03-30_6{end}").write_bytes(b"x")
        moment = (hour_end + timedelta(hours=shift)).timestamp()
        os.utime(file, (moment, moment))
    point = look(ledger, settings)["separate prefixes"]
    assert (point.light, "10001_2026-03-30_6#2.json.gz" in point.found) == (Light.YELLOW, True)
    assert point.fix is not None
    assert point.fix.startswith("tidemark split-landing --project 10001")


def test_readers_whose_notices_are_set_aside_are_not_told(ledger: Ledger, settings: Settings) -> None:
    """Scenario: two receivers refused notices, one is not configured. Outcome: red, with the command to send again."""
    url = "https://hooks.example.com/services/T0"
    telling = settings.model_copy(update={"notify_urls": (url,)})
    ledger.outbox.register({receiver_id(url): "hooks.example.com/***", "other": "gone.example.com/***"})
    assert look(ledger, telling)["notices"].light is Light.GREEN
    for number, receiver in ((1, receiver_id(url)), (2, receiver_id(url)), (1, "other")):
        notice = Notice(f"n{number}", NoticeKind.REFUSAL, REFINED, Slice(LAST, "10001"), NOW.isoformat(), "run")
        ledger.set_aside.add(receiver, [replace(notice, number=number, recorded_by="run")], "it answered 400")
    point = look(ledger, telling)["notices"]
    assert (point.light, point.fix) == (Light.RED, "Correct the address or the receiver, then: tidemark notify --again")
    assert "hooks.example.com/*** set aside: 2, since" in point.found
    assert "gone" not in point.found
    for one in ledger.set_aside.all():
        ledger.set_aside.mark_sent(one)
    assert look(ledger, telling)["notices"].light is Light.GREEN


def test_a_large_object_is_judged_by_what_a_task_has_left_of_it(ledger: Ledger, settings: Settings) -> None:
    """One object is 60 % of the day: even among the tasks of two cores, not among those of 64."""
    batch = BatchKey(Source.REGULAR, "10001", LAST)
    read = [
        DeliveryRecord(batch, f"10001/{size}", "etag", size * 1024**2, None, 3, 3, 0, 0, None, is_accepted=True)
        for size in (60, 40)
    ]
    ledger.record(Changes(deliveries=read), "run")
    few_cores = look(ledger, settings.model_copy(update={"spark_master": "local[2]"}))["skew"]
    assert (few_cores.light, "60 % of all" in few_cores.found) == (Light.GREEN, True)
    many = look(ledger, settings.model_copy(update={"spark_master": "local[64]"}))["skew"]
    assert (many.light, many.fix) == (Light.YELLOW, "Ask the exporter for smaller objects")
    assert "an object of 62.9 MB (10001) gives a task 24.5 times" in many.found


def test_a_recovery_that_died_is_named_until_its_hour_has_a_marker(
    ledger: Ledger, settings: Settings, tmp_path: Path
) -> None:
    """Outcome: of three claims only the one that died before its marker is named, after an hour, until its marker."""
    for hour in (4, 5, 6):
        ledger.recoveries.begin("10001", Hour(LAST, hour))
    ledger.recoveries.end("10001", Hour(LAST, 4))
    folder = tmp_path / "landing" / "10001-backfill"
    folder.mkdir()
    (folder / f"10001-backfill_{LAST}_5_complete").touch()

    def at(later: timedelta) -> Point:
        return look(ledger, settings, datetime.now(UTC) + later)["recovery"]

    begun = "hours whose recovery began and has no marker: "
    assert begun not in at(timedelta(minutes=50)).found
    died = at(timedelta(minutes=70))
    assert died.light is Light.YELLOW
    assert died.found.startswith(f"{begun}10001 {LAST}T06; ")
    assert died.fix is not None
    assert died.fix.endswith(f"tidemark recover --from {LAST}T06 --to {LAST}T06 --project 10001")
    (folder / f"10001-backfill_{LAST}_6_complete").touch()
    assert begun not in at(timedelta(minutes=70)).found
