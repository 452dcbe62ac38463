"""All Dagster code: assets, jobs, sensors and what Dagster's pages show; and the health page, which needs no Dagster.

Contains: assets, jobs, ops, sensors, run config, what Dagster shows of a run.
Add here: another job or asset, another reason to start a load, or another detail that Dagster shows.
Does not contain: what a job does (load/, operations/, inspection/), whether a batch is complete (load/deliveries/).
"""
