"""The one load path (law 3): sync the ledger, accept deliveries, rebuild stale slices; no Dagster.

Contains: the order of a load, its draft, and what it does before and after deliveries and builds.
Add here: another step of every load.
Does not contain: pure rules (domain/), Dagster (orchestration/), operators' changes (operations/).
"""
