"""Decides which slices are stale, from the ledger alone.

Contains: the facts of a decision, the decision for a slice, finality, coverage by deliveries.
Add here: another cause of a rebuild, or another fact.
Does not contain: building (load/build/), deliveries (load/deliveries/).
"""
