"""The raw half of a load: which deliveries changed, reading them, judging batches, accepting event days."""
