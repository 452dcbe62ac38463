"""What talks to the outside world: landing, Spark, the lakehouse, the ledger."""
