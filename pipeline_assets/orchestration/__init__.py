"""All of Dagster: assets, jobs, sensors and what its pages show."""
