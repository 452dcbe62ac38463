"""The health page: one file that needs only a browser. It imports no Dagster, so that the CLI can write it without."""
