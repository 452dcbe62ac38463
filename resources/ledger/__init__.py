"""The ledger: records of deliveries, slices and runs in a SQL database."""
