"""The process that Spark forks Python workers from: the usual daemon, with common imports preloaded."""

import gc
from importlib import import_module

from pyspark.daemon import manager

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

if __name__ == "__main__":
    require_same()
    for name in SHARED:
        import_module(name)
    gc.freeze()
    gc.set_threshold(_COLLECTED_EVERY)
    manager()  # type: ignore[no-untyped-call]
