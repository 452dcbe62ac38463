"""The health of everything on record: days, figures and open questions, from the ledger alone.

Contains: the report, figures over time, the state of days, open questions.
Add here: another figure of the page.
Does not contain: drawing (orchestration/health_page/).
"""
