"""The vendor's Export API: where lost hours are fetched again.

Contains: requests, answers, credentials.
Add here: another answer of the API.
Does not contain: what is fetched and written (pipeline_assets/operations/recover.py).
"""
