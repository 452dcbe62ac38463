"""A seeded exporter of realistic product-analytics events: for demo, tests, benchmarks and drill."""
