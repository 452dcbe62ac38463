"""A difference as a small self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from pipeline_assets.inspection.diff.difference import Difference
from pipeline_assets.inspection.pages import render


def page_of(difference: Difference) -> str:
    """The whole page as HTML, including its style."""
    keys = difference.keys
    parts = (
        ("kept", "equal", {"": keys.kept}),
        ("changed", "different", keys.changed),
        ("removed", "only published", keys.removed),
        ("added", "only proposed", keys.added),
    )
    whole = sum(sum(causes.values()) for _, _, causes in parts) or 1
    return render("diff.html", found=difference, parts=parts, whole=whole)


def write_page(difference: Difference, folder: Path) -> Path:
    """Write the page to a file in the folder, which is created if missing; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    key = difference.key
    path = folder / f"{difference.table.replace('/', '.')}_{key.event_date}_{key.project_id}.html"
    path.write_text(page_of(difference), "utf-8")
    return path
