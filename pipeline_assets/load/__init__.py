"""The one load path (law 3): sync the ledger, accept deliveries, rebuild stale slices; no Dagster."""
