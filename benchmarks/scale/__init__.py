"""`python -m benchmarks.scale`: seconds and memory of each look at ten years of 200 projects, of which no data is there."""
