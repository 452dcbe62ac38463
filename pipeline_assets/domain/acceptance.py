"""Acceptances: an operator lets a table's day of a project pass although a check would refuse it, with a reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from pipeline_assets.domain.days import day_in
from pipeline_assets.domain.errors import SettingsError, UsageError
from pipeline_assets.domain.plain_text import LONGEST_REASON, recordable
from pipeline_assets.domain.slices import ALL_PROJECTS, Slice


def a_reason(subject: str, text: str) -> str:
    """The reason as the ledger keeps it; raises UsageError for a blank or overlong one."""
    if not text.strip():
        raise UsageError(subject, "needs a reason", "Say why it is right; it stays on record")
    if len(text) > LONGEST_REASON:
        raise UsageError(
            subject,
            f"has a reason of {len(text):,} characters",
            f"Say why in {LONGEST_REASON:,} at most; it stays on record",
        )
    return recordable(text)


class AcceptanceKind(StrEnum):
    """What an operator accepts of a table's day; the value is the name in run config."""

    CHANGE = "accept_changes"
    """A final day of a derived table changes beyond its bounds."""
    MISSING = "accept_missing"
    """Deliveries of an arrival day of a raw table are lost for good."""


Acceptances = Mapping[tuple[str, Slice], str]
"""Table and slice -> why an operator accepts what a check would refuse; the table tells the kind."""


def read_acceptances(
    config: Mapping[AcceptanceKind, Mapping[str, str]],
    kinds: Mapping[str, AcceptanceKind],
    projects: Sequence[str],
    shared: Collection[str] = (),
) -> Acceptances:
    """Parse run config: for each kind, `table:day/project` -> reason.

    `kinds`: table -> the kind of acceptance it allows; `shared`: tables whose days belong to no project. A loss named among
    changes counts as a loss.

    Raises SettingsError for an entry that names no known table and day, or no project where several are loaded, and
    UsageError for an invalid reason.
    """
    found = {}
    for kind, entries in config.items():
        for name, reason in entries.items():
            named = [ALL_PROJECTS] if name.partition(":")[0] in shared else projects
            found[_named(kind, name, kinds, named)] = a_reason(f"{kind.value} {name}", reason)
    return found


def _named(
    kind: AcceptanceKind, name: str, kinds: Mapping[str, AcceptanceKind], projects: Sequence[str]
) -> tuple[str, Slice]:
    table, _, rest = name.partition(":")
    day, _, project = rest.partition("/")
    subject = f"{kind.value} {name!r}"
    parsed = day_in(day)
    if table not in kinds or parsed is None:
        example = next(name for name, of in kinds.items() if of is kind)
        raise SettingsError(
            subject, "is not `table:day/project` with a reason", f'Example: {{"{example}:2026-02-02/10001": "why"}}'
        )
    if kind is AcceptanceKind.MISSING and kinds[table] is not kind:
        allowed = ", ".join(name for name, of in kinds.items() if of is kind)
        raise SettingsError(subject, f"{table} has no deliveries that could be missing", f"Name one of {allowed}")
    if not project and len(projects) > 1:
        raise SettingsError(
            subject,
            f"names no project, and this run loads {', '.join(projects)}: it would apply to all of them",
            f'Name the one that is meant: "{name}/{projects[0]}"; an entry for each, or load one project alone',
        )
    if project and project not in projects:
        raise SettingsError(
            subject,
            f"names a project that this run does not load ({', '.join(projects)})",
            "Correct it, or load that project",
        )
    return table, Slice(parsed, project or projects[0])
