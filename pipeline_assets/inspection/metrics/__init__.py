"""Figures for Prometheus: which there are, what they are, and the file that a collector reads."""
