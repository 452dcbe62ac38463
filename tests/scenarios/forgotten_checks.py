"""A table with a check that nothing evaluates, as a check that blocks and as one that warns."""

from __future__ import annotations

from dataclasses import replace

from pipeline_assets.domain.checks import CheckRule
from tests.scenarios.city_events import CITY_EVENTS

FORGOTTEN = replace(CITY_EVENTS, checks=(*CITY_EVENTS.checks, CheckRule("forgotten", "Nobody evaluates it.")))
FORGOTTEN_WARNING = replace(
    CITY_EVENTS, checks=(*CITY_EVENTS.checks, CheckRule("forgotten", "Nobody evaluates it.", is_blocking=False))
)
