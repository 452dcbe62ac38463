"""Comparison of published keys with another table's, or with a list.

Contains: the comparison.
Add here: another form of a list of keys.
Does not contain: reading the list (formats/key_list.py).
"""
