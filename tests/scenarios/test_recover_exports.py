"""Lost, cut or doubled hours are fetched from the vendor again; the tables equal those of a timely delivery."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline_assets.definitions import build_defs
from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.deliveries import BatchKey
from pipeline_assets.domain.slices import BatchVerdict, Slice, Source
from pipeline_assets.orchestration.assets import Clock
from pipeline_assets.orchestration.operation_job import RECOVER_JOB, RECOVER_OP
from sample_export.objects import write_export
from sample_export.spec import ExportSpec
from tests.support.builders import PROJECT, a_body, events_on
from tests.support.export_api import Answer, Vendor, a_vendor
from tests.support.reference import measured_digests, require_known
from tests.support.shell import OfPipeline

pytestmark = pytest.mark.slow
DAYS = [date(2026, 2, 2) + timedelta(days=shift) for shift in range(3)]
CUT, LOST, DOUBLED = DAYS
HOURS = (1, 9, 10, 17)
SPEC = ExportSpec(
    projects=(PROJECT,), first_day=DAYS[0], days=len(DAYS), events_per_day=60, shards=2, hours=HOURS, tail_share=0.0,
)  # fmt: skip
RAW = ("raw/regular_events", "raw/backfill_events")
_NAME = re.compile(r"_(?P<day>[0-9-]{10})_(?P<hour>[0-9]+)#(?P<shard>[0-9]+)\.json\.gz")


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with a_vendor(PROJECT) as found:
        for name, value in found.environment().items():
            if name != "TIDEMARK_EXPORT_API_URL":
                monkeypatch.setenv(name, value)
        yield found


def _publish_to(vendor: Vendor, landing: Path) -> None:
    for path in (landing / PROJECT).iterdir():
        match = _NAME.search(path.name)
        if match:
            hour = Hour(date.fromisoformat(match["day"]), int(match["hour"]))
            vendor.add(PROJECT, hour, path.read_bytes(), int(match["shard"]))


def _spoil(landing: Path) -> None:
    """One object is cut, one day lacks two hours with markers, one object is doubled."""
    folder = landing / PROJECT
    cut = folder / f"{PROJECT}_{CUT}_9#1.json.gz"
    cut.write_bytes(cut.read_bytes()[:-20])
    for hour in (9, 10):
        for path in folder.glob(f"{PROJECT}_{LOST}_{hour}[#_]*"):
            path.unlink()
    (folder / f"{PROJECT}_{DOUBLED}_17#99.json.gz").write_bytes(
        (folder / f"{PROJECT}_{DOUBLED}_17#1.json.gz").read_bytes()
    )


def _published(p: Any) -> dict[str, Any]:
    """Table -> slice -> published digest; raw tables have their rows by prefix."""
    return {table: found for table, found in measured_digests(p.lakehouse).items() if table not in RAW}


def _two_pipelines(pipeline: Any, vendor: Vendor) -> tuple[Any, Any]:
    """One with everything delivered and loaded, one with a spoilt landing."""
    calm, spoilt = pipeline(), pipeline()
    for p in (calm, spoilt):
        write_export(SPEC, p.landing)
    _publish_to(vendor, calm.landing)
    _spoil(spoilt.landing)
    assert calm.load(DAYS[0], DAYS[-1]).success
    return calm, spoilt


def _shell(p: Any, vendor: Vendor) -> OfPipeline:
    return OfPipeline(p, **vendor.environment(), TIDEMARK_EXPORT_MIN_FREE_BYTES="0")


def test_red_days_are_recovered_and_end_as_a_regular_delivery_would(pipeline: Any, vendor: Vendor) -> None:
    """Scenario: a cut object, two lost hours, a doubled object; the vendor refuses a large day and is overloaded once.
    Outcome: after `recover` every published digest is that of a timely delivery."""
    calm, p = _two_pipelines(pipeline, vendor)
    shell = _shell(p, vendor)
    loaded = p.run(DAYS[0], DAYS[-1])
    assert not loaded.success
    assert p.verdict("refined/events", CUT) == "waiting"
    assert _published(p) != _published(calm)

    words = ("recover", "--from", str(LOST), "--to", str(LOST), "--dry-run", "--json")
    told = json.loads(shell(*words).stdout)
    missing = {one["hour"] for one in told if one["state"] == "missing"}
    assert missing == {str(Hour(LOST, hour)) for hour in (9, 10)}

    vendor.most_hours = 12
    vendor.fail(Answer(429, b"", {"Retry-After": "0"}))
    refused = shell("recover", "--refused", "--load")
    assert refused.returncode == 0, refused.stdout + refused.stderr
    assert {asked.hours[0].day for asked in vendor.asked} == {CUT, LOST}
    assert p.verdict("refined/events", CUT) == "published"

    span = ("--from", str(Hour(LOST, 9)), "--to", str(Hour(LOST, 10)))
    lost = shell("recover", *span, "--project", PROJECT, "--load")
    assert lost.returncode == 0, lost.stdout + lost.stderr

    assert _published(p) == _published(calm)
    require_known(p)
    asked, history = len(vendor.asked), p.history()
    assert shell("recover", *span, "--load").returncode == 0
    assert (len(vendor.asked), p.history()) == (asked, history)

    # The refused batch stays red beside the recovered day, until its cut object is accepted as lost.
    regular = BatchKey(Source.REGULAR, PROJECT, CUT)
    assert p.ledger.batches([PROJECT], CUT, CUT)[regular].verdict is BatchVerdict.REFUSED
    cut = f"{PROJECT}/{PROJECT}_{CUT}_9#1.json.gz"
    excluded = shell("exclude", cut, "--reason", "recovered from the vendor")
    assert excluded.returncode == 0, excluded.stdout + excluded.stderr
    assert p.ledger.batches([PROJECT], CUT, CUT)[regular].verdict is BatchVerdict.ACCEPTED
    assert _published(p) == _published(calm)


def test_the_job_recovers_and_loads_as_the_command_does(pipeline: Any, vendor: Vendor) -> None:
    """Outcome: the command's digests; Dagster shows the load as its own run; a failing recovery fails the run."""
    calm, p = _two_pipelines(pipeline, vendor)
    assert not p.run(DAYS[0], DAYS[-1]).success
    p.change(export_api_url=vendor.url, export_min_free_bytes=0)

    def run(**config: Any) -> dg.ExecuteInProcessResult:
        job = build_defs(p.settings, clock=Clock(p.now)).resolve_job_def(RECOVER_JOB)
        span = {"from": str(DAYS[0]), "to": str(DAYS[-1])}
        ops = {RECOVER_OP: {"config": span | config}}
        return job.execute_in_process(run_config={"ops": ops}, instance=p.instance, raise_on_error=False)

    assert run(dry_run=True).success
    assert not vendor.asked
    assert run(load=True).success
    assert _published(p) == _published(calm)
    (load,) = p.instance.get_runs(dg.RunsFilter(job_name="backfill_load"))
    assert load.status is dg.DagsterRunStatus.SUCCESS
    shown = p.instance.get_materialized_partitions(dg.AssetKey(["raw", "backfill_events"]))
    assert shown == {str(day) for day in DAYS}

    vendor.always(Answer(403, b"no"))
    refused = run(**{"from": "2026-02-10", "to": "2026-02-10"})
    assert not refused.success
    (step,) = [event for event in refused.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    data: Any = step.event_specific_data
    said = str(data.user_failure_data.description if data.user_failure_data else data.error)
    assert said.startswith("24 of 24 hours are not recovered: export of 10001")
    assert "TIDEMARK_EXPORT_KEY_10001" in said


def test_hours_that_never_came_stay_missing_and_a_recovery_of_them_alone_is_no_growth(
    pipeline: Any, vendor: Vendor
) -> None:
    """Scenario: 2 of a day's 24 hours came; a file is copied below the backfill prefix; 3 hours are recovered instead.
    Outcome: provisional; the copy is bounded like a final day's change; recovered rows pass and lift no other bound."""
    p = pipeline()
    shell = _shell(p, vendor)
    marker = "{project}/{project}_{day}_{hour}_complete"
    for hour in range(24):
        paid = {"event_properties": {"$revenue": 10.0 * (hour + 1), "currency": "EUR"}}
        events = [event | paid for event in events_on(LOST, 120, prefix=f"h{hour}-")]
        if hour < 2:
            p.deliver(LOST, events, hour=hour)
            (p.landing / marker.format(project=PROJECT, day=LOST, hour=hour)).touch()
        else:
            vendor.add(PROJECT, Hour(LOST, hour), a_body(events))
    assert p.run(LOST).success
    told = json.loads(shell("recover", "--refused", "--dry-run", "--json").stdout)
    assert [one["hour"] for one in told if one["is_fetched"]] == [str(Hour(LOST, hour)) for hour in range(2, 24)]
    refined = p.ledger.slices("refined/events", [PROJECT], [LOST])[Slice(LOST, PROJECT)]
    assert (refined.is_final, refined.baseline.figures["rows"]) == (False, 240)

    copied = p.deliver(LOST, events_on(LOST, 100, prefix="by-hand-"), hour=20, source=Source.BACKFILL)
    assert not p.run(LOST, source=Source.BACKFILL).success
    assert (
        "grows by 41.7%: rows 240 -> 340"
        in p.ledger.slices("refined/events", [PROJECT], [LOST])[Slice(LOST, PROJECT)].reason
    )
    excluded = shell("exclude", copied, "--reason", "copied by hand")
    assert excluded.returncode == 0, excluded.stdout + excluded.stderr

    span = ("--from", str(Hour(LOST, 2)), "--to", str(Hour(LOST, 4)))
    recovered = shell("recover", *span, "--load")
    assert recovered.returncode == 0, recovered.stdout + recovered.stderr
    assert {p.verdict(table, LOST) for table in ("refined/events", "aggregates/daily_revenue")} == {"published"}
    assert p.count("refined/events", LOST) == 600

    users = p.ledger.slices("aggregates/active_users", [PROJECT], [LOST])[Slice(LOST, PROJECT)]
    assert users.baseline.figures == {"active_users": 120}

    # A plain load compares with 240 rows and 360 recovered ones, and allows at most 20 % more.
    p.deliver(LOST, events_on(LOST, 130, prefix="late-"), hour=1, shard=9)
    assert not p.run(LOST).success
    assert (
        "grows by 21.7%: rows 600 -> 730"
        in p.ledger.slices("refined/events", [PROJECT], [LOST])[Slice(LOST, PROJECT)].reason
    )
