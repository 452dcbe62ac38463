"""Making staged slices visible: all tables of a run and their ledger rows in one transaction or commit, or table by table."""
