"""The derived part of a load: builds stale slices, judges them, and accepts those that pass and differ.

Contains: a builder for each kind of table, the audit of staged slices, their verdicts.
Add here: another kind of derived table, or another figure of an audit.
Does not contain: which slices are stale (load/staleness/), work on rows and files (transforms/).
"""
