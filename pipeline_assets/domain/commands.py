"""Commands that messages suggest as the fix, each spelled in one place.

Contains: the text of such commands.
Add here: a command that several messages suggest.
Does not contain: what commands do (cli/), when to suggest one (load/deliveries/, inspection/health/answers.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import date

NEWER_TIDEMARK = "Install that version of Tidemark or a later one: pip install --upgrade tidemark-pipeline"


def recover_refused(first: date, last: date, projects: Sequence[str]) -> str:
    """The command that fetches the missing or refused deliveries of refused days from the vendor, and loads them."""
    named = [word for project in projects for word in ("--project", project)]
    return shlex.join(["tidemark", "recover", "--from", str(first), "--to", str(last), *named, "--refused", "--load"])
