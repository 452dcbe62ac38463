"""Benchmarks: the load path compared with other ways of loading the same files, and how its cost grows."""
