"""How everything on record stands: days, figures and what waits for a person, from the ledger alone."""
