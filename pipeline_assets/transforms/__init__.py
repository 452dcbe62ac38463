"""DataFrame in, DataFrame out: no Dagster, no I/O."""
