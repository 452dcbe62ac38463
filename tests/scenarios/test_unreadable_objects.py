"""An unreadable object costs its batch alone."""

from __future__ import annotations

import os
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dagster_aws.s3 import S3Resource

from pipeline_assets.domain.slices import Source
from resources.landing.store import LandingStore
from tests.support.builders import PROJECT, RAW_AND_REFINED, a_body, events_on
from tests.support.faulty_proxy import Fault, Faults, a_faulty_proxy

pytestmark = [pytest.mark.slow, pytest.mark.workers]
DAY = date(2026, 2, 2)
NEXT = DAY + timedelta(days=1)
REFINED = "refined/events"


@pytest.fixture
def pipeline(pipeline: Any) -> Any:
    """Without aggregates, which depend on refined alone."""
    return partial(pipeline, only=RAW_AND_REFINED)


def test_an_archived_object_costs_its_batch_and_is_tried_again(pipeline: Any, bucket: Any) -> None:
    """Scenario: S3 refuses one object (403) twice, then gives it. Outcome: its day is refused by key, the other
    published; then loaded. If it is all of landing, the connection is named."""
    faults = Faults(lambda method, path, _: Fault.ARCHIVED if method == "GET" and f"{DAY}_10" in path else None)
    with a_faulty_proxy(os.environ["AWS_ENDPOINT_URL_S3"], faults) as url:
        p = pipeline(landing_url="s3://tidemark-test/exports")
        p.resources["landing"] = LandingStore.from_settings(p.settings, S3Resource(endpoint_url=url))
        bad = f"{PROJECT}/{PROJECT}_{DAY}_10#1.json.gz"
        bucket.put_object(Key=f"exports/{bad}", Body=a_body(events_on(DAY, 10)))
        alone = p.run(DAY)
        assert not alone.success
        assert f"{bad}: landing refused: InvalidObjectState" in alone.failure()
        assert "no other object can be read" in alone.failure()
        bucket.put_object(Key=f"exports/{PROJECT}/{PROJECT}_{NEXT}_10#1.json.gz", Body=a_body(events_on(NEXT, 10)))

        run = p.run(DAY, NEXT)

        assert not run.success
        assert f"unreadable objects: 1, first {bad}: not_readable, landing refused: InvalidObjectState" in run.failure()
        assert "every load tries again" in run.failure()
        assert (p.count(REFINED, DAY), p.count(REFINED, NEXT)) == (0, 10)
        assert p.rows("raw/quarantine") == []
        p.must_run(DAY, NEXT)
        assert faults.met[Fault.ARCHIVED] >= 3
        assert p.batch(DAY).verdict.value == "refused"
        faults.choose = lambda *_: None
        healed = p.run(DAY, NEXT)
    assert healed.success, healed.failure()
    assert (p.count(REFINED, DAY), p.count(REFINED, NEXT)) == (10, 10)
    assert p.ledger.deliveries(Source.REGULAR, [PROJECT], DAY, DAY, is_accepted=False) == {}


def test_links_cost_at_most_their_own_batch(pipeline: Any, tmp_path: Path) -> None:
    """Outcome: a link out of landing is named and not followed; the second day's loop refuses that day."""
    p = pipeline(max_unreadable_objects=5)
    for day in (DAY, NEXT):
        p.deliver(day, events_on(day, 10), shard=1)
    secret = tmp_path / "secret"
    secret.write_bytes(b"BEGIN PRIVATE KEY")
    out = p.landing / PROJECT / f"{PROJECT}_{DAY}_10#2.json.gz"
    out.symlink_to(secret)
    loop = p.landing / PROJECT / f"{PROJECT}_{NEXT}_10#2.json.gz"
    loop.symlink_to(loop)

    run = p.run(DAY, NEXT)

    log = "\n".join(entry.user_message for entry in p.instance.all_logs(run.run_id))
    assert f"{PROJECT}/{out.name} is not loaded: link, a link that leads out of landing" in log
    assert f"{PROJECT}/{loop.name}: not_readable, landing refused" in run.failure()
    assert (p.count(REFINED, DAY), p.count(REFINED, NEXT)) == (10, 0)
    assert p.rows("raw/quarantine") == []
    loop.unlink()
    p.must_run(DAY, NEXT)
    assert p.count(REFINED, NEXT) == 10
