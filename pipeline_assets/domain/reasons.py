"""Reasons that operators give: they stay on record, so each says something, in bounds, in characters that any database keeps.

Contains: the one condition of a reason.
Add here: another one.
Does not contain: what is decided for a reason (load/).
"""

from __future__ import annotations

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import LONGEST_REASON, recordable


def a_reason(subject: str, text: str) -> str:
    """The reason as it is kept; raises UsageError for one that says nothing or fills pages."""
    if not text.strip():
        raise UsageError(subject, "needs a reason", "Say why it is right; it stays on record")
    if len(text) > LONGEST_REASON:
        raise UsageError(
            subject,
            f"has a reason of {len(text):,} characters",
            f"Say why in {LONGEST_REASON:,} at most; it stays on record",
        )
    return recordable(text)
