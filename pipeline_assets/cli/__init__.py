"""`tidemark`: the same jobs and questions from the shell."""

import sys

from pipeline_assets.domain.errors import SettingsError


def main() -> None:
    """Entry point of the `tidemark` script."""
    try:
        from pipeline_assets.cli.app import app  # noqa: PLC0415 - who imports a part of the shell needs no command
    except SettingsError as error:
        # Tables that settings name are imported with the first module.
        sys.stderr.write(f"{error.subject}: {error.reason}\n  fix: {error.hint}\n")
        raise SystemExit(2) from None
    app()
