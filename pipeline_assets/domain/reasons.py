"""Reasons that operators give. They stay on record, so each must say something, be short, and suit any database."""

from __future__ import annotations

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.domain.plain_text import LONGEST_REASON, recordable


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
