"""The health of everything on record: days, figures and open questions, from the ledger alone."""
