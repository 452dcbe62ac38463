"""The derived half of a load: building stale slices, judging them, publishing those that pass and differ."""
