"""The ledger: what is recorded, in a SQL database."""
