"""`tidemark`: the command line, with the same jobs and queries.

Contains: what each command does and prints, the renderer of reports, running a job in this process.
Add here: the function of a command; `app.py` names its module, `domain/requests.py` its options.
Does not contain: what a command asks or changes (inspection/, operations/), jobs (orchestration/).
"""

import sys

from pipeline_assets.domain.errors import SettingsError


def main() -> None:
    """Entry point of the `tidemark` script."""
    try:
        from pipeline_assets.cli.app import app  # noqa: PLC0415 - who imports a part of the shell needs no command
    except SettingsError as error:
        # The app imports the tables that settings name.
        sys.stderr.write(f"{error.subject}: {error.reason}\n  fix: {error.hint}\n")
        raise SystemExit(2) from None
    app()
