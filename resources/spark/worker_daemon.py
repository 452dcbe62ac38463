"""What Spark forks its Python workers from: the usual daemon, with what every worker needs loaded beforehand.

Contains: imports that workers share.
Add here: a slow import of code that runs in workers.
Does not contain: that code.
"""

import gc

import pandas  # noqa: F401 - pyarrow looks for it at the first array
import pyarrow.compute  # noqa: F401 - with pandas over a second, which each worker would spend for itself
from pyspark.daemon import manager

import resources.landing.store  # noqa: F401 - the S3 client's library is half a second

_COLLECTED_EVERY = 100_000
"""Objects; at the usual 700 a parser of blocks of lines spends a fifteenth of its time looking for cycles it never makes."""

if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(_COLLECTED_EVERY)
    manager()  # type: ignore[no-untyped-call]
