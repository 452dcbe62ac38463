"""From a day that differs to the run that closes it, and what an exclusion names: by landing and ledger; no Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_assets.domain.days import deadline
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.records import BatchRecord, DeliveryRecord, Exclusion, SliceRecord
from pipeline_assets.domain.repairs import Repair, RepairKind
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import BatchVerdict, Digest, Slice, Source, Verdict
from pipeline_assets.formats.amplitude.keys import KeyGrammar
from pipeline_assets.operations.decisions import hash_of
from pipeline_assets.operations.recover_plan import plan_repairs
from pipeline_assets.tables.registry import DERIVED
from resources.landing.store import LandingStore
from resources.ledger.changes import Changes
from resources.ledger.store import Ledger
from tests.support.builders import PROJECT
from tests.unit.load.test_batches import an_exclusion

DAY = date(2026, 2, 2)
NOW = datetime(2026, 2, 10, tzinfo=UTC)
KEY = Slice(DAY, PROJECT)
GRAMMAR = KeyGrammar(Settings().marker_pattern)
SPAN = f"--from {DAY} --to {DAY} --project {PROJECT}"


@dataclass
class Place:
    """Landing with a day of 24 hours, all in the ledger."""

    root: Path
    settings: Settings
    ledger: Ledger

    def __post_init__(self) -> None:
        batch = BatchKey(Source.REGULAR, PROJECT, DAY)
        for hour in range(24):
            self.deliver(hour)
            self.put(GRAMMAR.format_marker(batch, hour))
        listing = self.landing.list(Source.REGULAR, [PROJECT], DAY, DAY)
        deliveries = [
            DeliveryRecord(batch, one.key, one.etag, 1, None, 3, 3, 0, 0, None, is_accepted=True)
            for one in listing.deliveries
        ]
        record = BatchRecord(batch, BatchVerdict.ACCEPTED, deliveries=24, hours=tuple(range(24)), is_closed=True)
        self.ledger.record(Changes(deliveries=deliveries, batches=[record], slices=self.slices()), "run")

    def slices(self, **changes: Any) -> list[SliceRecord]:
        known = {"verdict": Verdict.UNCHANGED, "digest": Digest(72, 1, 1)} | changes
        codes = {table.key: table.code_version(self.settings) for table in DERIVED}
        return [SliceRecord(name, KEY, **{"code_version": code, **known}) for name, code in codes.items()]

    def record_short(self, day: date, hours: int) -> None:
        """A day is accepted with its first hours, and its tables are built."""
        record = BatchRecord(BatchKey(Source.REGULAR, PROJECT, day), BatchVerdict.ACCEPTED, hours=tuple(range(hours)))
        moved = [SliceRecord(one.table, Slice(day, PROJECT), Verdict.UNCHANGED) for one in self.slices()]
        self.ledger.record(Changes(batches=[record], slices=moved), "run")

    @property
    def landing(self) -> LandingStore:
        return LandingStore.from_settings(self.settings)

    def put(self, key: str, content: bytes = b"") -> str:
        (self.root / key).parent.mkdir(exist_ok=True)
        (self.root / key).write_bytes(content)
        return key

    def deliver(self, hour: int, content: bytes = b"x", *, day: date = DAY, source: Source = Source.REGULAR) -> str:
        return self.put(GRAMMAR.format_delivery(BatchKey(source, PROJECT, day), hour, 1), content)

    def plan(self, *tried: RepairKind, is_lacking: bool = True) -> list[Repair]:
        return self.plan_of({KEY: is_lacking}, *tried)

    def plan_of(self, lacking: Mapping[Slice, bool], *tried: RepairKind, now: datetime = NOW) -> list[Repair]:
        done = {(kind, key) for kind in tried for key in lacking}
        return plan_repairs(self.ledger, self.landing, self.settings, lacking, now, done)

    def commands(self, *tried: RepairKind, **how: bool) -> list[str]:
        # These slices have no recorded inputs: each load would build them, once.
        return [one.command for one in self.plan(RepairKind.LOAD, *tried, **how)]


@pytest.fixture
def place(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in ("KEY", "SECRET"):
        monkeypatch.setenv(f"TIDEMARK_EXPORT_{name}_{PROJECT}", "a-word-of-length")
    root = tmp_path / "landing"
    root.mkdir()
    settings = Settings(landing_url=str(root), catalog_url=f"sqlite:///{tmp_path}/ledger.db", projects=(PROJECT,))
    return Place(root, settings, ledger)


def test_objects_that_no_load_has_read_are_loaded_first(place: Place) -> None:
    """A changed one, and those of near arrival days of either source; a day beyond the window does not count."""
    place.deliver(4, b"other bytes")
    place.deliver(9, day=DAY + timedelta(days=2), source=Source.BACKFILL)
    place.deliver(9, day=DAY + timedelta(days=4))
    assert [(one.kind, one.command) for one in place.plan()] == [
        (RepairKind.LOAD, f"tidemark load --source backfill --from 2026-02-04 --to 2026-02-04 --project {PROJECT}"),
        (RepairKind.LOAD, f"tidemark load --source regular {SPAN}"),
    ]


def test_a_whole_day_is_asked_for_where_no_hour_is_known_to_lack_and_never_twice(place: Place) -> None:
    assert place.commands() == [f"tidemark recover {SPAN} --load"]
    assert place.commands(is_lacking=False) == [f"tidemark reconcile --keys FILE {SPAN}"]
    backfill = BatchKey(Source.BACKFILL, PROJECT, DAY)
    for hour in range(24):
        place.put(GRAMMAR.format_marker(backfill, hour))
    assert place.commands() == [f"tidemark reconcile --keys FILE {SPAN}"]


def test_hours_that_lack_are_asked_for_alone(place: Place) -> None:
    day = DAY + timedelta(days=1)
    place.record_short(day, 22)
    (found,) = place.plan_of({Slice(day, PROJECT): True}, RepairKind.LOAD)
    assert found.command == f"tidemark recover --from {day}T22 --to {day}T23 --project {PROJECT} --load"


@pytest.mark.parametrize("hours", [22, 24])
def test_a_day_before_its_deadline_is_waited_for_and_the_day_before_it_is_recovered(place: Place, hours: int) -> None:
    """Outcome: the vendor is asked only for a day past its deadline."""
    day = DAY + timedelta(days=1)
    place.record_short(day, hours)
    keys = [KEY, Slice(day, PROJECT)]

    def planned(now: datetime) -> list[tuple[RepairKind, bool, list[Slice]]]:
        found = place.plan_of(dict.fromkeys(keys, True), RepairKind.LOAD, now=now)
        return [(one.kind, one.kind.is_run, list(one.slices)) for one in found]

    at = deadline(day, place.settings)
    assert planned(at) == [(RepairKind.RECOVER_DAYS, True, [KEY]), (RepairKind.WAIT, False, keys[1:])]
    later = {22: [RepairKind.RECOVER, RepairKind.RECOVER_DAYS], 24: [RepairKind.RECOVER_DAYS]}[hours]
    assert [kind for kind, *_ in planned(at + timedelta(seconds=1))] == later


def test_without_keys_the_proposal_says_which_variables_are_missing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"TIDEMARK_EXPORT_KEY_{PROJECT}")
    (one,) = place.plan(RepairKind.LOAD)
    assert one.kind is RepairKind.RECOVER_DAYS
    assert f"TIDEMARK_EXPORT_KEY_{PROJECT}: is not set" in (one.obstacle or "")


def test_what_a_person_decided_is_named_and_left_alone(place: Place) -> None:
    place.ledger.interventions.hold({"refined/events": [KEY]}, "doubled since noon", "run")
    (held,) = place.plan()
    assert (held.kind, held.reason) == (RepairKind.DECIDE, "held: doubled since noon")
    assert held.command == f'tidemark release {SPAN} --table refined/events --reason "REASON"'


def test_excluded_deliveries_refusals_and_older_code_are_named_beside_what_is_run(place: Place) -> None:
    (key, *_) = sorted(one.key for one in place.landing.list(Source.REGULAR, [PROJECT], DAY, DAY).deliveries)
    etag = place.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY)[key].etag
    batch = BatchKey(Source.REGULAR, PROJECT, DAY)
    place.ledger.record(Changes(forgotten_deliveries=[(batch, key)]), "run")
    assert place.plan()[0].kind is RepairKind.LOAD
    place.ledger.interventions.exclude([Exclusion(batch, key, etag, None, "came twice")], "run")
    refined, revenue, *_ = place.slices()
    refused = replace(refined, verdict=Verdict.REFUSED, reason="change_is_explained: grows")
    place.ledger.record(Changes(slices=[refused, replace(revenue, code_version="0-old")]), "run")
    assert place.commands() == [
        f'tidemark rebuild start --table aggregates/daily_revenue {SPAN} --reason "REASON"',
        f"tidemark diff refined/events {DAY} --project {PROJECT}",
        f"tidemark include '{key}' --reason \"REASON\"",
    ]


@pytest.mark.parametrize(("etag", "sha256", "named_etag", "named_sha256", "is_named"), [
    ("e1", "s1", "e1", "s1", True), ("e2", "s1", "e1", "s1", True), ("e1", "s2", "e1", "s1", False),
    ("e1", None, "e1", "s1", True), ("e1", "s1", "e1", None, True), ("", None, "", None, False),
    ("unread e1", None, "e1", "s1", True), ("unread e2", None, "e1", "s1", False), ("e2", "s1", "", None, False),
])  # fmt: skip
def test_an_exclusion_names_bytes_and_where_they_are_unknown_one_version(
    etag: str, sha256: str | None, named_etag: str, named_sha256: str | None, is_named: bool
) -> None:
    assert replace(an_exclusion(etag=named_etag), sha256=named_sha256).names(etag, sha256) is is_named


def test_a_version_is_read_before_it_is_excluded_and_refused_where_it_cannot_be(place: Place) -> None:
    key = place.deliver(4)
    (listed,) = [one for one in place.landing.list(Source.REGULAR, [PROJECT], DAY, DAY).deliveries if one.key == key]
    assert hash_of(place.landing, key, listed.etag) == hashlib.sha256(b"x").hexdigest()
    place.deliver(4, b"other bytes")
    with pytest.raises(UsageError, match="cannot be read, so its bytes cannot be excluded: it was overwritten"):
        hash_of(place.landing, key, listed.etag)
