"""What runs say, as JSON lines for machines: one object a line, with the run it belongs to.

Contains: writing a line.
Add here: what every line carries.
Does not contain: which lines there are (pipeline_assets/load/observed.py,
pipeline_assets/orchestration/watching.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline_assets.domain.masking import scrubbed

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
"""Not opened by name: what another user gave a container as its streams may be written to, and not opened."""


class JsonLog:
    """A file that lines are appended to; several processes may write it at once, each line in one call.

    A load never fails for it: the first line that cannot be written is complained of, and no further one is tried.
    """

    def __init__(self, path: Path | None, complain: Callable[[str], None], **always: str) -> None:
        """`always` stands in every line; with `path` None nothing is written, nor opened."""
        self._path, self._complain, self._always = path, complain, always

    def write(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """One line: time, level, event, what stands in every line, and these fields; secrets are left out."""
        if self._path is None:
            return
        line = {"time": datetime.now(UTC).isoformat(), "level": level, "event": event, **self._always, **fields}
        try:
            _append(self._path, (json.dumps(_clean(line), default=str) + "\n").encode("ascii"))
        except OSError as error:
            path, self._path = self._path, None
            self._complain(f"json_log {path}: {error.strerror or error}; this run writes no more lines to it")


def _append(path: Path, line: bytes) -> None:
    stream = _STREAMS.get(str(path))
    if stream is not None:
        os.write(stream, line)
        return
    # Opened each time: a file that was rotated meanwhile is not written to any more.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return scrubbed(value)
    if isinstance(value, Mapping):
        return {str(name): _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
