"""What an operator does to published data; no Dagster."""
