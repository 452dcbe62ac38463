"""The one load path (law 3): settle, accept deliveries, rebuild stale slices; no Dagster."""
