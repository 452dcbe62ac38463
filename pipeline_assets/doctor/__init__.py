"""A checklist of whether this deployment can recover: each point tested, with evidence.

Contains: the points, their rules, the reading of their evidence.
Add here: another point: its rule, and the reading of its evidence.
Does not contain: printing (cli/prove.py).
"""
