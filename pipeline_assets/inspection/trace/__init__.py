"""Where a row came from, and why another one lost."""
