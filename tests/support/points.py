"""The failpoints of single operations."""

from __future__ import annotations

from resources.failpoints import Failpoint

OF_MOVES = {Failpoint.AFTER_COPY, Failpoint.AFTER_VERIFY, Failpoint.AFTER_MARKER, Failpoint.AFTER_DELETE}
OF_RECOVERY = {Failpoint.AFTER_DOWNLOAD, Failpoint.AFTER_OBJECT, Failpoint.BEFORE_MARKER}
OF_REBUILDS = {
    *(Failpoint.AFTER_GREEN, Failpoint.AFTER_CHUNK),
    *(Failpoint.BEFORE_REPORT, Failpoint.BEFORE_SWAP, Failpoint.AFTER_SWAPS),
}
OF_ROLLBACKS = {Failpoint.AFTER_LOOK}
OF_TABLE_BY_TABLE = {Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, Failpoint.BEFORE_LEDGER}
"""Points of a publish where no transaction spans tables and ledger."""
