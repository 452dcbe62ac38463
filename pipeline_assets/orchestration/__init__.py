"""All Dagster code: assets, jobs, sensors and what Dagster's pages show."""
