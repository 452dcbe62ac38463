"""`python -m benchmarks.scale`: seconds and memory of each query over ten years of 200 projects, simulated without data."""
