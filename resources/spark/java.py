"""Find the installed Java and check that Spark supports it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pipeline_assets.domain.errors import EngineError

_SUPPORTED = ("17", "21")
_HINT = "Install Java 17 or 21 (on Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME to it"
_LONGEST_SECONDS = 30


def require_java() -> str:
    """Return the major version of the Java that Spark would start; raises EngineError where it is missing or unsupported."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        raise EngineError("Java", f"is not in JAVA_HOME ({home})" if home else "was not found on PATH", _HINT)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_LONGEST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(java, f"does not start: {error}", _HINT) from error
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None or found[1] not in _SUPPORTED:
        version = f"is Java {found[1]}" if found else "does not tell its version"
        raise EngineError(java, f"{version}, and Spark runs on {' and '.join(_SUPPORTED)}", _HINT)
    return found[1]
