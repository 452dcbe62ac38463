"""Slices computed anew beside main, in a green branch: report, swap, undo."""
