"""The health page: one file that needs only a browser. It imports no Dagster, so that the CLI can write it without.

Contains: tiles, charts, calendar, lists, and their style.
Add here: another figure that is drawn.
Does not contain: the figures (inspection/health/).
"""
