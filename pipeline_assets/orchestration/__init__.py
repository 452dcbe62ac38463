"""All Dagster code: assets, jobs, sensors and what Dagster's pages show.

Contains: assets, jobs, ops, sensors, partitions, run config, what Dagster shows of a run.
Add here: another job or asset, or another detail that Dagster shows.
Does not contain: what a job does (load/, operations/, inspection/).
"""
