"""A file that others read: whole at each moment, and with the rights that the umask leaves.

Contains: replacing a file by its next state.
Add here: another form of such a file.
Does not contain: landing's files, which are never replaced (landing/new_file.py).
"""

from __future__ import annotations

import uuid
from pathlib import Path


def replace_whole(target: Path, text: str) -> None:
    """Write the text beside the file and put it in the file's place; raises OSError, and then leaves nothing behind."""
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.draft")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
