"""Measurements: how fast the load path is beside other ways of loading the same files, and how its cost grows."""
