"""The derived half of a load: building stale slices, judging them, accepting those that pass and differ."""
