"""Which slices are stale, from the ledger alone."""
