"""The derived part of a load: builds stale slices, judges them, and accepts those that pass and differ."""
