"""Amplitude exports: names of objects, lines and columns."""
