"""Recovered objects among regular ones: found by evidence, and moved under the backfill grammar.

Contains: evidence for a recovery, finding objects, moving them, markers of moved hours.
Add here: another piece of evidence.
Does not contain: the move of one object (resources/landing/move.py).
"""
