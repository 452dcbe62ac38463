"""The format that this pipeline reads: the only module that imports one.

Contains: the choice.
Add here: another format, once there is one, and what chooses between them.
Does not contain: what a format must answer (base.py), answers (amplitude/).
"""

from __future__ import annotations

from pipeline_assets.formats.amplitude.export import AMPLITUDE
from pipeline_assets.formats.base import ExportFormat

EXPORT_FORMAT: ExportFormat = AMPLITUDE
