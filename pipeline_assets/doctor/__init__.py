"""Whether this deployment can be trusted to recover: a checklist, each point tested here with evidence.

Contains: the points, their rules, the reading of their evidence.
Add here: another point: its rule, and the reading of its evidence.
Does not contain: printing (cli/prove.py).
"""
