"""The export format that this pipeline reads; no other module imports a particular format."""

from __future__ import annotations

from pipeline_assets.formats.amplitude import AMPLITUDE
from pipeline_assets.formats.base import ExportFormat

EXPORT_FORMAT: ExportFormat = AMPLITUDE
