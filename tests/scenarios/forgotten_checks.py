"""A table with a check that nothing evaluates, as a check that blocks and as one that warns.

Contains: the two tables, in a module of their own that imports nothing of the shell.
Add here: another mistake in a table's checks.
Does not contain: what becomes of it (test_extending.py).
"""

from __future__ import annotations

from dataclasses import replace

from pipeline_assets.domain.checks import CheckRule
from tests.scenarios.city_events import CITY_EVENTS

FORGOTTEN = replace(CITY_EVENTS, checks=(*CITY_EVENTS.checks, CheckRule("forgotten", "Nobody evaluates it.")))
FORGOTTEN_WARNING = replace(
    CITY_EVENTS, checks=(*CITY_EVENTS.checks, CheckRule("forgotten", "Nobody evaluates it.", is_blocking=False))
)
