"""Sensors: when days are loaded automatically.

Contains: a sensor for each reason to start a load, its cursor, its requests.
Add here: another reason to start a load.
Does not contain: whether a batch is complete (load/deliveries/readiness.py).
"""

import dagster as dg

from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Source
from pipeline_assets.orchestration.sensors.arrivals import arrival_sensor
from pipeline_assets.orchestration.sensors.heal import heal_sensor
from pipeline_assets.orchestration.sensors.snapshots import snapshot_sensor


def load_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return one sensor per source, one for all dimensions, and `heal`."""
    exports = (arrival_sensor(settings, source) for source in Source)
    return [*exports, snapshot_sensor(settings), heal_sensor(settings)]
