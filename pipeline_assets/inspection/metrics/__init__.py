"""Figures for Prometheus: which there are, what they are, and the file that a collector reads.

Contains: families, their values, writing the file.
Add here: another metric.
Does not contain: figures of the health page (inspection/health/).
"""
