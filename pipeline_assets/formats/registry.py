"""The export format that this pipeline reads; no other module imports a particular format.

Contains: the choice of format.
Add here: another format, once there is one, and the rule that chooses between them.
Does not contain: the interface of a format (base.py), a particular format (amplitude/).
"""

from __future__ import annotations

from pipeline_assets.formats.amplitude.export import AMPLITUDE
from pipeline_assets.formats.base import ExportFormat

EXPORT_FORMAT: ExportFormat = AMPLITUDE
