"""Where a row came from, and why competing rows lost.

Contains: the rows of an event, their ranks, the explanation.
Add here: another reason why a row lost.
Does not contain: drawing (cli/render_trace.py).
"""
