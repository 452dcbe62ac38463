"""Operators' changes to published data; no Dagster.

Contains: maintenance, rollback, release, exclusion, recovery, rebuild, split, notices: each its plan and its work.
Add here: another operation that an operator starts.
Does not contain: loads (load/), questions (inspection/), commands (cli/), jobs (orchestration/).
"""
