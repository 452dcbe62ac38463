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

from pipeline_assets.domain.days import Hour
from pipeline_assets.domain.slices import BatchVerdict, Source
from pipeline_assets.orchestration.operation_job import RECOVER_JOB, RECOVER_OP
from sample_export.objects import write_export
from sample_export.spec import ExportSpec
from tests.support.builders import PROJECT, a_body, a_pipeline, events_on
from tests.support.export_api import Answer, Vendor
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


@pytest.fixture(scope="module")
def timely(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The landing of a timely delivery, and what is published of it."""
    with a_pipeline(spark, tmp_path_factory.mktemp("timely")) as p:
        write_export(SPEC, p.landing)
        p.must_load(DAYS[0], DAYS[-1])
        yield p.landing, _published(p)


def _spoilt(p: Any, vendor: Vendor, landing: Path) -> OfPipeline:
    """Load a spoilt landing whose whole content the vendor has; returns its commands."""
    write_export(SPEC, p.landing)
    _publish_to(vendor, landing)
    _spoil(p.landing)
    assert not p.run(DAYS[0], DAYS[-1]).success
    return _shell(p, vendor)


def _shell(p: Any, vendor: Vendor) -> OfPipeline:
    return OfPipeline(p, **vendor.environment(), TIDEMARK_EXPORT_MIN_FREE_BYTES="0")


def test_red_days_are_recovered_and_end_as_a_regular_delivery_would(
    pipeline: Any, vendor: Vendor, timely: tuple[Path, dict[str, Any]]
) -> None:
    """Scenario: a cut object, two lost hours, a doubled object; the vendor refuses a large day and is overloaded once.
    Outcome: after `recover` every published digest is that of a timely delivery."""
    p, right = pipeline(), timely[1]
    shell = _spoilt(p, vendor, timely[0])
    assert p.verdict("refined/events", CUT) == "waiting"
    assert _published(p) != right

    words = ("recover", "--from", str(LOST), "--to", str(LOST), "--dry-run", "--json")
    told = json.loads(shell(*words).stdout)
    missing = {one["hour"] for one in told if one["state"] == "missing"}
    assert missing == {str(Hour(LOST, hour)) for hour in (9, 10)}

    vendor.most_hours = 12
    vendor.fail(Answer(429, b"", {"Retry-After": "0"}))
    shell.must("recover", "--refused", "--load")
    assert {asked.hours[0].day for asked in vendor.asked} == {CUT, LOST}
    assert p.verdict("refined/events", CUT) == "published"
    span = ("--from", str(Hour(LOST, 9)), "--to", str(Hour(LOST, 10)))
    shell.must("recover", *span, "--project", PROJECT, "--load")
    assert _published(p) == right
    require_known(p)
    asked, history = len(vendor.asked), p.history()
    shell.must("recover", *span, "--load")
    assert (len(vendor.asked), p.history()) == (asked, history)

    # The refused batch stays red beside the recovered day, until its cut object is accepted as lost.
    assert p.batch(CUT).verdict is BatchVerdict.REFUSED
    shell.must("exclude", f"{PROJECT}/{PROJECT}_{CUT}_9#1.json.gz", "--reason", "recovered from the vendor")
    assert p.batch(CUT).verdict is BatchVerdict.ACCEPTED
    assert _published(p) == right


def test_the_job_recovers_and_loads_as_the_command_does(
    pipeline: Any, vendor: Vendor, timely: tuple[Path, dict[str, Any]]
) -> None:
    """Outcome: the command's digests; Dagster shows the load as its own run; a failing recovery fails the run."""
    p = pipeline()
    _spoilt(p, vendor, timely[0])
    p.change(export_api_url=vendor.url, export_min_free_bytes=0)
    span = {"from": str(DAYS[0]), "to": str(DAYS[-1])}
    assert p.run_job(RECOVER_JOB, RECOVER_OP, {**span, "dry_run": True}).success
    assert not vendor.asked
    assert p.run_job(RECOVER_JOB, RECOVER_OP, {**span, "load": True}).success
    assert _published(p) == timely[1]
    (load,) = p.instance.get_runs(dg.RunsFilter(job_name="backfill_load"))
    assert load.status is dg.DagsterRunStatus.SUCCESS
    shown = p.instance.get_materialized_partitions(dg.AssetKey(["raw", "backfill_events"]))
    assert shown == {str(day) for day in DAYS}

    vendor.always(Answer(403, b"no"))
    refused = p.run_job(RECOVER_JOB, RECOVER_OP, {"from": "2026-02-10", "to": "2026-02-10"})
    assert not refused.success
    assert refused.failure().startswith("24 of 24 hours are not recovered: export of 10001")
    assert "TIDEMARK_EXPORT_KEY_10001" in refused.failure()


def test_hours_that_never_came_stay_missing_and_a_recovery_of_them_alone_is_no_growth(
    pipeline: Any, vendor: Vendor
) -> None:
    """Scenario: 2 of a day's 24 hours came; a file is copied below the backfill prefix; 3 hours are recovered instead.
    Outcome: provisional; the copy is bounded like a final day's change; recovered rows pass and lift no other bound."""
    p = pipeline()
    shell = _shell(p, vendor)
    for hour in range(24):
        paid = {"event_properties": {"$revenue": 10.0 * (hour + 1), "currency": "EUR"}}
        events = [event | paid for event in events_on(LOST, 120, prefix=f"h{hour}-")]
        if hour < 2:
            p.deliver(LOST, events, hour=hour)
            p.mark(LOST, hours=[hour])
        else:
            vendor.add(PROJECT, Hour(LOST, hour), a_body(events))
    p.must_run(LOST)
    told = json.loads(shell("recover", "--refused", "--dry-run", "--json").stdout)
    assert [one["hour"] for one in told if one["is_fetched"]] == [str(Hour(LOST, hour)) for hour in range(2, 24)]
    refined = p.record("refined/events", LOST)
    assert (refined.is_final, refined.baseline.figures["rows"]) == (False, 240)

    copied = p.deliver(LOST, events_on(LOST, 100, prefix="by-hand-"), hour=20, source=Source.BACKFILL)
    assert not p.load(LOST, source=Source.BACKFILL).success
    assert "grows by 41.7%: rows 240 -> 340" in p.record("refined/events", LOST).reason
    shell.must("exclude", copied, "--reason", "copied by hand")
    shell.must("recover", "--from", str(Hour(LOST, 2)), "--to", str(Hour(LOST, 4)), "--load")
    assert {p.verdict(table, LOST) for table in ("refined/events", "aggregates/daily_revenue")} == {"published"}
    assert p.count("refined/events", LOST) == 600
    assert p.record("aggregates/active_users", LOST).baseline.figures == {"active_users": 120}
