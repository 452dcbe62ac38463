"""A publication computed again: from what it was built from, or from what is there today.

Contains: the recorded inputs of a publication, computing it again, the causes of a difference.
Add here: another cause, or another kind of input.
Does not contain: today's comparison without a publication (inspection/verify.py).
"""
