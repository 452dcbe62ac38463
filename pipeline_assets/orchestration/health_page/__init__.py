"""The page of health: one file that needs nothing but a browser. No Dagster here, so that the shell draws it without."""
