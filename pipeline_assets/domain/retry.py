"""How often something is tried, and how long is waited in between.

Contains: tries with pauses that double.
Add here: another rhythm of trying.
Does not contain: which failures are tried again (resources/iceberg/errors.py,
resources/ledger/engine.py), when a sensor tries a day again (orchestration/sensors/cursor.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator


def tries(count: int, first_pause_seconds: float) -> Iterator[bool]:
    """Yield `count` times whether this try is the last; sleep before each further one, twice as long as before the one before.

    Seven tries with a first pause of 0.1 s last about six seconds.
    """
    for number in range(count - 1):
        yield False
        time.sleep(first_pause_seconds * 2**number)
    yield True
