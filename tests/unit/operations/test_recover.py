"""A recovery's requests, objects and messages, against a vendor on this machine; no Spark."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline_assets.domain.checks import Check, Evaluation
from pipeline_assets.domain.days import Hour, HourRange
from pipeline_assets.domain.deliveries import BatchKey, Listing
from pipeline_assets.domain.errors import Backoff, LandingUnavailableError
from pipeline_assets.domain.records import HOURS_HELD, BatchRecord, DeliveryRecord
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.inspection.health import read_health
from pipeline_assets.inspection.status import day_statuses
from pipeline_assets.load.deliveries.arrivals import judge_absent
from pipeline_assets.load.deliveries.batch import Recorded, plan_batches
from pipeline_assets.load.deliveries.readiness import ArrivalStatus, evaluate_arrivals
from pipeline_assets.operations.recover import HourFate, HourOutcome, Progress, Recovery, in_lines, whole_days
from pipeline_assets.operations.recover_plan import HourState, RecoveryPlan, RecoveryRequest, hours_text, plan_recovery
from resources.export_api import ExportApi
from resources.failpoints import Failpoint, watch
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.schema import RECOVERIES, RUNS
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.export_api import Answer, Vendor, a_vendor, zipped
from tests.support.points import OF_RECOVERY
from tests.support.policies import policy, recorded_requests, refused, unneeded

DAY = date(2026, 2, 2)
OTHER = "10002"
NOW = datetime(2026, 2, 10, tzinfo=UTC)
GRAMMAR = KeyGrammar(Settings().marker_pattern)
PREFIX = f"{PROJECT}-backfill"
BACKFILL = BatchKey(Source.BACKFILL, PROJECT, DAY)
WHOLE_DAY = HourRange(Hour(DAY, 0), Hour(DAY, 23))


def _body(hour: int, day: date = DAY, prefix: str = "e") -> bytes:
    return a_body(events_on(day, 3, prefix=f"{prefix}{hour}"))


def _range(first: int, last: int) -> HourRange:
    return HourRange(Hour(DAY, first), Hour(DAY, last))


def a_delivery(batch: BatchKey, hour: int, fate: str = "accepted") -> DeliveryRecord:
    rows, error = (0, "truncated_gzip") if fate == "refused" else (3, None)
    key = GRAMMAR.format_delivery(batch, hour, 1)
    return DeliveryRecord(batch, key, "etag", 100, None, 3, rows, 0, 0, error, is_accepted=fate == "accepted")


@dataclass
class Place:
    root: Path
    vendor: Vendor
    settings: Settings
    ledger: Ledger
    outcomes: list[HourOutcome] = field(default_factory=list)

    @property
    def landing(self) -> LandingStore:
        return LandingStore.from_settings(self.settings)

    def exports(self, *hours: int) -> None:
        """The vendor has an object of each of these hours."""
        for hour in hours:
            self.vendor.add(PROJECT, Hour(DAY, hour), _body(hour))

    def exports_shards(self, *shards: tuple[int, int]) -> dict[str, bytes]:
        """The vendor has these (hour, shard); returns their objects."""
        bodies = {f"{PREFIX}/{PREFIX}_{DAY}_{hour}#{shard}.json.gz": _body(hour * 10 + shard) for hour, shard in shards}
        for (hour, shard), body in zip(shards, bodies.values(), strict=True):
            self.vendor.add(PROJECT, Hour(DAY, hour), body, shard)
        return bodies

    def plan(self, hours: HourRange = WHOLE_DAY, *, now: datetime = NOW, **request: Any) -> RecoveryPlan:
        asked = RecoveryRequest(**{"projects": (PROJECT,), "hours": hours, **request})
        return plan_recovery(self.ledger, self.landing, self.settings, asked, now)

    def carry_out(self, plan: RecoveryPlan, progress: Progress, api: ExportApi) -> list[HourOutcome]:
        return Recovery(api, self.landing, self.settings, self.ledger.recoveries, progress).run(plan)

    def execute(self, statement: Any, *values: Any) -> None:
        with self.ledger.engine.begin() as connection:
            connection.execute(statement, *values)

    def is_marked(self, hour: int) -> bool:
        return f"{PREFIX}/{PREFIX}_{DAY}_{hour}_complete" in self.files()

    def recover(self, hours: HourRange = WHOLE_DAY, **request: Any) -> dict[str, str]:
        """Hour (of a project where there are several) -> result."""
        api = ExportApi(self.settings, backoff=Backoff(3, 0.01), sleep=lambda _: None)
        self.settled: list[HourOutcome] = []
        self.outcomes = self.carry_out(self.plan(hours, **request), Progress(settled=self.settled.append), api)
        projects = {one.project_id for one in self.outcomes}
        return {
            f"{one.project_id}/{one.hour.hour}" if len(projects) > 1 else str(one.hour.hour): one.fate.value
            for one in self.outcomes
        }

    @property
    def errors(self) -> list[str]:
        return list(dict.fromkeys(str(one.error) for one in self.outcomes if one.error is not None))

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def to_load(self, listing: Listing | None = None) -> tuple[dict[int, int], ArrivalStatus]:
        """Hour -> objects that a backfill load would read now, and the rested sensor's message."""
        source, projects = Source.BACKFILL, [PROJECT]
        listing = listing or self.landing.list(source, projects, DAY, DAY)
        read = Recorded.read(self.ledger, self.landing, listing, source, projects, (DAY, DAY), self.settings)
        code: dict[str, Any] = {"code_version": "c", "accepted_reasons": {}}
        self.plans = plan_batches(source, projects, [DAY], listing, read, self.settings, NOW, **code)
        rested = self.settings.model_copy(update={"quiet_minutes": 0})
        counts = Counter(found.hour for found in self.plans[BACKFILL].changed)
        return dict(sorted(counts.items())), evaluate_arrivals(self.plans, {}, (), {}, rested, NOW)

    def deliver(self, hour: int, body: bytes, source: Source = Source.REGULAR, shard: int = 1) -> str:
        key = GRAMMAR.format_delivery(BatchKey(source, PROJECT, DAY), hour, shard)
        (self.root / key).parent.mkdir(exist_ok=True)
        (self.root / key).write_bytes(body)
        return key

    def record(self, verdict: BatchVerdict, source: Source = Source.REGULAR, **hours: str) -> None:
        """A batch on record; `h5="accepted"`, `"refused"` (its object) of each hour."""
        batch = BatchKey(source, PROJECT, DAY)
        fates = {int(name[1:]): fate for name, fate in hours.items()}
        deliveries = [a_delivery(batch, hour, fate) for hour, fate in fates.items()]
        reason = "1 unreadable objects" if verdict is BatchVerdict.REFUSED else None
        record = BatchRecord(batch, verdict, reason, deliveries=len(deliveries), hours=tuple(sorted(fates)))
        self.ledger.record(Changes(deliveries=deliveries, batches=[record]), "run")


@pytest.fixture
def place(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with a_vendor(PROJECT, OTHER) as vendor:
        for name, value in vendor.environment().items():
            monkeypatch.setenv(name, value)
        root = tmp_path / "landing"
        root.mkdir()
        settings = Settings(
            landing_url=str(root), catalog_url=f"sqlite:///{tmp_path}/ledger.db", projects=(PROJECT, OTHER),
            export_min_free_bytes=0,
        )  # fmt: skip
        yield Place(root, vendor, settings, ledger)


def test_hours_come_with_their_objects_and_their_markers(place: Place) -> None:
    """Outcome: files are below the backfill prefix unchanged, every hour has a marker; a second recovery asks nothing."""
    objects = place.exports_shards((4, 0), (4, 7), (5, 0))
    assert place.recover(_range(4, 6)) == {"4": "recovered", "5": "recovered", "6": "no data"}
    markers = {f"{PREFIX}/{PREFIX}_{DAY}_{hour}_complete": b"" for hour in (4, 5)}
    silent = f"{PREFIX}/{PREFIX}_{DAY}_6_complete"
    assert place.files().pop(silent).startswith(b"no data")
    assert {name: body for name, body in place.files().items() if name != silent} == objects | markers
    first, second, third = map(len, objects.values())
    assert [(one.objects, one.size_bytes) for one in place.settled] == [(2, first + second), (1, third), (0, 0)]

    asked, before = len(place.vendor.asked), place.files()
    assert place.recover(_range(4, 6)) == {"4": "already there", "5": "already there", "6": "no data"}
    assert (len(place.vendor.asked), place.files()) == (asked, before)


def test_a_day_is_asked_for_at_once_and_days_one_by_one(place: Place) -> None:
    for day in (DAY, DAY + timedelta(days=1)):
        place.vendor.add(PROJECT, Hour(day, 9), _body(9, day))
    place.recover(HourRange(Hour(DAY, 3), Hour(DAY + timedelta(days=1), 23)))
    assert [str(asked) for asked in place.vendor.asked] == ["2026-02-03T00+24", "2026-02-02T03+21"]


_OF_SIZE = Answer(400, b"The file size of the exported data is too large. Shorten the time ranges and try again.")


@pytest.mark.parametrize("answer", [_OF_SIZE, Answer(504)])
def test_a_range_that_is_too_large_is_halved_down_to_one_hour(place: Place, answer: Answer) -> None:
    place.exports(*range(6))
    place.vendor.always(answer, lambda asked: len(asked.hours) > 1)
    # A timeout of a single hour says nothing about its size.
    place.vendor.always(_OF_SIZE, lambda asked: asked.hours[0].hour == 4)
    assert place.recover(_range(0, 5)) == {**dict.fromkeys("01235", "recovered"), "4": "not recovered"}
    (error,) = place.errors
    assert "2026-02-02T04" in error
    assert "have it export that to the bucket by hand" in error
    assert not place.is_marked(4)


_OTHER = Answer(400, b"start lies outside of the retention of this project")
_IN_WORDS = [_OTHER, Answer(400), Answer(200, b'{"error": "soon"}', {"Content-Type": "application/json"})]


@pytest.mark.parametrize("answer", _IN_WORDS)
@pytest.mark.parametrize("days", [1, 4])
def test_a_refusal_ends_a_day_and_three_days_a_project(place: Place, answer: Answer, days: int) -> None:
    """Outcome: only the newest day, the oldest and one between are requested; nothing is written."""
    place.vendor.always(answer, lambda asked: asked.project_id == PROJECT)
    place.vendor.add(OTHER, Hour(DAY, 4), a_body(events_on(DAY, 2, app=int(OTHER))))
    hours = HourRange(Hour(DAY - timedelta(days=days - 1), 0), Hour(DAY, 23))
    fates = place.recover(hours, projects=(PROJECT, OTHER))
    ours = [asked for asked in place.vendor.asked if asked.project_id == PROJECT]
    asked_days = list(dict.fromkeys(asked.hours[0].day for asked in ours))
    assert asked_days == [DAY - timedelta(days=back) for back in ([0] if days == 1 else [0, 3, 1])]
    assert len(ours) == 7 * len(asked_days)
    assert (fates[f"{PROJECT}/4"], fates[f"{OTHER}/4"]) == ("not recovered", "recovered")
    (error,) = [one for one in place.errors if one.startswith(f"export of {PROJECT}: the vendor ")]
    assert answer.body.decode() in error
    assert "after 7 such answers in a row it was not asked again" in error
    assert {name.partition("/")[0] for name in place.files()} == {f"{OTHER}-backfill"}


_SECOND, _LAST = DAY + timedelta(days=1), DAY + timedelta(days=3)


@pytest.mark.parametrize(
    "good",
    [list(HourRange(Hour(_SECOND, 5), Hour(_LAST, 23))), list(HourRange(Hour(DAY, 0), Hour(_SECOND, 19)))],
    ids=["too old", "too new"],
)
def test_halving_goes_on_while_it_helps(place: Place, good: list[Hour]) -> None:
    """Scenario: the vendor refuses ranges around an hour. Outcome: all other hours are recovered, by few requests."""
    for hour in good:
        place.vendor.add(PROJECT, hour, _body(hour.hour, hour.day))
    words = iter(range(1000))
    place.vendor.faults.append(
        lambda asked: None if set(asked.hours) <= set(good) else Answer(400, f"number {next(words)}".encode())
    )
    place.recover(HourRange(Hour(DAY, 0), Hour(_LAST, 23)))
    assert [one.hour for one in place.outcomes if one.fate is HourFate.RECOVERED] == good
    assert all(one.fate in (HourFate.RECOVERED, HourFate.FAILED) for one in place.outcomes)
    assert len(place.vendor.asked) <= 30


@pytest.mark.parametrize("refused_hours", [["4"], ["4", "20"], ["23"]])
def test_refused_hours_cost_no_other(place: Place, refused_hours: list[str]) -> None:
    place.exports(*range(24))
    place.vendor.always(_OTHER, lambda asked: any(str(hour.hour) in refused_hours for hour in asked.hours))
    fates = place.recover()
    assert [hour for hour, fate in fates.items() if fate != "recovered"] == refused_hours
    error = place.errors[0]
    first = f"{PROJECT}, 2026-02-02T{int(refused_hours[0]):02d}"
    assert error.startswith(f"export of {first}: the vendor answered 400 Bad Request (start lies")


def test_hours_younger_than_the_vendors_delay_are_not_taken_for_empty(place: Place) -> None:
    """Scenario: the vendor lacks hours that ended under two hours ago. Outcome: they are named and not marked."""
    now = datetime(2026, 2, 2, 10, 30, tzinfo=UTC)
    place.vendor.delayed_from = Hour(DAY, 8)
    place.exports(*range(6, 11))
    plan = place.plan(_range(6, 10), now=now)
    assert [one.hour.hour for one in plan.asked if one.is_fetched] == [6, 7]
    fates = [one.fate for one in place.carry_out(plan, Progress(), ExportApi(place.settings))]
    assert fates == [HourFate.RECOVERED] * 2 + [HourFate.NOT_EXPORTED] * 3
    assert [str(asked) for asked in place.vendor.asked] == ["2026-02-02T06+2"]
    assert [hour for hour in range(24) if place.is_marked(hour)] == [6, 7]


def test_a_clock_that_is_ahead_marks_nothing_as_empty(place: Place) -> None:
    _raw_holds(place, _BEFORE)
    place.vendor.add(PROJECT, _BEFORE, _body(7))
    late = Answer(404, b"", {"Date": "Mon, 02 Feb 2026 09:59:59 GMT"})
    place.vendor.always(late, lambda asked: asked.hours[0].day == DAY)
    assert place.recover(_range(6, 8)) == {"6": "no data", "7": "not exported yet", "8": "not exported yet"}


def test_a_bucket_is_recovered_to_as_a_folder_is(place: Place, bucket: Any, tmp_path: Path) -> None:
    """Outcome: the missing object and the marker come once; the policy of recoveries allows exactly these requests."""
    bodies = {f"exports/{key}": body for key, body in place.exports_shards((4, 0), (4, 1)).items()}
    (first, *_) = bodies
    bucket.put_object(Key=first, Body=bodies[first])
    place.settings = place.settings.model_copy(update={"landing_url": f"s3://{bucket.name}/exports"})
    with recorded_requests(tmp_path) as requests:
        assert place.recover(_range(4, 4)) == {"4": "recovered"}
        asked = requests.rights()
    assert refused(policy("s3-recover"), asked) == []
    assert unneeded(policy("s3-recover"), asked) == []
    assert any("s3:PutObject" in one for one in refused(policy("s3-load"), asked))
    found = {item.key: item.get()["Body"].read() for item in bucket.objects.all()}
    assert found == bodies | {f"exports/{PREFIX}/{PREFIX}_{DAY}_4_complete": b""}
    assert place.recover(_range(4, 4)) == {"4": "already there"}


def test_a_member_that_leads_elsewhere_and_a_bomb_are_isolated_and_write_nothing(place: Place) -> None:
    """Outcome: the range is halved around them, all other hours are recovered, and nothing lies elsewhere."""
    place.exports(*range(8))
    place.vendor.add(PROJECT, Hour(DAY, 6), gzip.compress(b"\0" * (1 << 25), 9, mtime=0))
    honest = place.vendor.members

    def members(project_id: str, hours: Any) -> list[tuple[str, bytes]]:
        found = honest(project_id, hours)
        return [
            (name.replace(f"{PROJECT}/", "../../" if "_3#" in name else f"{PROJECT}/"), body) for name, body in found
        ]

    place.vendor.members = members  # type: ignore[method-assign]
    fates = place.recover(_range(0, 7))
    assert fates == {str(hour): "not recovered" if hour in (3, 6) else "recovered" for hour in range(8)}
    traversal, bomb = place.errors
    assert "leads out of the archive; nothing of it was written" in traversal
    assert "more than 200 times" in bomb
    assert {name.partition("/")[0] for name in place.files()} == {PREFIX}
    assert [path.name for path in place.root.parent.iterdir() if not path.name.startswith("ledger")] == ["landing"]


@pytest.mark.parametrize(("answer", "said"), [
    (Answer(403, b"no"), "does not take the project's keys"), (Answer(503), "asked 3 times"),
    (Answer(200, b"<html>hello</html>", {"Content-Type": "text/html"}), "a page answered"),
])  # fmt: skip
def test_what_concerns_a_project_leaves_the_others_alone(place: Place, answer: Answer, said: str) -> None:
    for project in (PROJECT, OTHER):
        place.vendor.add(project, Hour(DAY, 4), a_body(events_on(DAY, 2, app=int(project))))
    place.vendor.always(answer, lambda asked: asked.project_id == PROJECT)
    fates = place.recover(_range(4, 5), projects=(PROJECT, OTHER))
    ours = {f"{PROJECT}/4": "not recovered", f"{PROJECT}/5": "not recovered"}
    assert fates == ours | {f"{OTHER}/4": "recovered", f"{OTHER}/5": "no data"}
    (error,) = place.errors
    assert said in error
    assert {name.partition("/")[0] for name in place.files()} == {f"{OTHER}-backfill"}


def test_objects_that_are_there_are_compared_and_never_overwritten(place: Place) -> None:
    """Outcome: an object packed another way is left and its hour completed; other content is refused before any write."""
    first, *_ = place.exports_shards((4, 0), (4, 1), (5, 0), (5, 1)).values()
    same = place.deliver(4, gzip.compress(gzip.decompress(first), 1, mtime=5), Source.BACKFILL, shard=0)
    other = place.deliver(5, _body(99), Source.BACKFILL, shard=1)
    before = place.files()
    assert place.recover(_range(4, 5)) == {"4": "recovered", "5": "not recovered"}
    (error,) = place.errors
    assert f"{other}: holds other bytes than the vendor exports now; nothing was overwritten" in error
    after = place.files()
    assert {same: after[same], other: after[other]} == before
    assert f"{PREFIX}/{PREFIX}_{DAY}_4_complete" in after
    assert not any(name.startswith(f"{PREFIX}/{PREFIX}_{DAY}_5") for name in after.keys() - {other})


def test_an_object_that_a_copier_spelled_otherwise_is_the_hours_own(place: Place) -> None:
    """Scenario: two hours have `%23` for `#`, one with other content. Outcome: none is written beside its copy."""
    for hour in (4, 5):
        place.vendor.add(PROJECT, Hour(DAY, hour), _body(hour), 0)
        key = place.deliver(hour, _body(hour if hour == 4 else 99), Source.BACKFILL, shard=0)
        (place.root / key).rename(place.root / key.replace("#", "%23"))
    assert place.recover(_range(4, 5)) == {"4": "recovered", "5": "not recovered"}
    assert [name for name in place.files() if "#" in name] == []
    assert f"{PREFIX}/{PREFIX}_{DAY}_4_complete" in place.files()
    assert "5%230.json.gz: holds other bytes" in place.errors[0]


def test_an_hour_whose_object_cannot_be_placed_is_missing(place: Place) -> None:
    """Scenario: hour 7's object lost its name behind the hour. Outcome: that hour is fetched."""
    key = place.deliver(7, _body(7))
    (place.root / key).rename(place.root / key.partition("#")[0])
    for hour in (6, 7):
        (place.root / GRAMMAR.format_marker(BatchKey(Source.REGULAR, PROJECT, DAY), hour)).touch()
    states = {one.hour.hour: one.state for one in place.plan().hours}
    assert (states[6], states[7]) == (HourState.DELIVERED, HourState.MISSING)


def _states(plan: RecoveryPlan) -> dict[str, str]:
    found: dict[str, list[int]] = {}
    for one in plan.hours:
        found.setdefault(one.state.value, []).append(one.hour.hour)
    return {state: hours_text(hours) for state, hours in found.items()}


def test_the_state_of_every_hour_is_told(place: Place) -> None:
    """Outcome: each hour of a refused day has its state, and all but the recovered one are fetched."""
    for hour in (9, 10, 11):
        place.deliver(hour, _body(hour))
    place.record(BatchVerdict.REFUSED, h9="accepted", h10="refused", h11="waiting")
    place.deliver(13, _body(13), Source.BACKFILL)
    (place.root / GRAMMAR.format_marker(BatchKey(Source.BACKFILL, PROJECT, DAY), 13)).touch()
    place.deliver(14, _body(14), Source.BACKFILL)
    plan = place.plan()
    told = {"missing": "0–8, 12, 15–23", "whole": "9", "refused": "10–11", "recovered": "13", "delivered": "14"}
    assert _states(plan) == told
    assert {one.reason for one in plan.hours if one.state is HourState.REFUSED} == {"1 unreadable objects"}
    assert [one.hour.hour for one in plan.asked if not one.is_fetched] == [13]

    refused = place.plan(is_refused_only=True)
    assert [one.hour.hour for one in refused.asked] == [*range(9), 10, 11, 12, *range(15, 24)]
    assert all(one.is_fetched for one in refused.asked)
    assert not refused.warnings


def test_only_days_that_are_refused_are_meant_by_refused(place: Place) -> None:
    place.record(BatchVerdict.ACCEPTED, h9="accepted")
    assert place.plan(is_refused_only=True).hours == ()
    assert _states(place.plan()) == {"missing": "0–8, 10–23", "whole": "9"}


def test_hours_to_come_are_not_missing_of_a_refused_day(place: Place) -> None:
    place.record(BatchVerdict.REFUSED, h3="refused")
    plan = place.plan(is_refused_only=True, now=datetime(2026, 2, 2, 6, 30, tzinfo=UTC))
    assert [(one.hour.hour, one.is_fetched) for one in plan.asked] == [(hour, hour < 4) for hour in range(6)]


def test_what_a_refused_day_would_lack_is_told(place: Place) -> None:
    place.record(BatchVerdict.REFUSED, h10="refused", h11="refused")
    (warning,) = place.plan(_range(10, 10)).warnings
    assert "10001 2026-02-02: hours 0–9, 11–23 are not in raw either and not asked for" in warning


def test_markers_of_an_accepted_day_say_that_an_hour_is_empty(place: Place) -> None:
    batch = BatchKey(Source.REGULAR, PROJECT, DAY)
    place.ledger.record(Changes(batches=[BatchRecord(batch, BatchVerdict.ACCEPTED, hours=tuple(range(24)))]), "run")
    assert _states(place.plan()) == {"whole": "0–23"}


def test_progress_is_a_line_for_each_day(place: Place) -> None:
    place.exports(4, 5)
    api, plan, told = ExportApi(place.settings), place.plan(_range(4, 5)), list[str]()
    place.carry_out(plan, in_lines(plan, told.append), api)
    line = r"10001 2026-02-02: 2 of 2 hours are there \(2 of 2 hours settled, 1\.\d kB received\)"
    assert re.fullmatch(line, "\n".join(told))


_PROGRAM = """
import sys
from datetime import UTC, date, datetime
from contextlib import closing
from pipeline_assets.domain.days import Hour, HourRange
from pipeline_assets.domain.settings import Settings
from pipeline_assets.operations.recover import Recovery
from pipeline_assets.operations.recover_plan import RecoveryRequest, plan_recovery
from resources.export_api import ExportApi
from resources.landing.store import LandingStore
from resources.ledger.schema import RECOVERIES
from resources.ledger.store import Ledger
settings = Settings()
landing = LandingStore.from_settings(settings)
hours = HourRange(Hour(date(2026, 2, 2), 4), Hour(date(2026, 2, 2), 6))
with closing(Ledger(settings.ledger_database_url)) as ledger:
    plan = plan_recovery(ledger, landing, settings, RecoveryRequest(("10001",), hours), datetime(2026, 2, 10, tzinfo=UTC))
    Recovery(ExportApi(settings), landing, settings, ledger.recoveries).run(plan)
"""
_KEY = f"{PREFIX}/{PREFIX}_{DAY}_5"
_KILLS = [f"after_download:{DAY}T04", f"after_object:{_KEY}#0.json.gz", f"before_marker:{_KEY}_complete"]


def _let_claims_grow_old(place: Place, hours: int) -> None:
    """As if every claim had begun so much earlier."""
    with place.ledger.engine.begin() as connection:
        for row in connection.execute(sa.select(RECOVERIES)).mappings().all():
            begun = datetime.fromisoformat(row["begun_at"]) - timedelta(hours=hours)
            of_hour = RECOVERIES.update().where(RECOVERIES.c.hour == row["hour"])
            connection.execute(of_hour.values(begun_at=begun.isoformat()))


@pytest.mark.parametrize("armed", _KILLS)
def test_a_recovery_that_is_killed_leaves_no_marker_over_half_an_hour_and_goes_on(place: Place, armed: str) -> None:
    """Outcome: no hour with a marker lacks an object; the next recovery completes and leaves nothing else."""
    objects = place.exports_shards((4, 0), (5, 0), (5, 1), (6, 0))
    environment = {
        **os.environ, "TIDEMARK_CRASH_AT": armed, "TIDEMARK_LANDING_URL": place.settings.landing_url,
        "TIDEMARK_CATALOG_URL": place.settings.catalog_url, "TIDEMARK_EXPORT_MIN_FREE_BYTES": "0",
    }  # fmt: skip
    program = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for hour in (4, 5, 6):
        own = {key for key in objects if key.startswith(f"{PREFIX}/{PREFIX}_{DAY}_{hour}#")}
        assert not place.is_marked(hour) or own <= place.files().keys()
    assert f"{_KEY}_complete" not in place.files()
    is_half = f"{_KEY}#0.json.gz" in place.files()
    taken, _ = place.to_load()
    assert 5 not in taken
    assert bool(place.plans[BACKFILL].hours_unfinished) == is_half
    if is_half:
        batch = place.plans[BACKFILL]
        passed = Evaluation(Check.DELIVERY_RECONCILES, True)
        *_, told = batch.record(BatchVerdict.ACCEPTED, passed, place.settings).evaluations
        assert (told.check, told.is_passed, told.figures) == (Check.DELIVERY_COMPLETE, False, {"hours_unfinished": 1})
        _let_claims_grow_old(place, hours=5)
        assert 5 not in place.to_load()[0]
        _let_claims_grow_old(place, hours=2)
        assert 5 in place.to_load()[0], "nobody goes on with it, so that nothing is hidden for ever"

    fates = place.recover(_range(4, 6))
    assert set(fates.values()) <= {"recovered", "already there"}
    assert place.files() == objects | {f"{PREFIX}/{PREFIX}_{DAY}_{hour}_complete": b"" for hour in (4, 5, 6)}


def test_no_load_takes_a_part_of_an_hour_that_is_being_recovered(place: Place) -> None:
    """Scenario: landing is listed between an hour's two objects, beside a hand-made hour; the recovery fails, then
    completes. Outcome: the hour waits, named with its command, until its marker is listed; the other hour is taken."""
    place.exports_shards((5, 0), (5, 1))
    by_hand = place.deliver(7, _body(7), Source.BACKFILL)
    listings: list[Listing] = []

    def between(point: Failpoint, name: str) -> None:
        if point is Failpoint.AFTER_OBJECT and name.endswith("#0.json.gz"):
            listings.append(place.landing.list(Source.BACKFILL, [PROJECT], DAY, DAY))
            raise LandingUnavailableError("landing", "is away", "Try again")

    watch(between)
    try:
        with pytest.raises(LandingUnavailableError):
            place.recover(_range(5, 5))
    finally:
        watch()
    (half,) = listings
    taken, status = place.to_load()
    assert taken == {7: 1}
    assert status.due == {BACKFILL: "new hours: 1"}
    (place.root / by_hand).unlink()
    taken, status = place.to_load()
    assert (taken, status.due) == ({}, {})
    assert status.waiting[BACKFILL] == (
        "hours 5 wait: their recovery has not written its marker; if it died, run "
        f"tidemark recover --from {DAY}T05 --to {DAY}T05 --project {PROJECT}"
    )
    batch = place.plans[BACKFILL]
    known: dict[str, Any] = {"is_other_source_there": False, "first_arrival": None}
    verdict, evaluation = judge_absent(batch, settings=place.settings, now=NOW, **known)
    assert (verdict, "recovery" in (evaluation.reason or "")) == (BatchVerdict.WAITING, True)
    place.ledger.record(Changes(batches=[batch.record(verdict, evaluation, place.settings)]), "run")
    (told,) = read_health(place.ledger, place.settings, NOW).following
    assert f"tidemark recover --from {DAY}T05" in told.reason

    assert place.recover(_range(5, 5)) == {"5": "recovered"}
    assert place.to_load()[0] == {5: 2}
    assert place.to_load(half)[0] == {7: 1}, "it was listed before the marker came"


def test_every_point_of_a_recovery_is_killed_at() -> None:
    assert {armed.partition(":")[0] for armed in _KILLS} == {point.value for point in OF_RECOVERY}


def test_a_day_with_an_hour_that_was_not_recovered_is_not_loaded() -> None:
    """Readers would get a day short of that hour."""
    other = DAY + timedelta(days=1)
    fates = {(DAY, 5): HourFate.RECOVERED, (DAY, 6): HourFate.FAILED}
    fates |= {(other, 5): HourFate.RECOVERED, (other, 6): HourFate.NO_DATA}
    outcomes = [HourOutcome(PROJECT, Hour(*at), fate) for at, fate in fates.items()]
    outcomes.append(HourOutcome("10002", Hour(other, 6), HourFate.NOT_EXPORTED))
    assert whole_days(outcomes) == ([Slice(other, PROJECT)], sorted([Slice(DAY, PROJECT), Slice(other, "10002")]))


@pytest.mark.parametrize("source", Source)
def test_no_data_of_an_hour_that_landing_holds_an_unread_object_of_is_a_contradiction(
    place: Place, source: Source
) -> None:
    """Scenario: an hour has an unread object, and the vendor says "no data". Outcome: no marker."""
    place.deliver(5, _body(5), source)
    assert place.recover(_range(5, 6)) == {"5": "not recovered", "6": "not recovered"}
    assert not any(name.endswith("_complete") for name in place.files())


_BEFORE = Hour(DAY - timedelta(days=1), 7)


def _raw_holds(place: Place, hour: Hour) -> None:
    record = a_delivery(BatchKey(Source.REGULAR, PROJECT, hour.day), hour.hour)
    place.ledger.record(Changes(deliveries=[record]), "run")


def _use_keys_of(vendor: Vendor, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("KEY", "SECRET"), vendor.keys[project], strict=True):
        monkeypatch.setenv(f"TIDEMARK_EXPORT_{name}_{PROJECT}", value)


def test_no_data_is_believed_of_keys_alone_that_bring_an_hour_which_raw_holds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: 404 for a day to wrong keys, to right keys, then an hour appears.
    Outcome: wrong keys write nothing; right ones ask for the control hour once; empty hours are asked for on request."""
    _raw_holds(place, _BEFORE)
    place.vendor.add(PROJECT, _BEFORE, _body(7))
    _use_keys_of(place.vendor, OTHER, monkeypatch)
    assert set(place.recover().values()) == {"not recovered"}
    assert "no data of 2026-02-01T07, but something was delivered" in place.errors[0]
    place.vendor.add(OTHER, _BEFORE, _body(8))
    assert set(place.recover().values()) == {"not recovered"}
    assert "is not of project 10001" in place.errors[0]
    assert not place.files()

    _use_keys_of(place.vendor, PROJECT, monkeypatch)
    place.vendor.asked.clear()
    assert place.recover() == {str(hour): "no data" for hour in range(24)}
    assert [str(asked) for asked in place.vendor.asked] == ["2026-02-02T00+24", "2026-02-01T07+1"]
    assert all(body.startswith(b"no data") for body in place.files().values())
    assert place.recover() == {str(hour): "no data" for hour in range(24)}
    assert len(place.vendor.asked) == 2
    assert {one.state for one in place.plan().hours} == {HourState.NO_DATA}

    place.exports(5)
    again = place.recover(is_asking_again=True)
    assert again == {str(hour): "recovered" if hour == 5 else "no data" for hour in range(24)}
    assert {one.hour.hour for one in place.plan().hours if one.state is HourState.RECOVERED} == {5}


@pytest.mark.parametrize(
    "members", [[], [(f"{PROJECT}/{PROJECT}_{DAY}_3#0.json.gz", b"junk")]], ids=["empty", "bad alone"]
)
def test_an_archive_without_a_whole_hour_is_believed_no_more_than_no_data(
    place: Place, monkeypatch: pytest.MonkeyPatch, members: list[tuple[str, bytes]]
) -> None:
    """Scenario: wrong keys get archives without a whole hour. Outcome: no marker."""
    _use_keys_of(place.vendor, OTHER, monkeypatch)
    answers = [Answer(200, zipped(of), {"Content-Type": "application/zip"}) for of in (members, [])]
    place.vendor.always(answers[0], lambda asked: asked.hours[0].day == DAY)
    place.vendor.always(answers[1], lambda asked: asked.hours[0] == _BEFORE)
    assert set(place.recover().values()) == {"not recovered"}
    assert any("raw holds no hour that shows whose keys were used" in error for error in place.errors)
    _raw_holds(place, _BEFORE)
    assert set(place.recover().values()) == {"not recovered"}
    assert any("no data of 2026-02-01T07, but something was delivered" in error for error in place.errors)
    assert not place.files()


def test_a_control_hour_that_the_vendor_refuses_proves_nothing_and_its_words_are_told(place: Place) -> None:
    _raw_holds(place, _BEFORE)
    place.vendor.always(_OTHER, lambda asked: asked.hours[0] == _BEFORE)
    assert set(place.recover().values()) == {"not recovered"}
    (error,) = place.errors
    assert error.startswith(f"export of {PROJECT}, {_BEFORE}: the vendor answered 400 Bad Request (start lies")
    assert (place.files(), len(place.vendor.asked)) == ({}, 2)


def test_without_an_hour_that_raw_holds_no_data_is_not_recorded_unless_the_run_brings_data(place: Place) -> None:
    assert set(place.recover().values()) == {"not recovered"}
    assert "raw holds no hour that shows whose keys were used" in place.errors[0]
    assert not place.files()
    # Another range of the same run shows it, before or after the silent one.
    after = DAY + timedelta(days=1)
    place.vendor.add(PROJECT, Hour(after, 0), _body(0, after))
    fates = place.recover(HourRange(Hour(DAY, 22), Hour(after, 1)))
    assert fates == {"22": "no data", "23": "no data", "0": "recovered", "1": "no data"}


def test_one_contradicted_hour_discredits_the_whole_answer(place: Place) -> None:
    """Scenario: the archive has hour 3 and lacks hour 4, which raw holds. Outcome: nothing is written."""
    place.record(BatchVerdict.ACCEPTED, h4="accepted")
    place.exports(3)
    assert place.recover(_range(3, 5)) == dict.fromkeys("345", "not recovered")
    assert not place.files()
    assert place.recover(_range(3, 3)) == {"3": "recovered"}


def test_an_hour_that_was_asked_for_again_and_is_half_there_is_not_taken_for_whole(place: Place) -> None:
    marker = GRAMMAR.format_marker(BACKFILL, 5)
    place.deliver(5, _body(50), Source.BACKFILL, shard=0)
    (place.root / marker).write_bytes(b"no data")
    place.ledger.recoveries.begin(PROJECT, Hour(DAY, 5))
    # No load takes the half: the marker is older than the claim.
    assert place.to_load()[0] == {}
    assert place.plans[BACKFILL].hours_unfinished == {5}
    # Nor is it whole where a load took it after six hours.
    place.record(BatchVerdict.ACCEPTED, Source.BACKFILL, h5="accepted")
    place.exports_shards((5, 0), (5, 1))
    assert [(one.hour.hour, one.state) for one in place.plan(is_refused_only=True).hours] == [(5, HourState.UNFINISHED)]
    assert place.recover(is_refused_only=True) == {"5": "recovered"}
    assert not place.plan(is_refused_only=True).hours
    assert place.recover(_range(5, 5)) == {"5": "already there"}


def test_what_is_written_for_an_hour_that_is_told_to_be_missing_is_on_record(place: Place) -> None:
    """Outcome: the day counts for `--refused`; exactly the objects written for the missing hour are on record."""
    place.record(BatchVerdict.ACCEPTED, h9="accepted", h10="accepted")
    (record,) = place.ledger.batches([PROJECT], DAY, DAY).values()
    warned = Evaluation(Check.DELIVERY_COMPLETE, False, "short", figures={HOURS_HELD: 2})
    record = replace(record, evaluations=(Evaluation(Check.DELIVERY_RECONCILES, True), warned), is_closed=True)
    place.ledger.record(Changes(batches=[record]), "run")
    (told,) = read_health(place.ledger, place.settings, NOW).for_a_person
    assert (told.reason, any("recover" in one and "--refused" in one for one in told.commands)) == ("short", True)
    (status,) = [one for one in day_statuses(place.ledger, [PROJECT], [DAY], [Source.REGULAR]) if one.is_good]
    assert (status.is_final, status.reasons) == (False, (f"{PROJECT}: short",))
    refused = place.plan(is_refused_only=True)
    assert [one.hour.hour for one in refused.asked if one.is_fetched] == [*range(9), *range(11, 24)]
    place.exports_shards((9, 1), (11, 0), (11, 1))
    place.deliver(11, _body(110), Source.BACKFILL, shard=0)
    assert place.recover(_range(9, 9)) == {"9": "recovered"}
    assert place.recover(_range(11, 11)) == {"11": "recovered"}
    written = f"{PREFIX}/{PREFIX}_{DAY}_11#1.json.gz"
    sizes = {written: len(_body(111))}
    # Also where the recovery died between marker and end of claim: a load takes the hour then.
    place.execute(RECOVERIES.update().values(ended_at=None))
    assert place.ledger.recoveries.brought(PROJECT, DAY, DAY, "") == sizes
    place.ledger.recoveries.end(PROJECT, Hour(DAY, 11))
    place.ledger.recoveries.end(PROJECT, Hour(DAY, 9))
    assert place.ledger.recoveries.brought(PROJECT, DAY, DAY, "") == sizes
    # The baseline holds what its load read, whenever it was recovered.
    held = DeliveryRecord(BACKFILL, written, "etag", sizes[written], None, 3, 3, 0, 0, None, is_accepted=True)
    place.ledger.record(Changes(deliveries=[held]), "load")
    place.execute(RUNS.insert(), {"run_id": "load", "started_at": NOW.isoformat()})
    assert not place.ledger.recoveries.brought(PROJECT, DAY, DAY, NOW.isoformat())
    earlier = (NOW - timedelta(hours=1)).isoformat()
    assert place.ledger.recoveries.brought(PROJECT, DAY, DAY, earlier) == sizes
    # The same bytes under another etag or parser came with the run that first brought them.
    (known,) = place.ledger.deliveries(Source.BACKFILL, [PROJECT], DAY, DAY).values()
    assert known.run_id == "load"
    place.ledger.record(Changes(deliveries=[replace(known, etag="copied")]), "copied")
    place.execute(RUNS.insert(), {"run_id": "copied", "started_at": (NOW + timedelta(days=2)).isoformat()})
    assert not place.ledger.recoveries.brought(PROJECT, DAY, DAY, NOW.isoformat())
    whole = BatchRecord(BACKFILL, BatchVerdict.ACCEPTED, deliveries=1, hours=tuple(range(24)))
    place.ledger.record(Changes(batches=[whole]), "run")
    assert not read_health(place.ledger, place.settings, NOW).for_a_person
    assert not place.plan(is_refused_only=True).hours
