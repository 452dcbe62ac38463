"""A file that other programs read: whole at each moment, with the rights that the umask leaves."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from pipeline_assets.domain.errors import UsageError


def sync(*places: Path) -> None:
    """Sync files and folders, so that their bytes and names outlive a power cut."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, text: str, *, makes_folder: bool = False) -> Path:
    """Write the file atomically; returns its absolute path; raises UsageError, and then leaves nothing behind."""
    target = path.expanduser().absolute()
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.draft")
    try:
        if makes_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        draft.replace(target)
    except OSError as error:
        reason = f"cannot be written there ({error.strerror or error})"
        raise UsageError(
            str(path), reason, "Name a file in a folder that is there and that you may write to"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target
