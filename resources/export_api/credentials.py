"""Keys of the vendor's Export API: one pair for each project, from the environment alone."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field

from pipeline_assets.domain.errors import (
    SettingsError,
)
from pipeline_assets.domain.masking import remember_secret


@dataclass(frozen=True)
class ExportCredentials:
    """API key and secret key of one project; neither is ever shown."""

    project_id: str
    key: str = field(repr=False)
    secret: str = field(repr=False)

    @classmethod
    def of(cls, project_id: str) -> ExportCredentials:
        """From the environment; raises SettingsError where one is missing or blank."""
        names = (key_variable(project_id), secret_variable(project_id))
        values = [os.environ.get(name, "").strip() for name in names]
        for name, value in zip(names, values, strict=True):
            if not value:
                hint = (
                    f"Set {names[0]} and {names[1]} to the project's API key and secret key, in the environment alone"
                )
                raise SettingsError(name, "is not set, so the vendor cannot be asked for the project", hint)
        # The form that goes over the wire is as secret as its parts.
        remember_secret(base64.b64encode(":".join(values).encode()).decode())
        return cls(project_id, *values)


def key_variable(project_id: str) -> str:
    """The variable that holds the API key."""
    return f"TIDEMARK_EXPORT_KEY_{project_id}"


def secret_variable(project_id: str) -> str:
    """The variable that holds the secret key."""
    return f"TIDEMARK_EXPORT_SECRET_{project_id}"
