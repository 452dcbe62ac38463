"""What talks to the outside world: landing, Spark, the lakehouse, the ledger.

Contains: a folder a service, what all of them share.
Add here: a service, in a folder of its own.
Does not contain: rules (pipeline_assets/domain/), decisions (pipeline_assets/load/).
"""
