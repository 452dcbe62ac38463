"""A publication computed again: from what it was built from, or from what is there today."""
