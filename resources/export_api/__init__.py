"""The vendor's Export API: where lost hours are fetched again."""
