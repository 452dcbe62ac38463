"""Access to the outside world: landing, Spark, the lakehouse, the ledger.

Contains: one folder per service, and modules that several services share.
Add here: a service, in its own folder.
Does not contain: rules (pipeline_assets/domain/), decisions (pipeline_assets/load/).
"""
