"""The Java of the stack's servers, and the options of all JVMs."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from local_stack.folder import StackFolder
from resources.spark.jars import require_java


@cache
def java() -> str:
    """Return the path of the Java that Spark would start; raises EngineError where it is missing or unsupported."""
    require_java()
    home = os.environ.get("JAVA_HOME")
    return str(shutil.which(str(Path(home) / "bin" / "java") if home else "java"))


def jvm_words(folder: StackFolder) -> tuple[str, ...]:
    """Return JVM options that save memory and keep files out of /tmp."""
    return ("-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={folder.tmp}")
