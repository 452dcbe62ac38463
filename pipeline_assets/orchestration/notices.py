"""Telling receivers of notices: at the end of each run, and by a sensor that sends what was left.

Contains: when the outbox is emptied.
Add here: another occasion.
Does not contain: sending (operations/notices.py), which notices there are (domain/notices.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import dagster as dg

from pipeline_assets.domain.errors import TidemarkError
from pipeline_assets.domain.plain_text import shown
from pipeline_assets.domain.settings import Settings
from pipeline_assets.inspection.receivers import unsigned_notices
from pipeline_assets.load.runtime import Runtime
from pipeline_assets.operations.notices import Told, register_receivers, send_notices
from pipeline_assets.orchestration.live_runs import under_way
from resources.failpoints import Failpoint, failpoint
from resources.ledger.store import Ledger

SENSOR_NAME = "notices"
_EVERY_SECONDS = 60


@contextmanager
def telling_receivers(runtime: Runtime, *, is_dry_run: bool) -> Iterator[None]:
    """Send what the block records, also where it fails; whatever becomes of that, the run goes on."""
    if is_dry_run:
        yield
        return
    # Before the block: what it records is the first that a new receiver is told of.
    _attempt(runtime, lambda: register_receivers(runtime.ledger, runtime.settings))
    try:
        yield
    except Exception:
        _send(runtime)
        raise
    _send(runtime)


def _send(runtime: Runtime) -> None:
    failpoint(Failpoint.BEFORE_NOTICES)
    if runtime.settings.notify_urls:
        _attempt(runtime, lambda: _say(runtime, send_notices(runtime.ledger, runtime.settings)))


def _say(runtime: Runtime, told: list[Told]) -> None:
    for one in told:
        runtime.log(f"notices: {one}")
    unsigned = unsigned_notices(runtime.settings)
    if unsigned is not None:
        runtime.log(str(unsigned))


def _attempt(runtime: Runtime, do: Callable[[], object]) -> None:
    try:
        if runtime.settings.notify_urls:
            do()
    except Exception as error:
        # Whatever it is, no load fails for it.
        runtime.log(f"notices: {error}; they are kept, and sent by the next run")


def notice_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """The sensor, where there is anybody to tell; it runs from the start, because it starts nothing."""
    if not settings.notify_urls:
        return []

    @dg.sensor(
        name=SENSOR_NAME,
        minimum_interval_seconds=_EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Sends the notices that no run could send, to webhooks that were away. Starts nothing. Waits while runs are "
            "under way: each sends its own at its end."
        ),
    )
    def notices(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        try:
            with closing(Ledger(settings.ledger_database_url)) as ledger:
                return dg.SkipReason(shown(_tick(context.instance, ledger, settings)))
        except TidemarkError as error:
            return dg.SkipReason(str(error))

    return [notices]


def _tick(instance: dg.DagsterInstance, ledger: Ledger, settings: Settings) -> str:
    register_receivers(ledger, settings)
    if not ledger.outbox.waiting():
        return "everybody was told of everything"
    runs = under_way(instance, ledger)
    if runs:
        return f"runs under way: {len(runs)}; each sends its notices at its end"
    return "; ".join(map(str, send_notices(ledger, settings, is_due_only=True))) or "everybody was told of everything"
