"""What Spark forks its Python workers from: the usual daemon, with what every worker needs loaded beforehand.

Contains: imports that workers share.
Add here: a slow import of code that runs in workers.
Does not contain: that code, what a worker has to have (worker_check.py).
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

from resources.spark.worker_check import require_same

SHARED = (
    # With the next one over a second, which each worker would spend for itself: pyarrow looks for it at the first array.
    "pandas",
    "pyarrow.compute",
    # The S3 client's library is half a second.
    "resources.landing.store",
)
_COLLECTED_EVERY = 100_000
"""Objects; at the usual 700 a parser of blocks of lines spends a fifteenth of its time looking for cycles it never makes."""

if __name__ == "__main__":
    require_same()
    for name in SHARED:
        import_module(name)
    gc.freeze()
    gc.set_threshold(_COLLECTED_EVERY)
    manager()  # type: ignore[no-untyped-call]
