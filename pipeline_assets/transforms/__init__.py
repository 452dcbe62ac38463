"""DataFrame in, DataFrame out: no Dagster, no I/O.

Contains: parsing, deduplication, row hashes, digests, skew: work on rows and on files of rows.
Add here: another transformation of rows.
Does not contain: which rows and when (load/), places and catalogs (resources/).
"""
