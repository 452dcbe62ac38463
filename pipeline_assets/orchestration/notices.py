"""Send notices to receivers: at the end of each run, and by a sensor that sends what a run could not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.questions import unsigned_notices
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.notices import register_receivers, send_notices
from pipeline_assets.orchestration.live_runs import under_way
from resources.failpoints import Failpoint, failpoint
from resources.ledger.store import Ledger, own_ledger


@contextmanager
def telling_receivers(runtime: Runtime, *, is_dry_run: bool) -> Iterator[None]:
    """Send the notices that the block records, also if it fails. A failure to send does not fail the run."""
    if is_dry_run:
        yield
        return
    # Register before the block, so that a new receiver gets the notices that the block records.
    _attempt(runtime, register_receivers)
    try:
        yield
    except Exception:
        _send(runtime)
        raise
    _send(runtime)


def _send(runtime: Runtime) -> None:
    failpoint(Failpoint.BEFORE_NOTICES)
    for one in _attempt(runtime, send_notices) or ():
        runtime.log(f"notices: {one}")
    for trouble in unsigned_notices(runtime.settings):
        runtime.log(str(trouble))


def _attempt(runtime: Runtime, do: Callable[[Ledger, Settings], Any]) -> Any:
    try:
        return do(runtime.ledger, runtime.settings) if runtime.settings.notify_urls else None
    except Exception as error:
        # No failure of notices may fail a load.
        runtime.log(f"notices: {error}; they are kept, and sent by the next run")
        return None


def notice_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return the sensor if receivers are configured. It is on by default, because it starts no run."""
    if not settings.notify_urls:
        return []

    @dg.sensor(
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Sends the notices that no run could send, to webhooks that were away. Starts nothing. Waits while runs are "
            "under way: each sends its own at its end."
        ),
    )
    def notices(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            with own_ledger(settings) as ledger:
                return dg.SkipReason(shown(_tick(context.instance, ledger, settings)))
        except TidemarkError as error:
            return dg.SkipReason(str(error))

    return [notices]


def _tick(instance: dg.DagsterInstance, ledger: Ledger, settings: Settings) -> str:
    told: Sequence[object] = ()
    if any(one.waiting for one in register_receivers(ledger, settings).values()):
        if runs := under_way(instance, ledger):
            return f"runs under way: {len(runs)}; each sends its notices at its end"
        told = send_notices(ledger, settings, is_due_only=True)
    return "; ".join(map(str, told)) or "everybody was told of everything"
