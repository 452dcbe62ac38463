"""Exports of Amplitude: names of objects, lines and columns."""
