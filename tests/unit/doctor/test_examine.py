"""The doctor examines ledger, landing, warehouse and environment, and goes on past unreadable ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.doctor.examine import examine
from pipeline_assets.doctor.rules import Light, Point
from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.masking import receiver_id
from pipeline_assets.domain.notices import Notice, NoticeKind
from pipeline_assets.domain.processes import Identity
from pipeline_assets.domain.records import DeliveryRecord, InputDay, InputState, PublicationRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import EMPTY, Digest, Slice, Source
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.recorded_history import record_history
from tests.support.shell import commands

PROJECTS = ("10001", "10002")
LAST = date(2026, 3, 31)
NOW = datetime(2026, 4, 1, 8, tzinfo=UTC)
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
    assert "an object of 60 MiB (10001) gives a task 24.5 times" in many.found


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
