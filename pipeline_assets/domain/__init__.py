"""Pure rules: no Dagster, no Spark, no I/O."""
