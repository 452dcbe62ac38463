"""Operators' changes to published data; no Dagster."""
