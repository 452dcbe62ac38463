"""The Java that servers of the set run on, and what all of its JVMs are told.

Contains: finding it, its options.
Add here: an option for every JVM.
Does not contain: which Java is good enough (resources/spark/java.py).
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from local_stack.folder import StackFolder
from resources.spark.java import require_java


@cache
def java() -> str:
    """The program that Spark would start; raises EngineError where there is none that it runs on."""
    require_java()
    home = os.environ.get("JAVA_HOME")
    return str(shutil.which(str(Path(home) / "bin" / "java") if home else "java"))


def jvm_words(folder: StackFolder) -> tuple[str, ...]:
    """Little memory, and nothing left in /tmp."""
    return ("-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={folder.tmp}")
