"""Commands that messages suggest as the fix, each spelled in one place."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import date

from pipeline_assets.domain.slices import ALL_PROJECTS, Slice

NEWER_TIDEMARK = "Install that version of Tidemark or a later one: pip install --upgrade tidemark-pipeline"

BRING_BACK = "tidemark load --source SOURCE --from DAY --to DAY --read-again"
"""The command that brings a day back of which a data file is gone, where only the file's place is known."""


def read_again(table: str, key: Slice) -> str:
    """The command that brings a slice back of which a data file is gone."""
    source = "dimensions" if key.project_id == ALL_PROJECTS else "backfill" if "/backfill" in table else "regular"
    words = ["tidemark", "load", "--source", source, "--from", str(key.event_date), "--to", str(key.event_date)]
    return shlex.join([*words, *(() if source == "dimensions" else ("--project", key.project_id)), "--read-again"])


def recover_refused(first: date, last: date, projects: Sequence[str]) -> str:
    """The command that fetches the missing or refused deliveries of refused days from the vendor, and loads them."""
    named = [word for project in projects for word in ("--project", project)]
    return shlex.join(["tidemark", "recover", "--from", str(first), "--to", str(last), *named, "--refused", "--load"])
