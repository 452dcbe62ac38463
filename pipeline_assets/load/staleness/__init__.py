"""Decides which slices are stale, from the ledger alone."""
