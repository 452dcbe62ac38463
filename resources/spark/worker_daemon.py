"""The process that Spark forks Python workers from: the usual daemon, with common imports preloaded."""

import gc
import sys
from fnmatch import fnmatch
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from resources.spark.worker_check import require_same

SHARED = (
    # Together with the next import this takes over a second, which each worker would spend again: pyarrow looks for
    # pandas at its first array.
    "pandas",
    "pyarrow.compute",
    # Importing the S3 client takes half a second.
    "resources.landing.store",
)
_COLLECTED_EVERY = 100_000
"""Allocations between garbage collections; at the default of 700 the parser spends a fifteenth of its time looking for cycles."""
_ARCHIVES = ("pyspark.zip", "py4j-*-src.zip", "spark-core_*.jar")
"""What Spark puts before everything else on the path of its workers."""


def leave_archives() -> None:
    """Take Spark's archives from Python's path, where PySpark and Py4J are installed as well.

    Each task of a worker lets Python forget what is where, and then read the thousands of names in every open archive again,
    which takes 0.1 s of CPU. `require_same` compares the installed PySpark with the driver's.
    """
    archives = tuple(place for place in sys.path if any(fnmatch(Path(place).name, name) for name in _ARCHIVES))
    rest = [place for place in sys.path if place not in archives]
    if not archives or not all(PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j")):
        return
    sys.path[:] = rest
    for opened in [place for place in sys.path_importer_cache if place.startswith(archives)]:
        del sys.path_importer_cache[opened]
    # `copy` asks for Jython's `org`, and a folder of that name in a jar counts as a package.
    for name, module in list(sys.modules.items()):
        if any(place.startswith(archives) for place in getattr(module, "__path__", ())):
            del sys.modules[name]


if __name__ == "__main__":
    require_same()
    leave_archives()
    from pyspark.daemon import manager

    for shared in SHARED:
        import_module(shared)
    gc.freeze()
    gc.set_threshold(_COLLECTED_EVERY)
    manager()  # type: ignore[no-untyped-call]
