"""Comparison of published keys with another table's, or with a list."""
