"""Amplitude exports: names of objects, lines and columns.

Contains: columns, names of objects, lines one by one and in blocks.
Add here: another answer about this vendor's exports.
Does not contain: what every format shares (formats/base.py).
"""
