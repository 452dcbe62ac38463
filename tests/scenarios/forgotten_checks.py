"""Two tables with a check that nothing evaluates: one that blocks and one that warns."""

from __future__ import annotations

from dataclasses import replace

from pipeline_assets.domain.checks import CheckRule
from tests.scenarios.city_events import CITY_EVENTS

_NOBODYS = {
    name: replace(
        CITY_EVENTS,
        key=f"aggregates/{name}",
        checks=(*CITY_EVENTS.checks, CheckRule("forgotten", "Nobody evaluates it.", is_blocking=is_blocking)),
    )
    for name, is_blocking in (("blocked", True), ("warned", False))
}
BLOCKED, WARNED = _NOBODYS.values()
