"""Where a row came from, and why competing rows lost."""
