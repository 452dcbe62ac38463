"""Making staged slices visible: all tables of a run and their ledger rows in one transaction or commit, or table by table.

Contains: the request, each way to publish, what it promises to readers, the record of it.
Add here: another way to make slices visible.
Does not contain: staging files (resources/iceberg/), which slices are published (pipeline_assets/load/).
"""
