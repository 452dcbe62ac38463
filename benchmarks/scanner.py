"""`python -m benchmarks.scanner`: CPU time a row of the native scanner and of the parser in Python, on the same lines."""

from __future__ import annotations

import argparse
import gc
import gzip
import io
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.workload import FIRST_DAY, PROJECT, one_day
from pipeline_assets.formats.amplitude.line_blocks import ColumnParser, native_scan
from pipeline_assets.formats.gzip_lines import blocks
from pipeline_assets.formats.registry import EXPORT_FORMAT
from pipeline_assets.native import PLACE, row_hashes
from pipeline_assets.transforms.event_hashes import VERSION, in_arrow, plain_columns

_BLOCK_ROWS, _BLOCK_BYTES = 10_000, 16 << 20
_MAX_LINE_BYTES = 1 << 20


def main() -> None:
    """Measure and print; exits with 1 where the library is not there or the results differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scanner", description="Measure the native scanner.")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    scan, columns = native_scan(PROJECT, FIRST_DAY, _MAX_LINE_BYTES), ColumnParser(PROJECT, FIRST_DAY, _MAX_LINE_BYTES)
    if scan is None:
        sys.exit(f"{PLACE}: no library that this code can use\n  fix: make setup, where cargo is installed")
    pa.set_cpu_count(1)
    gc.freeze()
    gc.set_threshold(100_000)
    stage = one_day("scanner", events_per_day=options.events)
    texts = [gzip.decompress(path.read_bytes()) for path in stage.objects]
    cut = [block for text in texts for block in blocks(io.BytesIO(text), _BLOCK_ROWS, _BLOCK_BYTES, _MAX_LINE_BYTES)]
    rows = sum(block.count for block in cut)

    def measured(work: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
        seconds, found = [], []
        for _ in range(options.rounds):
            started = time.process_time()
            found = work()
            seconds.append(time.process_time() - started)
        return median(seconds) / rows * 1e6, found

    python, decoded = measured(lambda: [columns.decode(block.text, block.count) for block in cut])
    native, scanned = measured(lambda: [scan(block.text, block.count) for block in cut])
    types, transport = EXPORT_FORMAT.spark_types, EXPORT_FORMAT.transport_columns
    meaning = {name: kind for name, kind in types.items() if name not in transport}
    parts = [plain_columns(part, meaning) for part in decoded]
    arrow, expected = measured(lambda: [in_arrow(part) for part in parts])
    hashed, found = measured(lambda: [row_hashes(part, VERSION) for part in parts])
    if (decoded, expected) != (scanned, found):
        sys.exit("the native library gives something else than Python")
    table = Table(
        "µs a row", "Python", "native", title=f"{rows:,} rows of {sum(map(len, texts)) // rows:,} bytes, one core"
    )
    table.add_row("lines to columns", f"{python:.2f}", f"{native:.2f}")
    table.add_row("the hash of an event's meaning", f"{arrow:.2f}", f"{hashed:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
